"""Who has a port: its process, where the system lets us see that, and whether it is Vivace."""

from __future__ import annotations

import contextlib
import socket
import textwrap
import time
from pathlib import Path

from vivace.config.http import SERVER

MAX_COMMAND = 120
"""characters of a command line that are shown"""
ANSWER_SECONDS = 2.0
"""for the head of an answer"""
ASKED = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
LARGEST_HEAD = 1 << 14
"""bytes"""


def port_owner(port: int) -> str:
    """`process 4711 (python -m http.server)`, or "" when that cannot be found out."""
    inodes = listening_inodes(port)
    if not inodes:
        return ""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").glob("[0-9]*"):
        if has_socket(process, wanted):
            words = (process / "cmdline").read_bytes().split(b"\0")
            command = b" ".join(words).decode(errors="replace").strip()
            return f"process {process.name} ({shorten(command)})"
    return ""


def shorten(command: str) -> str:
    return textwrap.shorten(command, MAX_COMMAND, placeholder=" ...")


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


def has_socket(process: Path, wanted: set[str]) -> bool:
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                if str(descriptor.readlink()) in wanted:
                    return True
    return False


def is_vivace(port: int) -> bool:
    """Whether a server of Vivace answers at `port` of this machine, whatever it answers: one that
    is not ready or wants a key says who it is, too."""
    head, until = b"", time.monotonic() + ANSWER_SECONDS
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS) as connection,
    ):
        connection.sendall(ASKED)
        while b"\r\n\r\n" not in head and len(head) < LARGEST_HEAD:
            connection.settimeout(max(until - time.monotonic(), 0.001))
            block = connection.recv(LARGEST_HEAD)
            if not block or time.monotonic() > until:
                return False
            head += block
    lines = head.partition(b"\r\n\r\n")[0].lower().split(b"\r\n")
    return f"server: {SERVER}".encode() in lines
