"""Files and folders that somebody named, or that lie where others may have put something before.

None is ever waited for: a pipe, a device. A file whose name somebody typed may be a link, which is
followed, as by `cp` or the shell's `>`: it is his. A name that the program chooses is not: whoever
can write there would choose what is overwritten. Without pathlib (deploy/files.py says why).
"""

from __future__ import annotations

import errno
import os
import stat

NEVER_WAIT = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""of a pipe without a reader, of a terminal"""
NOT_REGULAR = "not a regular file"
WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC

PathName = str | os.PathLike[str]


class FileTooLarge(ValueError):
    """A file that is larger than its reader takes."""


# -- names that the program chooses --------------------------------------------------------------


def open_own_file(path: PathName, flags: int, mode: int = 0o600) -> int:
    """A descriptor of a regular file. Raises OSError, also for a link, which is not followed, and
    for a pipe or a device, which is not waited for."""
    try:
        descriptor = os.open(path, (flags & ~os.O_TRUNC) | os.O_NOFOLLOW | NEVER_WAIT, mode)
    except OSError as error:
        if os.path.islink(path):
            raise failure(error.errno, "a link, which is not followed", path) from None
        if error.errno == errno.ENXIO:
            raise failure(error.errno, NOT_REGULAR, path) from None
        raise
    try:
        refuse_other_kinds(descriptor, path)
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def write_own_file(path: PathName, text: str, mode: int = 0o644) -> None:
    with os.fdopen(open_own_file(path, WRITE, mode), "w", encoding="utf-8") as file:
        file.write(text)


# -- names that somebody typed -------------------------------------------------------------------


def read_file(path: PathName, limit: int) -> bytes:
    """A regular file of at most `limit` bytes. Raises OSError whose text is whole, FileTooLarge."""
    with os.fdopen(open_input(path), "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise FileTooLarge(f"larger than {limit >> 20} MiB")
    return content


def open_input(path: PathName) -> int:
    """A descriptor to read a regular file, which may be read again. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | NEVER_WAIT)
    except OSError as error:
        raise explain(error, path) from None
    try:
        refuse_other_kinds(descriptor, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def write_file(path: PathName, text: str) -> None:
    """A file, or a device such as /dev/stdout. Raises OSError whose text is whole."""
    try:
        descriptor = os.open(path, WRITE | NEVER_WAIT, 0o666)
    except OSError as error:
        raise explain(error, path) from None
    os.set_blocking(descriptor, True)  # whoever reads the pipe is there
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def check_folder(path: PathName, *, new: bool = False) -> None:
    """Raises OSError when it is no folder, or cannot be listed. `new`: it may be missing where it
    can be made."""
    try:
        with os.scandir(path) as entries:
            next(entries, None)
    except FileNotFoundError as error:
        above = os.path.dirname(os.path.abspath(path))
        if not new or os.path.islink(path):
            raise explain(error, path) from None
        check_folder(above, new=True)
    except OSError as error:
        raise explain(error, path) from None


def explain(error: OSError, path: PathName) -> OSError:
    """The same with a text that says what lies there and what to do."""
    texts = {
        errno.EISDIR: "a folder; give a file",
        errno.ELOOP: "a link that leads back to itself",
        errno.ENXIO: "a pipe or a socket; give a file",
    }
    text = texts.get(error.errno or 0, error.strerror or str(error))
    if error.errno == errno.ENOENT and os.path.islink(path):
        text = f"a link to {os.readlink(path)}, which is not there"
    if error.errno == errno.ENOTDIR:
        text = "not a folder" if os.path.lexists(path) else "a part of the path is not a folder"
    return failure(error.errno, text, path)


def refuse_other_kinds(descriptor: int, path: PathName) -> None:
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(kind):
        raise failure(errno.EISDIR, "a folder; give a file", path)
    if not stat.S_ISREG(kind):
        raise failure(errno.EINVAL, NOT_REGULAR, path)


def failure(number: int | None, text: str, path: PathName) -> OSError:
    return OSError(number, text, os.fspath(path))
