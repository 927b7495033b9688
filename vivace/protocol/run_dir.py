"""The run directory: where the sockets of one server live. Only this user may enter it.

A server that is killed leaves its directory behind; the next one removes it. Whether the owner
lives is told by a lock on a file in it, which the kernel releases with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "vivace-"
LOCK = "lock"
LONGEST_ADDRESS = 100
"""Bytes of a socket path; the kernel's limit is 107."""
SETTLING_SECONDS = 60.0
"""A younger directory may not have its lock yet."""


@contextlib.contextmanager
def new_run_dir() -> Iterator[Path]:
    """A new directory of mode 0700, removed at the end. OSError when no place is short enough."""
    path = short_directory()
    remove_abandoned(path.parent)
    lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def short_directory() -> Path:
    for parent in (tempfile.gettempdir(), "/tmp"):
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        if len(os.fsencode(path / "frontend-1234567.sock")) <= LONGEST_ADDRESS:
            return path
        path.rmdir()
    raise OSError(
        f"{tempfile.gettempdir()} is too long for a unix socket path; set TMPDIR to a shorter one"
    )


def remove_abandoned(parent: Path) -> None:
    """Remove our directories whose server is gone. Never raises."""
    for path in parent.glob(PREFIX + "*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            old = time.time() - status.st_mtime > SETTLING_SECONDS
            if old and status.st_uid == os.getuid() and path.is_dir() and is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)


def is_abandoned(path: Path) -> bool:
    """True when nobody holds the lock. OSError when there is none: not one of ours."""
    lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
