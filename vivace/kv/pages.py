"""Which KV pages are free and which are held."""

from __future__ import annotations

from collections.abc import Iterable


class OutOfPages(RuntimeError):
    """More pages were taken than are free; callers ask `free` (and evict) first."""


class PagePool:
    """Page ids 0..total-1. Every taken page has a reference count; at zero it is free again."""

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"a pool needs at least one page, not {total}")
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """`count` free pages, each with one reference. OutOfPages leaves the pool unchanged."""
        if count > len(self._free):
            raise OutOfPages(f"{count} pages asked for, {len(self._free)} of {self.total} free")
        if count <= 0:
            return []
        pages = self._free[-count:]
        del self._free[-count:]
        references = self._references
        for page in pages:
            references[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """One more reference on pages that somebody holds."""
        references = self._references
        for page in pages:
            if not references[page]:
                raise ValueError(f"page {page} is free and cannot be shared")
            references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One reference less on each page. ValueError on a page that is free already."""
        references, free = self._references, self._free
        for page in pages:
            left = references[page] - 1
            if left < 0:
                raise ValueError(f"page {page} is released but nobody holds it")
            references[page] = left
            if not left:
                free.append(page)

    def references(self, page: int) -> int:
        return self._references[page]

    def audit(self, owners: Iterable[tuple[str, list[int]]]) -> list[str]:
        """Findings where free list, reference counts and the claims of all owners disagree."""
        owners = list(owners)
        counts = [0] * self.total
        for _, pages in owners:
            for page in pages:
                counts[page] += 1
        free = set(self._free)
        findings = []
        if len(free) != len(self._free):
            findings.append("the free list holds a page twice")
        wrong = counts != self._references or len(free) != counts.count(0)
        if wrong or any(counts[page] for page in free):
            findings += self._explain(owners, free)
        return findings

    def _explain(self, owners: list[tuple[str, list[int]]], free: set[int]) -> list[str]:
        """One line per page whose state and claims contradict each other."""
        findings = []
        for page, count in enumerate(self._references):
            claimants = [owner for owner, pages in owners for held in pages if held == page]
            if len(claimants) != count or (page in free) != (count == 0):
                state = "free" if page in free else "taken"
                findings.append(
                    f"page {page} is {state} with {count} references, "
                    f"claimed by {', '.join(claimants) or 'nobody'}"
                )
        return findings
