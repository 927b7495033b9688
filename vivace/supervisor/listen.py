"""The listening socket, bound before anything else starts, shared by all frontends; and how many
connections a process may have."""

from __future__ import annotations

import contextlib
import errno
import resource
import socket
import textwrap
from pathlib import Path

BACKLOG = 4096
MOST_OPEN_FILES = 1 << 16
LONGEST_COMMAND = 120
"""characters of a command line that are shown"""


class ListenError(Exception):
    """The address cannot be bound; the text is what the user sees."""


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket, inheritable; port 0 takes a free one. Raises ListenError."""
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError, OverflowError) as error:
        raise ListenError(
            f"--host {host!r} is no address of this machine: {error}. Use 127.0.0.1 or 0.0.0.0"
        ) from error
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ListenError(explain(error, host, port)) from error
    return sock


def explain(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        owner = port_owner(port)
        by = f" by {owner}" if owner else ""
        return f"port {port} is in use{by}; stop it or choose another with --port"
    if error.errno == errno.EACCES:
        return f"port {port} needs privileges; choose one above 1023 with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is no address of this machine; use 127.0.0.1 or 0.0.0.0"
    return f"cannot listen on {host}:{port}: {error.strerror}"


def port_owner(port: int) -> str:
    """`process 4711 (python -m http.server)`, or "" when that cannot be found out."""
    inodes = listening_inodes(port)
    if not inodes:
        return ""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").glob("[0-9]*"):
        if holds_socket(process, wanted):
            words = (process / "cmdline").read_bytes().split(b"\0")
            command = b" ".join(words).decode(errors="replace").strip()
            return f"process {process.name} ({shortened(command)})"
    return ""


def shortened(command: str) -> str:
    return textwrap.shorten(command, LONGEST_COMMAND, placeholder=" ...")


def listening_inodes(port: int) -> set[str]:
    """Inodes of the TCP sockets that listen on `port` (state 0A in /proc/net/tcp)."""
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    inodes.add(fields[9])
    return inodes


def holds_socket(process: Path, wanted: set[str]) -> bool:
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                if str(descriptor.readlink()) in wanted:
                    return True
    return False


def allow_open_files() -> None:
    """Raise this process's limit, which its children inherit, as far as it may: a connection is an
    open file, and the usual limit of 1,024 is from another time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def url_of(sock: socket.socket) -> str:
    """The address a local client uses."""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
