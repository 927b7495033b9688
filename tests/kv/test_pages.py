"""PagePool against a set of held pages."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vivace.kv.pages import OutOfPages, PagePool

TOTAL = 12


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(TOTAL)
        self.held: set[int] = set()

    @rule(count=st.integers(0, TOTAL + 2))
    def take(self, count: int) -> None:
        free = TOTAL - len(self.held)
        if count > free:
            with pytest.raises(OutOfPages):
                self.pool.take(count)
            return
        before = self.pool.touched, self.pool.spare
        pages = self.pool.take(count)
        assert self.pool.touched == before[0] + max(0, count - before[1])
        assert len(set(pages)) == count
        assert not set(pages) & set(self.held)
        self.held.update(pages)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.held)))
        self.pool.release([page])
        self.held.remove(page)

    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        pool = self.pool
        holes = [page for page in range(pool.touched) if page not in self.held]
        count = data.draw(st.integers(0, min(len(holes), len(self.held))))
        sources = data.draw(st.permutations(sorted(self.held)))[:count]
        moves = dict(zip(sources, holes, strict=False))
        pool.move(moves)
        self.held = {moves.get(page, page) for page in self.held}

    @rule(first=st.integers(0, TOTAL))
    def vacate(self, first: int) -> None:
        if any(page >= first for page in self.held):
            with pytest.raises(ValueError, match="held"):
                self.pool.vacate(first)
            return
        before = self.pool.touched
        self.pool.vacate(first)
        assert self.pool.touched == min(before, first)

    @rule(page=st.integers(0, TOTAL - 1))
    def misuse(self, page: int) -> None:
        if page in self.held:
            return
        with pytest.raises(ValueError, match="nobody"):
            self.pool.release([page])

    @invariant()
    def conserved(self) -> None:
        assert all(page < self.pool.touched for page in self.held)
        assert self.pool.free == TOTAL - len(self.held)
        assert self.pool.audit([(f"owner of {page}", [page]) for page in self.held]) == []


PoolMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestPool = PoolMachine.TestCase


def test_audit_names_the_page_and_its_claimants() -> None:
    pool = PagePool(4)
    (page,) = pool.take(1)
    assert pool.audit([("a", [page])]) == []
    (finding,) = pool.audit([("a", [page]), ("b", [page])])
    assert f"page {page}" in finding and "a, b" in finding
    (finding,) = pool.audit([])
    assert "nobody" in finding


def test_a_pool_may_be_empty() -> None:
    pool = PagePool(0)
    assert (pool.free, pool.take(0), pool.audit([])) == (0, [], [])
    with pytest.raises(OutOfPages):
        pool.take(1)
    with pytest.raises(ValueError, match="page"):
        PagePool(-1)
