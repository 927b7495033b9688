"""Connections whose other machine has gone.

A socket may be full for as long as the process at its other end computes, so the system's time
limit for what is sent (TCP_USER_TIMEOUT) would end connections that are in order. A kernel that has
no room answers, too; what counts is whether it answers at all.
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time

from vivace.launch.handshake import GONE_SECONDS, ask_when_idle

LOOK_SECONDS = 0.5
STATE, RETRANSMITS, UNACKED, LAST_ACK = 0, 2, 12, 20
"""places in struct tcp_info (linux/tcp.h): state; times that the oldest bytes were sent again;
packets without an answer; milliseconds since the last one"""
TCP_INFO = struct.Struct("=8B13I")
CLOSED = 7
"""the state of a connection that the kernel gave up"""

log = logging.getLogger(__name__)


class PeerWatch:
    """Looks at connections and shuts down those whose other machine does not answer: who waits for
    them finds the end. It forgets those that their owner has closed."""

    def __init__(self) -> None:
        self._peers: list[tuple[socket.socket, str]] = []
        self._lock = threading.Lock()
        self._looks = False

    def add(self, sock: socket.socket, name: str) -> None:
        """`name`: of who is at the other end."""
        ask_when_idle(sock)
        with self._lock:
            self._peers.append((sock, name))
            if self._looks or not hasattr(socket, "TCP_INFO"):
                return
            self._looks = True
        threading.Thread(target=self._look, name="connections", daemon=True).start()

    def _look(self) -> None:
        """While any is open."""
        while self._looks:
            time.sleep(LOOK_SECONDS)
            with self._lock:
                self._peers = [peer for peer in self._peers if peer[0].fileno() >= 0]
                found = [peer for peer in self._peers if is_silent(peer[0])]
                self._peers = [peer for peer in self._peers if peer not in found]
                self._looks = bool(self._peers)
            for sock, name in found:
                self._end(sock, name)

    def _end(self, sock: socket.socket, name: str) -> None:
        log.error(
            "%s has not answered for %g s: its machine or the network is gone", name, GONE_SECONDS
        )
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the system was faster


def is_silent(sock: socket.socket) -> bool:
    """Its other machine has not answered for GONE_SECONDS, though it was asked: by bytes that were
    sent again, or while nothing was on its way (then the system has given it up)."""
    try:
        found = TCP_INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size))
    except OSError:  # closed, or no connection over a network
        return False
    asked = found[STATE] == CLOSED or (found[RETRANSMITS] and found[UNACKED])
    return bool(asked) and found[LAST_ACK] >= 1000 * GONE_SECONDS
