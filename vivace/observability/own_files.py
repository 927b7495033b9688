"""Files in places that the program chooses: somebody else may have put something there before."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

NEVER_WAIT = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""of a pipe without a reader, of a terminal"""


def open_own_file(path: Path, flags: int, mode: int = 0o600) -> int:
    """A descriptor of a regular file. Raises OSError, also for a link, which is not followed, and
    for a pipe or a device, which is not waited for."""
    try:
        descriptor = os.open(path, (flags & ~os.O_TRUNC) | os.O_NOFOLLOW | NEVER_WAIT, mode)
    except OSError as error:
        if path.is_symlink():
            raise OSError(error.errno, "a link, which is not followed", str(path)) from None
        if error.errno == errno.ENXIO:
            raise OSError(error.errno, NOT_REGULAR, str(path)) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, NOT_REGULAR, str(path))
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


NOT_REGULAR = "not a regular file"
