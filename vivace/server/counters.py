"""Counters of one process that others can read, and that outlive it however it dies.

They lie in memory that processes share: adding is a store, no system call, and what was stored
stays when the process is killed. Its successor in the same place goes on counting.

Layout, in native byte order: 8 bytes with the length used, then records of
(8 bytes: length of the name; the name, padded to a multiple of 8; 8 bytes: the value).
"""

from __future__ import annotations

import logging
import struct
from collections import Counter
from collections.abc import Iterator

import msgspec

log = logging.getLogger("vivace.server")

NUMBER = struct.Struct("q")

Key = tuple[str, ...]
names = msgspec.json.Decoder(Key)


class Counters:
    """The counters in one piece of memory; one thread adds. New memory is all zeros."""

    def __init__(self, memory: memoryview | bytearray) -> None:
        self._memory = memoryview(memory)
        self._places = dict(records(self._memory))
        self._full = False
        if not self._places:
            NUMBER.pack_into(self._memory, 0, NUMBER.size)

    def add(self, key: Key, amount: int = 1) -> None:
        place = self._places.get(key)
        if place is None:
            place = self._new(key)
            if place is None:
                return
        (value,) = NUMBER.unpack_from(self._memory, place)
        NUMBER.pack_into(self._memory, place, value + amount)

    def reset(self, kind: str) -> None:
        """Set all counters to 0 whose key begins with `kind`."""
        for key, place in self._places.items():
            if key[0] == kind:
                NUMBER.pack_into(self._memory, place, 0)

    def counts(self) -> Counter[Key]:
        return read_counts(self._memory)

    def _new(self, key: Key) -> int | None:
        """A record with the value 0; returns where its value is, None when there is no room."""
        name = msgspec.json.encode(key)
        (begin,) = NUMBER.unpack_from(self._memory, 0)
        place = begin + NUMBER.size + padded(len(name))
        end = place + NUMBER.size
        if end > len(self._memory):
            if not self._full:
                log.error("no room for the counter %s: what is new is not counted", key)
            self._full = True
            return None
        NUMBER.pack_into(self._memory, begin, len(name))
        self._memory[begin + NUMBER.size : begin + NUMBER.size + len(name)] = name
        NUMBER.pack_into(self._memory, place, 0)
        NUMBER.pack_into(self._memory, 0, end)  # last: a reader sees whole records only
        self._places[key] = place
        return place


def read_counts(memory: memoryview) -> Counter[Key]:
    """The counters of any process that shares the memory, alive or dead."""
    counts: Counter[Key] = Counter()
    for key, place in records(memory):
        (counts[key],) = NUMBER.unpack_from(memory, place)
    return counts


def records(memory: memoryview) -> Iterator[tuple[Key, int]]:
    """(key, where its value is); memory that nobody has counted in has none."""
    (end,) = NUMBER.unpack_from(memory, 0)
    place = NUMBER.size
    while place < end:
        (length,) = NUMBER.unpack_from(memory, place)
        place += NUMBER.size
        key = names.decode(memory[place : place + length])
        place += padded(length)
        yield key, place
        place += NUMBER.size


def padded(length: int) -> int:
    return -(-length // NUMBER.size) * NUMBER.size
