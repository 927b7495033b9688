"""Pages of windows and states beside the prefix tree: one owner each, and a prefix is matched as
far as every group has what is needed behind it."""

from __future__ import annotations

import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vivace.kv.leases import Lease, Leases
from vivace.kv.pages import OutOfPages
from vivace.kv.partial_pool import PartialPool
from vivace.kv.prefix_tree import pack

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=16)
PAGES = 24


def window_pool(pages: int, reach: int) -> PartialPool:
    """Of pages of one token."""
    return PartialPool(pages, lambda computed: max(0, computed - reach))


def state_pool(pages: int) -> PartialPool:
    return PartialPool(pages, lambda computed: max(0, computed - 1), sparse=True)


class GroupMachine(RuleBasedStateMachine):
    """Sequences that compute tokens one by one, with a window, a state every three tokens, or both;
    pages of one token. `content`: what each page of each group holds, as its owner wrote it."""

    @initialize(
        reach=st.sampled_from([0, 1, 3, 9]),
        kinds=st.sampled_from(["w", "s", "ws"]),
        share=st.sampled_from([None, 0, 8]),
    )
    def start(self, reach: int, kinds: str, share: int | None) -> None:
        self.reach, self.kinds = reach, kinds
        pools = [window_pool(PAGES, reach) if kind == "w" else state_pool(4) for kind in kinds]
        self.leases = Leases(PAGES, 1, cache_share=share, partial=pools)
        self.open: list[tuple[Lease, list[int], int]] = []
        self.content: list[dict[int, tuple[int, ...]]] = [{} for _ in range(1 + len(kinds))]

    @rule(tokens=TOKENS)
    def begin(self, tokens: list[int]) -> None:
        lease = self.leases.open("x", "", pack(tokens), len(tokens) - 1)
        assert self.leases.measure("", pack(tokens)) >= lease.shared
        self.open.append((lease, tokens, lease.shared))
        self.check(lease, tokens, lease.shared)
        for group, kind in enumerate(self.kinds, 1):
            if kind == "s" and lease.shared:
                page = lease.parts[group - 1].pages[lease.shared - 1]
                assert self.content[group][page] == tuple(tokens[: lease.shared])

    def check(self, lease: Lease, tokens: list[int], computed: int) -> None:
        """All that is needed to go on is there, with the content of these tokens."""
        for place in range(computed):
            assert self.content[0][lease.pages[place]] == tuple(tokens[: place + 1])
        for group, kind in enumerate(self.kinds, 1):
            part = lease.parts[group - 1]
            first = max(0, computed - self.reach) if kind == "w" else computed
            for place in range(first, computed):
                assert self.content[group][part.pages[place]] == tuple(tokens[: place + 1])

    @precondition(lambda self: self.open)
    @rule(data=st.data(), count=st.integers(1, 4))
    def compute(self, data: st.DataObject, count: int) -> None:
        index = data.draw(st.integers(0, len(self.open) - 1))
        lease, tokens, computed = self.open[index]
        end = min(len(tokens), computed + count)
        self.leases.slide(lease, computed)
        self.check(lease, tokens, computed)
        if end - len(lease.pages) > self.leases.growable:
            return
        self.leases.grow(lease, max(0, end - len(lease.pages)))
        for place in range(computed, end):
            written = tuple(tokens[: place + 1])
            self.content[0][lease.pages[place]] = written
            for group, kind in enumerate(self.kinds, 1):
                if kind == "w":
                    self.content[group][lease.parts[group - 1].pages[place]] = written
                elif (place + 1) % 3 == 0:
                    page = self.leases.add_state(lease, place, group)
                    if page is not None:
                        self.content[group][page] = written
        self.open[index] = lease, tokens, end

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        lease, tokens, computed = data.draw(st.sampled_from(self.open))
        self.leases.publish(lease, pack(tokens[:computed]))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), valid=st.booleans())
    def close(self, data: st.DataObject, valid: bool) -> None:
        lease, tokens, computed = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        self.leases.close(lease, pack(tokens[:computed]) if valid else b"")

    @precondition(lambda self: not self.open)
    @rule(most=st.sampled_from([1, 99]))
    def compact(self, most: int) -> None:
        for content, (moves, vacant) in zip(self.content, self.leases.compact(most), strict=True):
            for source, target in moves.items():
                content[target] = content[source]
            for page in [page for page in content if page >= vacant]:
                del content[page]

    @precondition(lambda self: not self.open)
    @rule()
    def clear(self) -> None:
        self.leases.clear()
        assert self.leases.cached == 0
        assert all(not pool._idle for pool in self.leases.partial)

    @invariant()
    def conserved(self) -> None:
        assert self.leases.audit() == []
        if not self.open:
            assert all(pool.available == pool.total for pool in self.leases.partial)


GroupMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
TestGroups = GroupMachine.TestCase


def test_a_long_prefix_without_states_is_looked_through_at_once() -> None:
    """A conversation of 100,000 pages whose states are gone costs no more than reading it."""
    pool = PartialPool(4, lambda pages: max(0, pages - 1), sparse=True)
    lease, tree = pool.open([]), list(range(100_000))
    lease.pages[0] = pool.take(1, 4)[0]
    pool.keep(lease, tree)
    started = time.process_time()
    assert pool.usable(tree) == 1
    assert pool.usable(tree[1:]) == 0
    assert time.process_time() - started < 0.1


def test_a_prefix_whose_window_is_gone_is_matched_in_front_of_it() -> None:
    leases = Leases(PAGES, 1, partial=[window_pool(4, 2)])
    first = leases.open("a", "", pack([1] * 8), 7)
    for computed in range(0, 8, 2):
        leases.slide(first, computed)
        leases.grow(first, 2)
        leases.publish(first, pack([1] * (computed + 2)))
    leases.close(first, pack([1] * 8))
    assert leases.measure("", pack([1] * 8)) == 8
    assert len(leases.partial[0]._idle) == 4
    leases.take(2, 1)  # somebody needs the pages of places 4 and 5, which nobody used longest
    assert leases.measure("", pack([1] * 8)) == 8
    assert leases.measure("", pack([1] * 6)) == 0
    leases.take(1, 1)
    assert leases.measure("", pack([1] * 8)) == 0


def test_conversations_that_pause_keep_their_windows() -> None:
    """As many as have room in the first group's share."""
    leases = Leases(64, 1, cache_share=24, partial=[window_pool(64, 6)])
    talks = [[talk] * 8 for talk in range(3)]
    for _ in range(3):
        for tokens in talks:
            lease = leases.open("a", "", pack(tokens), 7)
            leases.grow(lease, 8 - len(lease.pages))
            leases.close(lease, pack(tokens))
    assert [leases.measure("", pack(tokens)) for tokens in talks] == [8, 8, 8]


def test_no_more_than_there_is() -> None:
    leases = Leases(8, 1, partial=[window_pool(3, 2)])
    lease = leases.open("a", "", b"", 0)
    with pytest.raises(OutOfPages):
        leases.grow(lease, 4)
    assert lease.pages == [] and leases.audit() == []
