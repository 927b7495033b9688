"""Paths and files without pathlib, which loads ten modules.

Nothing else that `vivace check` loads needs pathlib: with it the command takes 6 to 10 ms of CPU
time more (2026-11-22, median and minimum of 40 runs; `commands/fast_start` says how long it takes).
"""

from __future__ import annotations

import os
import stat
import sys

from vivace.files import FileTooLarge, PathName

MAX_BYTES = 1 << 20
"""of a deployment file"""
STDIN = "<stdin>"
"""what findings call standard input"""
STDIN_NAMES = (STDIN, "-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
PACKAGE = os.path.dirname(os.path.abspath(__file__))


def read_stdin(limit: int) -> bytes:
    """Standard input, to its end. Raises FileTooLarge, OSError."""
    try:
        content = sys.stdin.buffer.read(limit + 1)
    except OSError as error:
        raise OSError(error.errno, error.strerror, STDIN) from None
    if len(content) > limit:
        raise FileTooLarge(f"larger than {limit >> 20} MiB")
    return content


def is_silent(seconds: float = 1.0) -> bool:
    """Whether standard input is a terminal, or a pipe that sends nothing for so long."""
    try:
        if sys.stdin.isatty():
            return True
        from select import select

        return not select([sys.stdin], [], [], seconds)[0]
    except (OSError, ValueError):  # no file of the system
        return False


def packaged_path(name: str) -> str:
    """The path of a data file of this package."""
    return os.path.join(PACKAGE, name)


def absolute(path: PathName) -> str:
    return os.path.abspath(path)


def below(folder: PathName, name: str) -> str:
    return os.path.join(folder, name)


def beside(file: PathName, name: str) -> str:
    """What `file` calls `name`: relative to its folder, without `..` in it."""
    return os.path.normpath(os.path.join(os.path.dirname(file), name))


def read_beside(file: PathName, name: str, limit: int) -> tuple[str, str] | None:
    """(path, text) of a regular file in the folder of `file` or below; None for any other: what
    lies elsewhere, also through links, devices, pipes, and what is larger than `limit` bytes."""
    if not is_beside(file, name):
        return None
    folder = os.path.realpath(os.path.dirname(os.path.abspath(file)))
    path = os.path.realpath(os.path.join(folder, name))
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(opened, "rb") as content:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            return None
        raw = content.read(limit + 1)
    shown = os.path.join(os.path.dirname(file), os.path.relpath(path, folder))
    return None if len(raw) > limit else (shown, raw.decode("utf-8-sig", "replace"))


def is_beside(file: PathName, name: str) -> bool:
    """Whether a name in `file` leads to its folder or below, links followed."""
    if "\0" in name:
        return False
    folder = os.path.realpath(os.path.dirname(os.path.abspath(file)))
    return os.path.commonpath([folder, os.path.realpath(os.path.join(folder, name))]) == folder


def file_name(path: PathName) -> str:
    return os.path.basename(path)


def is_file(path: PathName) -> bool:
    return os.path.isfile(path)


def is_folder(path: PathName) -> bool:
    return os.path.isdir(path)


def home() -> str:
    return os.path.expanduser("~")


def relative_to(root: str, file: str) -> str:
    """A file's path from `root` (empty: the current folder); whole where it lies elsewhere."""
    root, path = os.path.realpath(root), os.path.realpath(file)
    return os.path.relpath(path, root) if path.startswith(root + os.sep) else path
