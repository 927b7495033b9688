"""The listening socket, bound before anything else starts, shared by all frontends; and how many
connections a process may have."""

from __future__ import annotations

import contextlib
import errno
import resource
import socket

from vivace.doctor.port import port_owner
from vivace.errors import CannotStart

BACKLOG = 4096
FEW_OPEN_FILES = 512
"""below it a server that takes 256 requests at once may have no room for their connections"""
OWN_OPEN_FILES = 32
"""of a frontend, about: libraries, sockets to the others, logs"""
MAX_OPEN_FILES = 1 << 16


class PortInUse(Exception):
    """Somebody else listens there, perhaps not for long; the text is what the user sees."""


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket, inheritable; port 0 takes a free one. Raises PortInUse, and
    CannotStart for an address that will not do at another time either."""
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError, OverflowError) as error:
        raise CannotStart(
            f"--host {host!r} is no address of this machine: {error}. Use 127.0.0.1 or 0.0.0.0"
        ) from error
    family, kind, protocol, _, address = found[0]
    try:
        sock = socket.socket(family, kind, protocol)
    except OSError as error:  # a kernel without IPv6, for one
        raise bind_error(error, host, port) from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise bind_error(error, host, port) from error
    return sock


def bind_error(error: OSError, host: str, port: int) -> PortInUse | CannotStart:
    if error.errno == errno.EADDRINUSE:
        owner = port_owner(port)
        if owner:
            return PortInUse(f"port {port} is in use by {owner}; stop it or take another --port")
        return PortInUse(
            f"port {port} is in use, by a process that this user may not see or by an outgoing "
            "connection (`ss -tanp`); choose another with --port"
        )
    if error.errno == errno.EACCES:
        return CannotStart(f"--port {port} needs privileges; choose one above 1023")
    if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        return CannotStart(f"--host {host} is no address of this machine; use 127.0.0.1 or 0.0.0.0")
    return CannotStart(f"cannot listen on --host {host} --port {port}: {error.strerror}")


def allow_open_files() -> str | None:
    """Raise this process's limit, which its children inherit, as far as it may: a connection is an
    open file, and the usual limit of 1,024 is from another time. A warning where few are left.
    Raises CannotStart where none is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY or allowed >= FEW_OPEN_FILES:
        return None
    limited = f"a process may open {allowed} files (ulimit -Hn)"
    left = allowed - OWN_OPEN_FILES
    if left <= 0:
        raise CannotStart(f"{limited}, and the server itself needs {OWN_OPEN_FILES}: raise it")
    return (
        f"{limited}, and every connection is one: "
        f"with about {left} connections at once, more are reset"
    )


def local_url(sock: socket.socket) -> str:
    """The address a local client uses."""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
