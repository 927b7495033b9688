"""How many pages of memory the prefix cache may make its own.

On a device whose memory comes page by page (a CPU), a cached prefix that nobody reads costs the
machine memory. So there is a share: a sequence that needs pages gets those of the least valuable
prefixes rather than memory that was never touched, as soon as all pages that hold something are
more than the share. What was dropped for that is remembered by the hash of its tokens; when it is
asked for, dropped and asked for once more, the share grows by as much. So prefixes that keep coming
back earn memory, and others do not.
"""

from __future__ import annotations

from collections.abc import Iterator

_DROPPED, _BACK, _DROPPED_AGAIN = range(3)
"""what happened to a page's tokens"""


class CacheShare:
    """`pages`: those in use and cached together beyond which prefixes are dropped rather than
    memory taken; between `first` and `total`. `stride`: bytes of a page's packed tokens."""

    def __init__(self, total: int, first: int | None, stride: int) -> None:
        """`first` None: the whole pool, because its memory is there anyway or was asked for."""
        self.total = total
        self.first = self.pages = total if first is None else min(first, total)
        self._stride = stride
        self._dropped: dict[int, int] = {}
        """hash of a page's tokens -> what happened, oldest first; at most `total`. Not of the
        whole prefix: a mistake makes the share a page larger, nothing else"""

    @property
    def bounded(self) -> bool:
        return self.pages < self.total

    def drop(self, key: bytes) -> None:
        """The pages of these tokens are evicted."""
        if not self.bounded:
            return
        for mark in self._marks(key):
            before = self._dropped.pop(mark, _DROPPED)
            self._dropped[mark] = _DROPPED if before == _DROPPED else _DROPPED_AGAIN
        while len(self._dropped) > self.total:
            del self._dropped[next(iter(self._dropped))]

    def ask(self, key: bytes) -> None:
        """Somebody computes these tokens, which are not cached. May be said many times."""
        if not self._dropped:
            return
        twice = 0
        for mark in self._marks(key):
            before = self._dropped.get(mark)
            if before is None:
                break
            self._dropped[mark] = _BACK
            twice += before == _DROPPED_AGAIN
        self.pages = min(self.total, self.pages + twice)

    def forget(self) -> None:
        """Nobody came for long: the share is what it was at first."""
        self.pages = self.first
        self._dropped.clear()

    def _marks(self, key: bytes) -> Iterator[int]:
        stride = self._stride
        return (hash(key[at : at + stride]) for at in range(0, len(key) - stride + 1, stride))
