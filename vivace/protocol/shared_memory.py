"""Memory that all processes of one server share: the engine's heartbeat, and a place per frontend.

It is anonymous (memfd), so no disk can be full or read-only behind it; it is reserved in whole
before any process needs it and sealed against shrinking, so touching it never faults; it belongs to
the supervisor, so what a process stored outlives that process however it dies.

Layout: a part for each engine, what all frontends share, a heartbeat and counters per frontend.
"""

from __future__ import annotations

import mmap
import os
import threading

from vivace.system_calls import fix_size, open_memory

ENGINE_BYTES = 64 << 10
REQUEST_LOG_BYTES = 64
HEARTBEAT_BYTES = 4 << 10
COUNTER_BYTES = 512 << 10
PLACE_BYTES = HEARTBEAT_BYTES + COUNTER_BYTES


class SharedMemory:
    """The supervisor creates and reserves it; a child attaches to the descriptor it inherits.

    Frontends have places 0 to `places` - 1; a frontend that died leaves its place to its successor.
    Engines are 0 to `engines` - 1, and so is what follows one that died.
    """

    def __init__(self, descriptor: int, places: int, engines: int = 1) -> None:
        self.descriptor = descriptor
        self.places = places
        self.engines = engines
        self._map = mmap.mmap(descriptor, size_for(places, engines))

    def engine(self, index: int = 0) -> memoryview:
        if not 0 <= index < self.engines:
            raise ValueError(f"there is no engine {index}; there are {self.engines}")
        return memoryview(self._map)[index * ENGINE_BYTES : (index + 1) * ENGINE_BYTES]

    @property
    def request_log(self) -> memoryview:
        """What --log-requests logs by now; any frontend may change it for all."""
        start = self.engines * ENGINE_BYTES
        return memoryview(self._map)[start : start + REQUEST_LOG_BYTES]

    def heartbeat(self, place: int) -> memoryview:
        start = self._start(place)
        return memoryview(self._map)[start : start + HEARTBEAT_BYTES]

    def counters(self, place: int) -> memoryview:
        start = self._start(place) + HEARTBEAT_BYTES
        return memoryview(self._map)[start : start + COUNTER_BYTES]

    def _start(self, place: int) -> int:
        if not 0 <= place < self.places:
            raise ValueError(f"there is no place {place}; there are {self.places}")
        return common_bytes(self.engines) + place * PLACE_BYTES


def words(memory: memoryview) -> memoryview:
    """The memory as signed numbers of 8 bytes. One is stored and read at once: whoever looks sees
    the number before or the one after, whoever dies leaves one of them. (`struct.pack_into` clears
    the bytes before it writes them.)"""
    return memory.cast("q")


class Fence:
    """Called between two stores: others see the first one before the second, as a lock does it; on
    some machines (aarch64) a lock lets a load pass an earlier store. Who sees the second one calls
    it, too, before it reads what the first one stored."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            pass


def new_descriptor() -> int:
    """Empty anonymous memory, for children to inherit before its size is known."""
    return open_memory("vivace")


def reserve(descriptor: int, places: int, engines: int = 1) -> SharedMemory:
    """Give it its size for good. OSError when there is no memory."""
    os.posix_fallocate(descriptor, 0, size_for(places, engines))
    fix_size(descriptor)
    return SharedMemory(descriptor, places, engines)


def attach(descriptor: int, engines: int = 1) -> SharedMemory:
    """A child's end. ValueError when the descriptor is no such memory."""
    places, rest = divmod(os.fstat(descriptor).st_size - common_bytes(engines), PLACE_BYTES)
    if rest or places < 0:
        raise ValueError(f"descriptor {descriptor} is not the memory of a server")
    return SharedMemory(descriptor, places, engines)


def common_bytes(engines: int) -> int:
    return engines * ENGINE_BYTES + REQUEST_LOG_BYTES


def size_for(places: int, engines: int) -> int:
    return common_bytes(engines) + places * PLACE_BYTES
