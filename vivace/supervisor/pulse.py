"""The engine's pulse: two numbers in shared memory, and the watchdog that looks at them.

The engine counts a beat at each turn of its loop and says whether it rests (waits for messages).
That costs nanoseconds, needs no thread, and shows a stall even while the engine holds the
interpreter lock or is stopped from outside.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from vivace.protocol.channel import ToEngine, ToFrontend

FORMAT = struct.Struct("<qq")
Alarm = Literal["quiet", "soft", "hard"]


class Pulse:
    """Both ends of the shared numbers. The writer beats, the reader looks."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, mmap.PAGESIZE)
            self._memory = mmap.mmap(descriptor, mmap.PAGESIZE)
        finally:
            os.close(descriptor)
        self._beats = 0

    def beat(self, *, resting: bool) -> None:
        self._beats += 1
        FORMAT.pack_into(self._memory, 0, self._beats, resting)

    def look(self) -> tuple[int, bool]:
        """(beats, resting)"""
        beats, resting = FORMAT.unpack_from(self._memory, 0)
        return beats, bool(resting)

    def close(self) -> None:
        self._memory.close()


class Receiver(Protocol):
    def receive(self, wait: float | None) -> list[ToEngine]: ...
    def send(self, frontend: int, message: ToFrontend) -> None: ...
    def wake(self) -> None: ...


class PulsedMailbox:
    """A mailbox that beats whenever the loop comes by for messages."""

    def __init__(self, mailbox: Receiver, pulse: Pulse) -> None:
        self._mailbox = mailbox
        self._pulse = pulse

    def receive(self, wait: float | None) -> list[ToEngine]:
        if wait == 0:
            self._pulse.beat(resting=False)
            return self._mailbox.receive(0)
        self._pulse.beat(resting=True)
        messages = self._mailbox.receive(wait)
        self._pulse.beat(resting=False)
        return messages

    def send(self, frontend: int, message: ToFrontend) -> None:
        self._mailbox.send(frontend, message)

    def wake(self) -> None:
        self._mailbox.wake()


@dataclass(kw_only=True)
class Watchdog:
    """Raises the alarm when an engine that has work makes no progress. Times are seconds.

    `soft` alarms are raised once per stall, at `soft` seconds; the hard one at `hard`.
    None or 0 switches one off."""

    hard: float | None
    soft: float | None
    _beats: int = -1
    _since: float = 0.0
    _warned: bool = False

    def reset(self, now: float) -> None:
        """A new engine runs, or the engine became ready."""
        self._beats, self._since, self._warned = -1, now, False

    def check(self, beats: int, resting: bool, now: float) -> Alarm:
        if resting or beats != self._beats:
            self._beats, self._since, self._warned = beats, now, False
            return "quiet"
        stalled = now - self._since
        if self.hard and stalled >= self.hard:
            return "hard"
        if self.soft and stalled >= self.soft and not self._warned:
            self._warned = True
            return "soft"
        return "quiet"

    def stalled(self, now: float) -> float:
        return now - self._since
