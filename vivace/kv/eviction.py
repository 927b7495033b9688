"""Which cached prefix goes first when pages are needed."""

from __future__ import annotations

from typing import Protocol

from vivace.registry import Registry


class Cached(Protocol):
    """What a policy may look at: one node of the prefix tree."""

    used: int
    """tick of the last use"""
    hits: int
    """times a request matched it"""


class Eviction(Protocol):
    """Ranks a node; the lowest goes first. A node's rank must never decrease over its life."""

    def __call__(self, node: Cached) -> tuple[int, int]: ...


EVICTIONS: Registry[Eviction] = Registry(
    "radix eviction policy",
    {
        "lru": "vivace.kv.eviction:least_recently_used",
        "lfu": "vivace.kv.eviction:least_frequently_used",
    },
)


def least_recently_used(node: Cached) -> tuple[int, int]:
    return node.used, 0


def least_frequently_used(node: Cached) -> tuple[int, int]:
    return node.hits, node.used
