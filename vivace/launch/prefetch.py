"""What a start does beside `import torch`, which keeps one core busy for seconds."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

TORCH_LIBRARY = "lib/libtorch_cpu.so"
LARGEST_SHARE = 0.5
"""of the memory that is free: files read beyond it would push one another out"""


def load_torch_library() -> None:
    """In a thread: map and link torch's large library, which needs no interpreter, while this
    process imports its own modules. `import torch` then finds it done, or waits for it."""
    found = find_spec("torch")
    if found is not None and found.origin is not None:
        path = Path(found.origin).parent / TORCH_LIBRARY
        threading.Thread(target=link, args=(path,), name="torch library", daemon=True).start()


def link(path: Path) -> None:
    """A library that is missing or cannot be loaded is told by `import torch` itself."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(str(path))


def read_ahead(files: Iterable[Path], free_bytes: int) -> None:
    """Ask the system to read weights into its cache; it does so in the background, and the order
    of the files is that of the reading. Where it cannot, they are read when they are needed."""
    left = int(free_bytes * LARGEST_SHARE)
    for file in files:
        with contextlib.suppress(OSError), file.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if size <= left and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(opened.fileno(), 0, size, os.POSIX_FADV_WILLNEED)
                left -= size
