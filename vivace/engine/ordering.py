"""Who of the waiting is next. One class per `--schedule-policy`."""

from __future__ import annotations

import random
from typing import Protocol

from vivace.engine.sequence import Sequence
from vivace.kv.leases import Leases
from vivace.kv.prefix_tree import TOKEN_BYTES
from vivace.registry import Registry

LPM_LIMIT = 128
"""above so many waiting sequences, matching them all costs more than it gains"""


class Order(Protocol):
    """Sorts the waiting queue in place, next first. Constructed as `Order(leases, seed)`.

    `lasting`: sequences that wait keep their order, so sorting again after an arrival is enough.
    """

    lasting: bool

    def sort(self, waiting: list[Sequence]) -> None: ...


class MakeOrder(Protocol):
    def __call__(self, leases: Leases, seed: int) -> Order: ...


ORDERS: Registry[MakeOrder] = Registry(
    "schedule policy",
    {
        "fcfs": "vivace.engine.ordering:Fcfs",
        "lpm": "vivace.engine.ordering:Lpm",
        "dfs-weight": "vivace.engine.ordering:DfsWeight",
        "lof": "vivace.engine.ordering:Lof",
        "random": "vivace.engine.ordering:Random",
        "priority": "vivace.engine.ordering:Priority",
    },
)


class Fcfs:
    """By importance (all equal without priority scheduling), then by arrival."""

    lasting = True

    def __init__(self, leases: Leases, seed: int) -> None:
        pass

    def sort(self, waiting: list[Sequence]) -> None:
        waiting.sort(key=lambda sequence: (-sequence.importance, sequence.ticket))


class Priority(Fcfs):
    """The name `priority`: the order that priority scheduling gives to fcfs."""


class Lof:
    """Longest max_new_tokens first."""

    lasting = True

    def __init__(self, leases: Leases, seed: int) -> None:
        pass

    def sort(self, waiting: list[Sequence]) -> None:
        waiting.sort(
            key=lambda sequence: (
                -sequence.importance,
                -sequence.request.sampling.max_new_tokens,
                sequence.ticket,
            )
        )


class Lpm:
    """Longest cached prefix first; by arrival when too many wait."""

    lasting = False

    def __init__(self, leases: Leases, seed: int) -> None:
        self._leases = leases

    def sort(self, waiting: list[Sequence]) -> None:
        if len(waiting) > LPM_LIMIT:
            waiting.sort(key=lambda sequence: (-sequence.importance, sequence.ticket))
            return
        waiting.sort(
            key=lambda sequence: (
                -sequence.importance,
                -self._leases.measure(sequence.request.cache_key, sequence.prefix),
                sequence.ticket,
            )
        )


class DfsWeight:
    """Branch by branch of the prefix tree, the branch with most waiting sequences first.

    Sequences that share a longer prefix with more others run together, so their shared pages are
    used while they are there.
    """

    lasting = False

    def __init__(self, leases: Leases, seed: int) -> None:
        self._stride = TOKEN_BYTES * leases.page_size
        self._leases = leases

    def sort(self, waiting: list[Sequence]) -> None:
        groups: dict[tuple[str, bytes], list[Sequence]] = {}
        for sequence in waiting:
            name = sequence.request.cache_key
            cached = self._leases.measure(name, sequence.prefix)
            groups.setdefault((name, sequence.prefix[: cached * self._stride]), []).append(sequence)
        weights = {branch: self._weight(branch, groups) for branch in groups}
        ranks = {
            branch: rank
            for rank, branch in enumerate(
                sorted(groups, key=lambda branch: self._path(branch, weights))
            )
        }
        order = {
            sequence.key: ranks[branch]
            for branch, members in groups.items()
            for sequence in members
        }
        waiting.sort(
            key=lambda sequence: (-sequence.importance, order[sequence.key], sequence.ticket)
        )

    def _weight(
        self, branch: tuple[str, bytes], groups: dict[tuple[str, bytes], list[Sequence]]
    ) -> int:
        name, path = branch
        return sum(
            len(members)
            for (other, below), members in groups.items()
            if other == name and below.startswith(path)
        )

    def _path(
        self, branch: tuple[str, bytes], weights: dict[tuple[str, bytes], int]
    ) -> list[tuple[int, str, bytes]]:
        """Heavier subtrees sort first on every level on the way to the branch."""
        name, path = branch
        return [
            (-weight, other, above)
            for (other, above), weight in sorted(weights.items(), key=lambda item: len(item[0][1]))
            if other == name and path.startswith(above)
        ]


class Random:
    """A new random order at every look, reproducible from the server's seed."""

    lasting = False

    def __init__(self, leases: Leases, seed: int) -> None:
        self._random = random.Random(seed)

    def sort(self, waiting: list[Sequence]) -> None:
        self._random.shuffle(waiting)
        waiting.sort(key=lambda sequence: -sequence.importance)
