"""Unix sockets on which children listen, one after the other.

The supervisor makes one before there is a child, and takes its file away at once: nobody else can
find it, nothing is left behind, and no folder has to live as long as the server. Who listens does
so on the descriptor it inherits. Others connect by a descriptor of the file that is gone (O_PATH),
which `/proc/self/fd` leads to.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

from vivace.errors import CannotStart

MAX_FOLDER_BYTES = 60
"""Bytes of a folder's path, so that a socket's path stays below the kernel's limit of 107."""
BACKLOG = 4096
"""Frontends connect while an engine is loading; the kernel lowers this to its own limit."""


@dataclass(frozen=True)
class ListeningSocket:
    """Descriptors for children to inherit; they belong to the supervisor."""

    listening: int
    """for who listens"""
    file: int
    """for who connects"""


def new_socket() -> int:
    """A descriptor that does not listen yet, for a child to inherit before anything is known."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).detach()


def listen(descriptor: int) -> ListeningSocket:
    """Listen on what `new_socket` made. CannotStart when no folder takes the file for a moment."""
    refusals: list[str] = []
    for folder in folders():
        try:
            return listen_in(folder, descriptor)
        except OSError as error:
            refusals.append(f"{folder} ({error.strerror or error})")
    raise CannotStart(
        f"there is no place for the server's sockets: {', '.join(refusals)}; set TMPDIR to a "
        f"folder that can be written and whose path is at most {MAX_FOLDER_BYTES} bytes long"
    )


def address(file: int) -> str:
    """Where others connect to, as ZeroMQ spells it."""
    return f"ipc://{path(file)}"


def path(file: int) -> str:
    return f"/proc/self/fd/{file}"


def folders() -> list[str]:
    """Folders to try. TMPDIR first; tempfile leaves it out when it cannot be written."""
    found = ["/tmp", "/var/tmp", "/dev/shm", f"/run/user/{os.getuid()}"]
    with contextlib.suppress(OSError):
        found.insert(0, tempfile.gettempdir())
    return list(dict.fromkeys(found))


def listen_in(parent: str, descriptor: int) -> ListeningSocket:
    """OSError when nothing can be made there, or its path is too long for a socket's."""
    if len(os.fsencode(parent)) > MAX_FOLDER_BYTES:
        raise OSError(errno.ENAMETOOLONG, "too long a path")
    folder = Path(tempfile.mkdtemp(prefix="vivace-", dir=parent))  # of mode 0700
    place = folder / "socket"
    try:
        with socket.socket(fileno=os.dup(descriptor)) as listening:
            listening.bind(str(place))
            listening.listen(BACKLOG)
        file = os.open(place, os.O_PATH | os.O_CLOEXEC)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    check_connects(file)
    return ListeningSocket(descriptor, file)


def check_connects(file: int) -> None:
    """CannotStart where /proc or the kernel does not lead to a file that is gone."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.connect(path(file))
    except OSError as error:
        raise CannotStart(
            f"processes cannot connect by {path(file)} here ({error.strerror or error}); "
            "mount /proc, and run on Linux itself rather than an emulation of it"
        ) from None
