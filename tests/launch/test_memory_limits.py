"""A start that runs out of memory ends in one line; other errors of a start stay what they are."""

from __future__ import annotations

import errno
import mmap
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from served_toy import write_toy_llama

from vivace.errors import CANNOT_START, CannotStart, one_line_without_memory

SMALL = 400_000
"""KiB of addresses: PyTorch's library alone is larger, the supervisor is not"""


def raise_it(error: Exception) -> None:
    raise error


OUT = {
    "Python": lambda: bytearray(1 << 60),
    "a map": lambda: mmap.mmap(-1, 1 << 60),
    "torch": lambda: torch.empty(1 << 50, dtype=torch.uint8),
    "a library": lambda: raise_it(ImportError("x.so: failed to map segment from shared object")),
    "a thread": lambda: raise_it(RuntimeError("can't start new thread")),
    "C++": lambda: raise_it(RuntimeError("std::bad_alloc")),
    "several lines": lambda: raise_it(RuntimeError("Cannot allocate memory\nraised from ...")),
}
OTHER = {
    "a disk": OSError(errno.ENOSPC, "No space left on device"),
    "a mount without programs": ImportError(
        "x.so: failed to map segment from shared object: Operation not permitted"
    ),
    "a shape": RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    "what was said already": CannotStart("Cannot allocate memory"),
}


@pytest.mark.parametrize("what", OUT)
def test_it_is_said_in_one_line(what: str) -> None:
    with pytest.raises(CannotStart, match="memory") as caught, one_line_without_memory():
        OUT[what]()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("what", OTHER)
def test_other_errors_are_not_taken_for_it(what: str) -> None:
    with pytest.raises(type(OTHER[what])) as caught, one_line_without_memory():
        raise OTHER[what]
    assert caught.value is OTHER[what]


def test_a_server_under_a_limit_of_addresses() -> None:
    limited = ["sh", "-c", f'ulimit -v {SMALL} && exec "$@"', "sh"]
    command = [*limited, sys.executable, "-m", "vivace", "serve", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    text = done.stdout + done.stderr
    assert done.returncode == 1, text
    assert "Traceback" not in text
    assert "no memory at the start" in text.splitlines()[-1]


@pytest.mark.parametrize("words", ["chat --local hi", "bench one-batch", "bench kernels"])
def test_a_command_under_a_limit_of_addresses(words: str) -> None:
    """Each in the process of the command; the one of chat templates keeps to the limit too."""
    limited = ["sh", "-c", f'ulimit -v {SMALL} && exec "$@"', "sh"]
    command = [*limited, sys.executable, "-m", "vivace", *words.split()]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )
    assert done.returncode == CANNOT_START, done.stderr
    assert "Traceback" not in done.stderr
    assert "memory" in done.stderr


def test_ranks_under_a_limit_of_file_sizes(tmp_path: Path) -> None:
    """What they share counts as a file."""
    command = [sys.executable, "-m", "vivace", "serve", "--port", "0", "--tp-size", "2"]
    done = subprocess.run(
        ["prlimit", "--fsize=1000000", *command, "--model-path", str(write_toy_llama(tmp_path))],
        capture_output=True,
        text=True,
        timeout=60,
    )
    text = done.stdout + done.stderr
    assert done.returncode == CANNOT_START, text
    assert "Traceback" not in text
    assert "plans for ranks" in text.splitlines()[-1]
    assert "ulimit -f" in text.splitlines()[-1]
