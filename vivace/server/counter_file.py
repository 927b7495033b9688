"""Counters of one process that others can read, and that outlive it however it dies.

They lie in a file that is mapped into memory: adding is a store, no system call, and what was
stored stays in the file when the process is killed. The file is locked as long as its writer lives.

Layout, in native byte order: 8 bytes with the length used, then records of
(8 bytes: length of the name; the name, padded to a multiple of 8; 8 bytes: the value).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections import Counter
from pathlib import Path

import msgspec

NUMBER = struct.Struct("q")
FIRST_SIZE = 1 << 16

Key = tuple[str, ...]
names = msgspec.json.Decoder(Key)


class CounterFile:
    """The counters of this process; one thread adds. Without a path nobody else sees them."""

    def __init__(self, path: Path | None = None) -> None:
        """Raises OSError when the file exists already."""
        self._places: dict[Key, int] = {}
        if path is None:
            # private: a shared mapping without a file cannot grow
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._map = mmap.mmap(-1, FIRST_SIZE, flags=flags)
        else:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            self._lock = file  # kept open: the kernel releases the lock with the process
            fcntl.flock(file, fcntl.LOCK_EX)
            os.ftruncate(file, FIRST_SIZE)
            self._map = mmap.mmap(file, FIRST_SIZE)
        NUMBER.pack_into(self._map, 0, NUMBER.size)

    def add(self, key: Key, amount: int = 1) -> None:
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = self._new(key)
        (value,) = NUMBER.unpack_from(self._map, place)
        NUMBER.pack_into(self._map, place, value + amount)

    def counts(self) -> Counter[Key]:
        return parse(self._map)

    def _new(self, key: Key) -> int:
        """A record with the value 0; returns where its value is."""
        name = msgspec.json.encode(key)
        (begin,) = NUMBER.unpack_from(self._map, 0)
        place = begin + NUMBER.size + padded(len(name))
        end = place + NUMBER.size
        while end > len(self._map):
            self._map.resize(2 * len(self._map))
        NUMBER.pack_into(self._map, begin, len(name))
        self._map[begin + NUMBER.size : begin + NUMBER.size + len(name)] = name
        NUMBER.pack_into(self._map, place, 0)
        NUMBER.pack_into(self._map, 0, end)  # last: a reader sees whole records only
        return place


def read_counts(path: Path) -> tuple[Counter[Key], bool]:
    """(the counters in a file, whether their process is alive). Any process may read."""
    with path.open("rb") as file:
        alive = is_locked(file.fileno())
        return parse(file.read()), alive


def is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def parse(data: bytes | mmap.mmap) -> Counter[Key]:
    """Records -> counts; an empty file, whose writer has only just begun, has none."""
    counts: Counter[Key] = Counter()
    (end,) = NUMBER.unpack_from(data, 0) if len(data) else (0,)
    place = NUMBER.size
    while place < end:
        (length,) = NUMBER.unpack_from(data, place)
        place += NUMBER.size
        key = names.decode(data[place : place + length])
        place += padded(length)
        (counts[key],) = NUMBER.unpack_from(data, place)
        place += NUMBER.size
    return counts


def padded(length: int) -> int:
    return -(-length // NUMBER.size) * NUMBER.size
