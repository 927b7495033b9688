"""Memory that all processes of one server share: the engine's heartbeat, and a place per frontend.

It is anonymous (memfd), so no disk can be full or read-only behind it; it is reserved in whole
before any process needs it and sealed against shrinking, so touching it never faults; it belongs to
the supervisor, so what a process stored outlives that process however it dies.

Layout: the engine's part, what all frontends share, then one place per frontend: its
heartbeat, then its counters.
"""

from __future__ import annotations

import fcntl
import mmap
import os

ENGINE_BYTES = 64 << 10
REQUEST_LOG_BYTES = 64
HEARTBEAT_BYTES = 4 << 10
COUNTER_BYTES = 256 << 10
PLACE_BYTES = HEARTBEAT_BYTES + COUNTER_BYTES
COMMON_BYTES = ENGINE_BYTES + REQUEST_LOG_BYTES
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class SharedMemory:
    """The supervisor creates and reserves it; a child attaches to the descriptor it inherits.

    Frontends have places 0 to `places` - 1; a frontend that died leaves its place to its successor.
    """

    def __init__(self, descriptor: int, places: int) -> None:
        self.descriptor = descriptor
        self.places = places
        self._map = mmap.mmap(descriptor, size_for(places))

    @property
    def engine(self) -> memoryview:
        return memoryview(self._map)[:ENGINE_BYTES]

    @property
    def request_log(self) -> memoryview:
        """What --log-requests logs by now; any frontend may change it for all."""
        return memoryview(self._map)[ENGINE_BYTES:COMMON_BYTES]

    def heartbeat(self, place: int) -> memoryview:
        start = self._start(place)
        return memoryview(self._map)[start : start + HEARTBEAT_BYTES]

    def counters(self, place: int) -> memoryview:
        start = self._start(place) + HEARTBEAT_BYTES
        return memoryview(self._map)[start : start + COUNTER_BYTES]

    def _start(self, place: int) -> int:
        if not 0 <= place < self.places:
            raise ValueError(f"there is no place {place}; there are {self.places}")
        return COMMON_BYTES + place * PLACE_BYTES


def words(memory: memoryview) -> memoryview:
    """The memory as signed numbers of 8 bytes. One is stored and read at once: whoever looks sees
    the number before or the one after, whoever dies leaves one of them. (`struct.pack_into` clears
    the bytes before it writes them.)"""
    return memory.cast("q")


def new_descriptor() -> int:
    """Empty anonymous memory, for children to inherit before its size is known."""
    return os.memfd_create("vivace", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def reserve(descriptor: int, places: int) -> SharedMemory:
    """Give it its size for good. OSError when there is no memory."""
    os.posix_fallocate(descriptor, 0, size_for(places))
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return SharedMemory(descriptor, places)


def attach(descriptor: int) -> SharedMemory:
    """A child's end. ValueError when the descriptor is no such memory."""
    places, rest = divmod(os.fstat(descriptor).st_size - COMMON_BYTES, PLACE_BYTES)
    if rest or places < 0:
        raise ValueError(f"descriptor {descriptor} is not the memory of a server")
    return SharedMemory(descriptor, places)


def size_for(places: int) -> int:
    return COMMON_BYTES + places * PLACE_BYTES
