"""What leases ask of a prefix cache, and the one that is switched off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from vivace.kv.prefix_tree import Match, Node


class Prefixes(Protocol):
    """What leases ask of a prefix cache: `PrefixTree`, or `NoPrefixes`."""

    evictable: int
    size: int

    def measure(self, namespace: str, key: bytes) -> int: ...
    def find(self, namespace: str, key: bytes) -> list[int]: ...
    def match(self, namespace: str, key: bytes, max_pages: int) -> Match: ...
    def insert(self, namespace: str, key: bytes, pages: list[int]) -> tuple[Node, int]: ...
    def lock(self, node: Node) -> None: ...
    def unlock(self, node: Node) -> None: ...
    def evict(self, count: int, dropped: Callable[[bytes], None]) -> list[int]: ...
    def move(self, moves: Mapping[int, int]) -> None: ...
    def clear(self) -> list[int]: ...
    def pages(self) -> list[int]: ...
    def audit(self, holders: list[Node]) -> list[str]: ...


class NoPrefixes:
    """The prefix cache of `--disable-radix-cache`: finds nothing, keeps nothing."""

    def __init__(self) -> None:
        self.evictable = 0
        self.size = 0
        self._root = Node(None, b"", [])

    def measure(self, namespace: str, key: bytes) -> int:
        return 0

    def find(self, namespace: str, key: bytes) -> list[int]:
        return []

    def match(self, namespace: str, key: bytes, max_pages: int) -> Match:
        return Match(self._root, [])

    def insert(self, namespace: str, key: bytes, pages: list[int]) -> tuple[Node, int]:
        return self._root, len(pages)

    def lock(self, node: Node) -> None:
        pass

    def unlock(self, node: Node) -> None:
        pass

    def evict(self, count: int, dropped: Callable[[bytes], None]) -> list[int]:
        return []

    def move(self, moves: Mapping[int, int]) -> None:
        pass

    def clear(self) -> list[int]:
        return []

    def pages(self) -> list[int]:
        return []

    def audit(self, holders: list[Node]) -> list[str]:
        return []
