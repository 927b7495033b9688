"""Counters of the HTTP layer, in memory that processes share: they outlive a process that dies.

Adding is a store, no system call; the successor of a process goes on counting in its place. Labels
come from the route table, so their number is bounded.

Layout of the memory, in native byte order: 8 bytes with the length used, then records of
(8 bytes: length of the name; the name, padded to a multiple of 8; 8 bytes: the value).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from vivace.protocol.heartbeat import FrontendHeartbeat
from vivace.protocol.shared_memory import COUNTER_BYTES, SharedMemory, words

log = logging.getLogger("vivace.server")

NUMBER_BYTES = 8

Key = tuple[str, ...]
decode_key = msgspec.json.Decoder(Key).decode


class Counters:
    """The counters in one piece of memory; one thread adds. New memory is all zeros."""

    def __init__(self, memory: memoryview | bytearray) -> None:
        self._memory = memoryview(memory)
        self._places = dict(records(self._memory))
        self._full = False
        self._words = words(self._memory)
        if not self._places:
            self._words[0] = NUMBER_BYTES

    def add(self, key: Key, amount: int = 1) -> None:
        place = self._places.get(key)
        if place is None:
            place = self._new(key)
            if place is None:
                return
        self._words[place // NUMBER_BYTES] += amount

    def reset(self, kind: str) -> None:
        """Set all counters to 0 whose key begins with `kind`."""
        for key, place in self._places.items():
            if key[0] == kind:
                self._words[place // NUMBER_BYTES] = 0

    def counts(self) -> Counter[Key]:
        return read_counts(self._memory)

    def _new(self, key: Key) -> int | None:
        """A record with the value 0; returns where its value is, None when there is no room."""
        name = msgspec.json.encode(key)
        begin = self._words[0]
        place = begin + NUMBER_BYTES + pad(len(name))
        end = place + NUMBER_BYTES
        if end > len(self._memory):
            if not self._full:
                log.error("no room for the counter %s: what is new is not counted", key)
            self._full = True
            return None
        self._words[begin // NUMBER_BYTES] = len(name)
        self._memory[begin + NUMBER_BYTES : begin + NUMBER_BYTES + len(name)] = name
        self._words[place // NUMBER_BYTES] = 0
        self._words[0] = end  # last: a reader sees whole records only
        self._places[key] = place
        return place


def read_counts(memory: memoryview) -> Counter[Key]:
    """The counters of any process that shares the memory, alive or dead."""
    counts: Counter[Key] = Counter()
    numbers = words(memory)
    for key, place in records(memory):
        counts[key] = numbers[place // NUMBER_BYTES]
    return counts


def records(memory: memoryview) -> Iterator[tuple[Key, int]]:
    """(key, where its value is); memory that nobody has counted in has none."""
    numbers = words(memory)
    end = numbers[0]
    place = NUMBER_BYTES
    while place < end:
        length = numbers[place // NUMBER_BYTES]
        place += NUMBER_BYTES
        key = decode_key(memory[place : place + length])
        place += pad(length)
        yield key, place
        place += NUMBER_BYTES


def pad(length: int) -> int:
    return -(-length // NUMBER_BYTES) * NUMBER_BYTES


METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})
OTHER = "other"
REQUESTS, RESPONSES, ACTIVE = "requests", "responses", "active"
UNSERVED_MODEL, UNKNOWN_FIELD = "unserved_model", "unknown_field"
TOOL_CALLS = "tool_calls"
CPU_MILLISECONDS = "cpu_milliseconds"


class HttpMetrics:
    """Requests and answers by endpoint, counted in the request turn.

    Frontend processes that share a port keep their counters in one memory, and each of them shows
    the sum; the counts of a process that died stay in it.
    """

    def __init__(self, memory: SharedMemory | None = None, place: int = 0) -> None:
        """`place` of this process in the memory; alone when that is None."""
        self._memory = memory
        self._place = place
        own = bytearray(COUNTER_BYTES) if memory is None else memory.counters(place)
        self._counters = Counters(own)
        self._counters.reset(ACTIVE)
        self._cpu = 0

    def begin(self, endpoint: str | None, method: str) -> tuple[str, str]:
        """Count a request; `endpoint` is a path of the route table or None for anything else."""
        label = (endpoint or OTHER, method if method in METHODS else OTHER)
        self._counters.add((REQUESTS, *label))
        self._counters.add((ACTIVE, *label))
        self._note_cpu()
        return label

    def end(self, label: tuple[str, str], status: int) -> None:
        self._counters.add((ACTIVE, *label), -1)
        self._counters.add((RESPONSES, *label, str(status)))

    def note(self, kind: str) -> None:
        """Count a request that asked for UNSERVED_MODEL, or brought an UNKNOWN_FIELD."""
        self._counters.add((kind,))

    def note_tool_call(self, label: str, *, failed: bool) -> None:
        """Count a call that a tool server has made, or could not."""
        self._counters.add((TOOL_CALLS, label, "failed" if failed else "completed"))

    def _note_cpu(self) -> None:
        spent = int(time.process_time() * 1000)
        self._counters.add((CPU_MILLISECONDS,), spent - self._cpu)
        self._cpu = spent

    def totals(self) -> Counter[Key]:
        """The sum over all processes; nothing is active in those that died."""
        total = self._counters.counts()
        memory = self._memory
        if memory is None:
            return total
        for place in set(range(memory.places)) - {self._place}:
            alive = FrontendHeartbeat(memory.heartbeat(place)).alive
            for key, count in read_counts(memory.counters(place)).items():
                if alive or key[0] != ACTIVE:
                    total[key] += count
        return total

    def families(self, names: list[str], values: list[str]) -> Iterator[Metric]:
        """Prometheus families; `names` and `values` are the labels every metric carries."""
        place = ["endpoint", "method"]
        totals = self.totals()
        cpu = CounterMetricFamily(
            "sglang:process_cpu_seconds",
            "Process cpu seconds.",
            labels=[*names, "component"],
        )
        cpu.add_metric([*values, "tokenizer"], totals.pop((CPU_MILLISECONDS,), 0) / 1000)
        yield cpu
        found = {
            REQUESTS: CounterMetricFamily(
                "sglang:http_requests",
                "HTTP requests received, by endpoint and method.",
                labels=[*names, *place],
            ),
            RESPONSES: CounterMetricFamily(
                "sglang:http_responses",
                "HTTP responses sent, by endpoint, method and status.",
                labels=[*names, *place, "status_code"],
            ),
            UNSERVED_MODEL: CounterMetricFamily(
                "vivace:unserved_model_requests",
                "Requests for a model name that is not served, answered by the served model.",
                labels=names,
            ),
            UNKNOWN_FIELD: CounterMetricFamily(
                "vivace:unknown_field_requests",
                "Requests with a field that this server does not know and ignored.",
                labels=names,
            ),
            TOOL_CALLS: CounterMetricFamily(
                "vivace:tool_calls",
                "Calls of tools, by the server that made them and how they ended.",
                labels=[*names, "tool_server", "outcome"],
            ),
            ACTIVE: GaugeMetricFamily(
                "sglang:http_requests_active",
                "HTTP requests in progress, by endpoint and method.",
                labels=[*names, *place],
            ),
        }
        for (kind, *labels), count in totals.items():
            found[kind].add_metric([*values, *labels], count)
        yield from found.values()
