"""The last words to the nodes behind the first."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from vivace.errors import CannotStart
from vivace.launch.handshake import Guest
from vivace.launch.node_messages import FromNode, ServerEnd
from vivace.launch.nodes import LARGEST_HELLO, open_door
from vivace.protocol.message_socket import MessageSocket

if TYPE_CHECKING:
    from vivace.config.config import Config

FAREWELL_SECONDS = 8.0
"""in which a node that has lost its engine has ended its ranks, and calls again"""
LOOK_SECONDS = 0.2

log = logging.getLogger(__name__)


def tell_nodes(config: Config, nodes: Collection[int], end: ServerEnd) -> None:
    """These call again, as after any death of an engine: they hear that none follows. Returns when
    all have."""
    try:
        door = open_door(config)
    except CannotStart as error:
        log.warning("Other nodes do not hear that the server has ended: %s", error)
        return
    left, deadline = set(nodes), time.monotonic() + FAREWELL_SECONDS
    with contextlib.closing(door), contextlib.ExitStack() as guests:
        while left and time.monotonic() < deadline:
            for guest in door.wait(LOOK_SECONDS):
                guests.enter_context(guest.sock)
                tell(guest, end)
                left.discard(guest.intent.number)


def tell(guest: Guest, end: ServerEnd) -> None:
    MessageSocket(guest.sock, msgspec.msgpack.Decoder(FromNode), LARGEST_HELLO).send(end)
