"""What several test files want to know, computed by the first that asks: also where the files run
in processes of their own (pytest-xdist)."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest


def shared_result(
    factory: pytest.TempPathFactory, name: str, compute: Callable[[Path], Any]
) -> Any:
    """What `compute(an empty folder)` gave to whoever came first in this run, as JSON has it."""
    base = factory.getbasetemp()
    # a worker's folder lies in that of the run
    folder = base.parent / f"shared-{name}" if base.name.startswith("popen-") else base / name
    folder.mkdir(exist_ok=True)
    file = folder / "result.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            file.write_text(json.dumps(compute(Path(mkdtemp(dir=folder)))))
    return json.loads(file.read_text())
