"""Which KV pages are free and which are held, and how much memory cached prefixes may keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_DROPPED, _BACK, _DROPPED_AGAIN = range(3)
"""what happened to a page's tokens"""


class OutOfPages(RuntimeError):
    """More pages were taken than are free; callers ask `free` (and evict) first."""


class PagePool:
    """Page ids 0..total-1. A taken page is held, by one owner, until it is released.

    Pages from `touched` on were never taken, or were vacated: where a device gives memory at the
    first touch there is none behind them. Free pages below are taken first, then the lowest.
    """

    def __init__(self, total: int) -> None:
        if total < 0:
            raise ValueError(f"a pool of {total} pages")
        self.total = total
        self.touched = 0
        self._free: list[int] = []
        """of those below `touched`"""
        self._held = bytearray(total)
        """1 for each page that was taken"""

    @property
    def free(self) -> int:
        return len(self._free) + self.total - self.touched

    @property
    def spare(self) -> int:
        """Free pages below `touched`."""
        return len(self._free)

    def shortage(self, count: int, share: int) -> int:
        """Cached pages that go before `count` are taken: more pages than `share` would hold
        something; never fewer than the pool is short of."""
        fresh = count - len(self._free)
        return max(0, min(fresh, self.total - self.free + count - share))

    def take(self, count: int) -> list[int]:
        """`count` free pages. OutOfPages leaves the pool unchanged."""
        if count <= 0:
            return []
        fresh = count - len(self._free)
        if fresh <= 0:
            pages = self._free[-count:]
            del self._free[-count:]
        elif self.touched + fresh <= self.total:
            pages = [*self._free, *range(self.touched, self.touched + fresh)]
            self._free.clear()
            self.touched += fresh
        else:
            raise OutOfPages(f"{count} pages asked for, {self.free} of {self.total} free")
        held = self._held
        for page in pages:
            held[page] = 1
        return pages

    def release(self, pages: Iterable[int]) -> None:
        """Pages are free again. ValueError on one that is free already."""
        held, free = self._held, self._free
        for page in pages:
            if not held[page]:
                raise ValueError(f"page {page} is released but nobody holds it")
            held[page] = 0
            free.append(page)

    def move(self, moves: dict[int, int]) -> None:
        """Who holds page `source` holds `moves[source]` instead, a free one below `touched`."""
        held, targets = self._held, set(moves.values())
        if len(targets) < len(moves) or any(held[page] for page in targets):
            raise ValueError(f"pages move to {sorted(targets)}, and not all of them are free")
        for source, target in moves.items():
            held[target], held[source] = held[source], 0
        self._free = [page for page in self._free if page not in targets] + list(moves)

    def compact(self, held: list[int], max_pages: int) -> tuple[dict[int, int], int]:
        """Who holds pages, these and no others, holds the lowest ones instead; at most `max_pages`
        move at once. Returns (page -> where its content has to be copied, the first page of those
        behind which no memory is needed any more)."""
        held = sorted(held)
        edge = len(held)
        low = [page for page in held if page < edge]
        holes = sorted(set(range(edge)).difference(low))
        moves = dict(zip(reversed(held[len(low) :][-max_pages:]), holes, strict=False))
        self.move(moves)
        left = held[: edge - len(moves)]
        vacant = max([*left[-1:], *moves.values()], default=-1) + 1
        self.vacate(vacant)
        return moves, vacant

    def vacate(self, first: int) -> None:
        """There is no memory behind pages from `first` on. ValueError where one is held."""
        if any(self._held[first:]):
            raise ValueError(f"pages from {first} on are vacated, and some of them are held")
        self._free = [page for page in self._free if page < first]
        self.touched = min(self.touched, first)

    def audit(self, owners: Iterable[tuple[str, list[int]]]) -> list[str]:
        """Findings where free list, held pages and the claims of all owners disagree."""
        owners = list(owners)
        counts = [0] * self.total
        for _, pages in owners:
            for page in pages:
                counts[page] += 1
        free = {*self._free, *range(self.touched, self.total)}
        findings: list[str] = []
        if len(free) != self.free:
            findings.append("the free list holds a page twice")
        wrong = counts != list(self._held) or len(free) != counts.count(0)
        if wrong or any(counts[page] for page in free):
            findings += self._explain(owners, free)
        return findings

    def _explain(self, owners: list[tuple[str, list[int]]], free: set[int]) -> list[str]:
        """One line per page whose state and claims contradict each other."""
        findings: list[str] = []
        for page, held in enumerate(self._held):
            claimants = [owner for owner, pages in owners for claim in pages if claim == page]
            if len(claimants) != held or (page in free) == bool(held):
                state = "held" if held else "not held"
                listed = " and on the free list" if page in free else ""
                findings.append(
                    f"page {page} is {state}{listed}, claimed by {', '.join(claimants) or 'nobody'}"
                )
        return findings


class CacheShare:
    """How many pages of memory the prefix cache may make its own.

    On a device whose memory comes page by page (a CPU), a cached prefix that nobody reads costs
    the machine memory. So there is a share: a sequence that needs pages gets those of the least
    valuable prefixes rather than memory that was never touched, as soon as all pages that hold
    something are more than the share. What was dropped for that is remembered by the hash of its
    tokens; when it is asked for, dropped and asked for once more, the share grows by as much. So
    prefixes that keep coming back earn memory, and others do not.

    `pages`: those in use and cached together beyond which prefixes are dropped rather than memory
    taken; between `first` and `total`. `stride`: bytes of a page's packed tokens.
    """

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
