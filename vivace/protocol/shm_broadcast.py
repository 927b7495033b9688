"""One process tells several others of its machine the same: written once, into memory all map.

The memory is a ring of bytes behind a line of words for the writer and some for each reader. A
message lies there in parts, each behind a word with its length and whether more of it follows; a
part never crosses the end of the ring. Positions count bytes and never start again. The writer
waits only where a reader is a whole ring behind it, and not for one that has died (`leave`).

Readers answer each message with a number in their words, in the order of the messages. Who waits
sleeps on a futex; nobody spins, because ranks may outnumber cores.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time

from vivace.errors import one_line_without_room
from vivace.protocol.futex import Futex
from vivace.protocol.shared_memory import Fence

RING_BYTES = 1 << 20
LINE_WORDS = 8
ANSWERS = 120
"""of a reader that are kept: at most so many messages may be without one"""
READER_WORDS = LINE_WORDS + ANSWERS
WRITTEN, CLOSED = 0, 1
"""words of the writer's line: its position; not 0: nothing follows"""
READ, ANSWERED, GONE, AWAITED = 0, 1, 2, 3
"""of a reader's: its position; messages it has answered; not 0: it has died; not 0: the writer
sleeps until it answers"""
ROOM_SECONDS = 0.001
"""between two looks at readers that are a ring behind"""


class BroadcastClosed(Exception):
    """The writer has closed, and all that it wrote is read."""


class BroadcastMemory:
    """`descriptor`: a file that only the writer and its readers have; all give it its size, which
    is reserved, so that touching it never faults."""

    def __init__(self, descriptor: int, readers: int) -> None:
        self.readers = readers
        self.start = pages(8 * (LINE_WORDS + readers * READER_WORDS))
        with one_line_without_room("plans for ranks", self.start + RING_BYTES):
            os.posix_fallocate(descriptor, 0, self.start + RING_BYTES)
            self._map = mmap.mmap(descriptor, self.start + RING_BYTES)
        self.bytes = memoryview(self._map)
        self.words = self.bytes.cast("q")
        """signed, as in protocol/shared_memory.py"""
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.fence = Fence()
        """it may let a sleeper miss its bell, so whoever sleeps looks again after a while"""

    def line(self, reader: int) -> int:
        """Index of the first word of a reader's."""
        return LINE_WORDS + reader * READER_WORDS

    def futex(self, word: int) -> Futex:
        return Futex(self._address + 8 * word)


def pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


class BroadcastWriter:
    """`send` from one thread; `leave` from any."""

    def __init__(self, descriptor: int, readers: int) -> None:
        self._memory = BroadcastMemory(descriptor, readers)
        self._words = self._memory.words
        self._lines = [self._memory.line(reader) for reader in range(readers)]
        self._bell = self._memory.futex(WRITTEN)
        self._bells = [self._memory.futex(line + ANSWERED) for line in self._lines]

    def send(self, message: bytes) -> None:
        """To all readers. Waits where one has not read what lies a whole ring before."""
        rest = memoryview(message)
        while True:
            part = rest[: self._wait_for_room(len(rest))]
            rest = rest[len(part) :]
            self._put(part, more=bool(rest))
            if not rest:
                break
        self._bell.wake()

    def answer(self, reader: int, count: int, seconds: float) -> int | None:
        """What a reader has answered to the message `count` (the first is 1); None where it has not
        for `seconds`, or has died."""
        line = self._lines[reader]
        if self._words[line + ANSWERED] < count and not self._sleep(reader, count, seconds):
            return None
        self._memory.fence()
        return self._words[line + LINE_WORDS + count % ANSWERS]

    def _sleep(self, reader: int, count: int, seconds: float) -> bool:
        """Until it has answered so many."""
        line, words = self._lines[reader], self._words
        deadline = time.monotonic() + seconds
        words[line + AWAITED] = 1
        self._memory.fence()
        while (answered := words[line + ANSWERED]) < count:
            left = deadline - time.monotonic()
            if left <= 0 or words[line + GONE]:
                break
            self._bells[reader].wait(answered, left)
        words[line + AWAITED] = 0
        return answered >= count

    def leave(self, reader: int) -> None:
        """It has died: nobody waits for it any more."""
        self._words[self._lines[reader] + GONE] = 1
        self._bells[reader].wake()

    def close(self) -> None:
        self._words[CLOSED] = 1
        self._bell.wake()

    def _wait_for_room(self, wanted: int) -> int:
        """Bytes that the next part may have: all that is wanted, or up to the ring's end."""
        written = self._words[WRITTEN]
        straight = RING_BYTES - written % RING_BYTES
        needed = min(8 + wanted, straight, RING_BYTES // 2)
        while (free := RING_BYTES - (written - self._slowest(written))) < needed:
            self._bell.wake()
            time.sleep(ROOM_SECONDS)
        return min(free, straight) - 8

    def _slowest(self, written: int) -> int:
        words = self._words
        return min(
            (words[at + READ] for at in self._lines if not words[at + GONE]), default=written
        )

    def _put(self, part: memoryview, *, more: bool) -> None:
        written = self._words[WRITTEN]
        at = self._memory.start + written % RING_BYTES
        self._words[at // 8] = len(part) << 1 | more
        self._memory.bytes[at + 8 : at + 8 + len(part)] = part
        self._memory.fence()
        self._words[WRITTEN] = written + part_bytes(len(part))


class BroadcastReader:
    """One of them; from one thread."""

    def __init__(self, descriptor: int, readers: int, index: int) -> None:
        self._memory = BroadcastMemory(descriptor, readers)
        self._words = self._memory.words
        self._line = self._memory.line(index)
        self._bell = self._memory.futex(WRITTEN)
        self._answer_bell = self._memory.futex(self._line + ANSWERED)
        self._position = self._words[self._line + READ]
        self._parts: list[bytes] = []

    def receive(self, seconds: float) -> bytes | None:
        """The next message; None where there is none for `seconds`. Raises BroadcastClosed."""
        deadline = time.monotonic() + seconds
        while True:
            closed = self._words[CLOSED]  # before its position: behind that nothing is written
            self._memory.fence()
            if self._words[WRITTEN] != self._position:
                if self._take():
                    parts, self._parts = self._parts, []
                    return b"".join(parts)
            elif closed:
                raise BroadcastClosed
            elif (left := deadline - time.monotonic()) > 0:
                self._bell.wait(self._position, left)
            else:
                return None

    def answer(self, number: int) -> None:
        """To the oldest message that has none."""
        answered = self._words[self._line + ANSWERED] + 1
        self._words[self._line + LINE_WORDS + answered % ANSWERS] = number
        self._memory.fence()
        self._words[self._line + ANSWERED] = answered
        self._memory.fence()
        if self._words[self._line + AWAITED]:
            self._answer_bell.wake()

    def _take(self) -> bool:
        """The next part; True: the message is whole."""
        self._memory.fence()
        at = self._memory.start + self._position % RING_BYTES
        header = self._words[at // 8]
        length, more = header >> 1, header & 1
        self._parts.append(bytes(self._memory.bytes[at + 8 : at + 8 + length]))
        self._memory.fence()
        self._position += part_bytes(length)
        self._words[self._line + READ] = self._position
        return not more


def part_bytes(length: int) -> int:
    """Of a part and the word before it, filled up to whole words."""
    return 8 + (-(-length // 8) * 8)
