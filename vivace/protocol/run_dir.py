"""The run directory: where the sockets of one server live. Only this user may enter it.

A server that is killed leaves its directory behind; the next one removes it. Whether the owner
lives is told by a lock on a file in it, which the kernel releases with the process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from vivace.errors import CannotStart

PREFIX = "vivace-"
LOCK = "lock"
LONGEST_PARENT = 60
"""Bytes of the folder's path, so that a socket's path stays below the kernel's limit of 107."""
SETTLING_SECONDS = 60.0
"""A younger directory may not have its lock yet."""


@contextlib.contextmanager
def new_run_dir() -> Iterator[Path]:
    """A new directory of mode 0700, removed at the end. CannotStart when there is no place."""
    path, lock = locked_directory()
    remove_abandoned(path.parent)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def locked_directory() -> tuple[Path, int]:
    """(a new directory, the descriptor of its lock) in the first place that will have it."""
    refusals: list[str] = []
    for parent in places():
        try:
            return lock_in(parent)
        except OSError as error:
            refusals.append(f"{parent} ({error.strerror or error})")
    raise CannotStart(
        f"there is no place for the server's sockets: {', '.join(refusals)}; set TMPDIR to a "
        f"folder that can be written and whose path is at most {LONGEST_PARENT} bytes long"
    )


def places() -> list[str]:
    """Folders to try. TMPDIR first; tempfile leaves it out when it cannot be written."""
    found = ["/tmp", "/var/tmp", "/dev/shm", f"/run/user/{os.getuid()}"]
    with contextlib.suppress(OSError):
        found.insert(0, tempfile.gettempdir())
    return list(dict.fromkeys(found))


def lock_in(parent: str) -> tuple[Path, int]:
    """OSError when nothing can be made there, or its path is too long for a socket's."""
    if len(os.fsencode(parent)) > LONGEST_PARENT:
        raise OSError(errno.ENAMETOOLONG, "too long a path")
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return path, lock


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
