"""What a rank says while it serves, read as it comes."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Iterable

import msgspec

from vivace.errors import say
from vivace.protocol.message_socket import MessageSocket, SocketClosed
from vivace.protocol.ranks import FromRank, RankFailure

ENDING_SECONDS = 5.0
"""in which the rest of what an ended process said is read"""

log = logging.getLogger(__name__)


class RankInbox:
    """Reads like the socket it is of, from a thread of its own: a rank never waits with a result
    for an engine that is busy with a later step, which may itself wait for that rank."""

    def __init__(self, name: str, control: MessageSocket[FromRank]) -> None:
        self._control = control
        self._messages: queue.SimpleQueue[FromRank | None] = queue.SimpleQueue()
        """None: nothing follows"""
        self._thread = threading.Thread(target=self._read, name=f"{name} says", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while True:
                self._messages.put(self._control.wait())
        except (SocketClosed, msgspec.MsgspecError):
            pass
        except Exception as error:  # whatever it is, somebody waits for the next one
            log.error("what %s cannot be read: %s", self._thread.name, say(error))
        self._messages.put(None)

    def wait(self, timeout: float | None = None) -> FromRank:
        """The next message. Raises TimeoutError, SocketClosed."""
        try:
            message = self._messages.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None
        if message is None:
            self._messages.put(None)
            raise SocketClosed
        return message

    def receive(self) -> list[FromRank]:
        """What a process that has ended said last."""
        self._thread.join(ENDING_SECONDS)
        messages: list[FromRank] = []
        with contextlib.suppress(SocketClosed, TimeoutError):
            while True:
                messages.append(self.wait(0.0))
        return messages


def find_failure(messages: Iterable[FromRank]) -> RankFailure | None:
    return next((one for one in messages if isinstance(one, RankFailure)), None)
