"""Leases: every page has one owner, whoever publishes, shares, evicts and gives back."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from vivace.kv.leases import Lease, Leases
from vivace.kv.pages import OutOfPages
from vivace.kv.prefix_tree import pack

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=14)


class LeaseMachine(RuleBasedStateMachine):
    @initialize(
        page_size=st.sampled_from([1, 3]),
        cache=st.booleans(),
        share=st.sampled_from([None, 0, 5]),
    )
    def start(self, page_size: int, cache: bool, share: int | None) -> None:
        self.size = page_size
        self.share = share
        self.peak = 0
        """most pages in use at once, since memory was given back"""
        self.leases = Leases(16, page_size, prefix_cache=cache, cache_share=share)
        self.open: list[tuple[Lease, list[int]]] = []
        self.content: dict[int, tuple[int, ...]] = {}
        """page -> the tokens up to its end, as written by its owner"""

    @rule(tokens=TOKENS)
    def begin(self, tokens: list[int]) -> None:
        lease = self.leases.open("x", "", pack(tokens), (len(tokens) - 1) // self.size)
        for index, page in enumerate(lease.pages):
            assert self.content[page] == tuple(tokens[: (index + 1) * self.size])
        needed = -(-len(tokens) // self.size) - len(lease.pages)
        if needed > self.leases.available:
            with pytest.raises(OutOfPages):
                self.leases.grow(lease, needed)
            self.leases.close(lease)
            return
        self.leases.grow(lease, needed)
        for index in range(lease.shared, len(lease.pages)):
            self.content[lease.pages[index]] = tuple(tokens[: (index + 1) * self.size])
        self.open.append((lease, tokens))

    def key(self, tokens: list[int], computed: int) -> bytes:
        return pack(tokens[: computed // self.size * self.size])

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        lease, tokens = data.draw(st.sampled_from(self.open))
        computed = data.draw(st.integers(lease.shared * self.size, len(tokens)))
        self.leases.publish(lease, self.key(tokens, computed))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        lease, tokens = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        computed = data.draw(st.integers(lease.shared * self.size, len(tokens)))
        key = self.key(tokens, computed)
        freed, before = self.leases.count_freed([lease]), self.leases.available
        self.leases.close(lease, key)
        assert self.leases.available == before + freed

    @precondition(lambda self: self.open)
    @rule()
    def close_all(self) -> None:
        assert self.leases.count_freed([lease for lease, _ in self.open]) == self.leases.used
        while self.open:
            self.leases.close(self.open.pop()[0])

    @precondition(lambda self: not self.open)
    @rule(most=st.sampled_from([1, 2, 99]))
    def compact(self, most: int) -> None:
        """What is cached has its content where it is now, and none is in a page given back."""
        [(moves, vacant)] = self.leases.compact(most)
        assert len(moves) <= most and not set(moves.values()) & set(moves)
        for source, target in moves.items():
            self.content[target] = self.content[source]
        self.content = {page: text for page, text in self.content.items() if page < vacant}
        assert self.leases.touched_in[0] <= vacant
        cached = self.leases.cached
        if most == 99:
            assert vacant == cached and self.leases.vacancy_in == [0]
        if self.share is not None and not self.leases.share_grown:
            assert cached <= self.share
        self.peak = self.leases.touched_in[0]

    @precondition(lambda self: not self.open)
    @rule()
    def clear(self) -> None:
        self.leases.clear()
        assert self.leases.available == self.leases.total
        assert self.leases.cached == 0

    @invariant()
    def conserved(self) -> None:
        assert self.leases.audit() == []
        assert self.leases.used + self.leases.available == self.leases.total
        self.peak = max(self.peak, self.leases.used)
        if self.share is not None and not self.leases.share_grown:
            assert self.leases.touched_in[0] <= max(self.peak, self.share)
        if not self.open:
            assert self.leases.used == 0


LeaseMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestLeases = LeaseMachine.TestCase


def test_the_second_publisher_of_the_same_content_frees_its_copy_at_the_end() -> None:
    leases = Leases(8, 1)
    key = pack([1, 2, 3])
    first, second = leases.open("a", "", key, 2), leases.open("b", "", key, 2)
    leases.grow(first, 3)
    leases.grow(second, 3)
    leases.publish(first, key)
    leases.publish(second, key)
    assert second.shared == 0 and leases.used == 6
    leases.close(second, key)
    assert leases.used == 3
    leases.close(first, key)
    assert (leases.used, leases.cached, leases.available) == (0, 3, 8)


def test_pages_in_use_are_not_evicted() -> None:
    leases = Leases(4, 1)
    key = pack([1, 2, 3])
    first = leases.open("a", "", key, 2)
    leases.grow(first, 3)
    leases.close(first, key)
    reader = leases.open("b", "", key, 2)
    assert reader.shared == 2 and leases.available == 2
    with pytest.raises(OutOfPages):
        leases.take(3)
    assert leases.audit() == []


def test_audit_finds_a_lost_page() -> None:
    leases = Leases(4, 1)
    leases.take(1)
    (finding,) = leases.audit()
    assert "claimed by nobody" in finding


def test_clear_needs_nobody_reading() -> None:
    leases = Leases(4, 1)
    lease = leases.open("a", "", b"", 0)
    with pytest.raises(ValueError, match="1 sequences"):
        leases.clear()
    leases.close(lease)
    leases.clear()
