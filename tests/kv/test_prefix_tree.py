"""PrefixTree against a naive dictionary of prefixes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from vivace.kv.prefix_tree import (
    EVICTIONS,
    TOKEN_BYTES,
    Node,
    PrefixTree,
    least_frequently_used,
    pack,
    shared_pages,
)

NAMESPACES = st.sampled_from(["", "tenant", "\ud800"])
TOKENS = st.lists(st.integers(0, 1), max_size=12)


class TreeMachine(RuleBasedStateMachine):
    """`cached` maps (namespace, all tokens up to the end of a page) to the page's id."""

    @initialize(page_size=st.sampled_from([1, 2, 3]), policy=st.sampled_from(list(EVICTIONS)))
    def start(self, page_size: int, policy: str) -> None:
        self.size = page_size
        self.tree = PrefixTree(page_size, EVICTIONS.get(policy))
        self.cached: dict[tuple[str, tuple[int, ...]], int] = {}
        self.locks: list[tuple[Node, str, tuple[int, ...]]] = []
        self.fresh = 0

    def prefixes(self, tokens: list[int]) -> list[tuple[int, ...]]:
        whole = len(tokens) // self.size
        return [tuple(tokens[: (i + 1) * self.size]) for i in range(whole)]

    def found(self, namespace: str, tokens: list[int]) -> list[int]:
        pages = []
        for prefix in self.prefixes(tokens):
            if (namespace, prefix) not in self.cached:
                break
            pages.append(self.cached[namespace, prefix])
        return pages

    def locked(self) -> set[tuple[str, tuple[int, ...]]]:
        return {
            (namespace, prefix)
            for _, namespace, tokens in self.locks
            for prefix in self.prefixes(list(tokens))
        }

    @rule(namespace=NAMESPACES, tokens=TOKENS)
    def insert(self, namespace: str, tokens: list[int]) -> None:
        tokens = tokens[: len(tokens) // self.size * self.size]
        pages = [self.fresh + i for i in range(len(tokens) // self.size)]
        self.fresh += len(pages)
        had = len(self.found(namespace, tokens))
        node, got = self.tree.insert(namespace, pack(tokens), pages)
        assert got == had
        assert node.locks == 0 or self.locks
        for prefix, page in list(zip(self.prefixes(tokens), pages, strict=True))[had:]:
            self.cached[namespace, prefix] = page

    @rule(namespace=NAMESPACES, tokens=TOKENS, most=st.integers(0, 12))
    def match_and_lock(self, namespace: str, tokens: list[int], most: int) -> None:
        expected = self.found(namespace, tokens)
        assert self.tree.measure(namespace, pack(tokens)) == len(expected)
        match = self.tree.match(namespace, pack(tokens), most)
        assert match.pages == expected[:most]
        self.tree.lock(match.node)
        covered = tuple(tokens[: len(match.pages) * self.size])
        self.locks.append((match.node, namespace, covered))

    @precondition(lambda self: self.locks)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.locks) - 1))
        node, _, _ = self.locks.pop(index)
        self.tree.unlock(node)

    @rule(count=st.integers(0, 8))
    def evict(self, count: int) -> None:
        locked = self.locked()
        unlocked = {page for name, page in self.cached.items() if name not in locked}
        gone = self.tree.evict(count)
        assert len(gone) == len(set(gone)) == min(count, len(unlocked))
        assert set(gone) <= unlocked
        self.cached = {name: page for name, page in self.cached.items() if page not in set(gone)}
        for namespace, prefix in self.cached:
            above = prefix[: -self.size]
            assert not above or (namespace, above) in self.cached, "a page lost its prefix"

    @rule()
    def clear(self) -> None:
        if self.locks:
            with pytest.raises(ValueError, match="use"):
                self.tree.clear()
            return
        assert sorted(self.tree.clear()) == sorted(self.cached.values())
        self.cached.clear()

    @invariant()
    def consistent(self) -> None:
        assert sorted(self.tree.pages()) == sorted(self.cached.values())
        assert self.tree.size == len(self.cached)
        assert self.tree.evictable == len(self.cached.keys() - self.locked())
        assert self.tree.audit([node for node, _, _ in self.locks]) == []


TreeMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTree = TreeMachine.TestCase


def filled(*prompts: list[int], **options: object) -> PrefixTree:
    tree = PrefixTree(1, **options)  # type: ignore[arg-type]
    for number, tokens in enumerate(prompts):
        tree.insert("", pack(tokens), [100 * number + i for i in range(len(tokens))])
    return tree


def test_lru_forgets_what_was_not_used_longest() -> None:
    tree = filled([1, 2], [3, 4], [5, 6])
    tree.match("", pack([1, 2]), 9)
    assert tree.evict(1) == [101]
    assert set(tree.evict(3)) == {100, 201, 200}
    assert tree.measure("", pack([1, 2])) == 2


def test_lfu_keeps_what_was_matched_most() -> None:
    tree = filled([1, 2], [3, 4], eviction=least_frequently_used)
    for _ in range(3):
        tree.match("", pack([1, 2]), 9)
    tree.match("", pack([3, 4]), 9)
    assert set(tree.evict(2)) == {100, 101}


def test_eviction_takes_the_end_of_a_branch_first() -> None:
    tree = filled([1, 2, 3, 4])
    assert tree.evict(2) == [2, 3]
    assert tree.measure("", pack([1, 2, 3, 4])) == 2


def test_namespaces_do_not_see_each_other_and_vanish_when_empty() -> None:
    tree = PrefixTree(1)
    tree.insert("a", pack([1]), [0])
    assert tree.measure("b", pack([1])) == 0
    match = tree.match("b", pack([1]), 9)
    tree.lock(match.node)
    assert tree.namespaces == 2
    tree.unlock(match.node)
    tree.evict(1)
    assert tree.namespaces == 0


def test_eviction_of_many_small_branches_is_not_quadratic() -> None:
    tree = PrefixTree(1)
    for token in range(3000):
        tree.insert("", pack([token]), [token])
    for token in range(0, 3000, 2):
        tree.match("", pack([token]), 1)
    gone = [tree.evict(1)[0] for _ in range(1500)]
    assert gone == list(range(1, 3000, 2))


def test_shared_pages_counts_whole_pages() -> None:
    left, right = pack([1, 2, 3, 4]), pack([1, 2, 3, 5])
    assert shared_pages(left, right, TOKEN_BYTES) == 3
    assert shared_pages(left, right, 2 * TOKEN_BYTES) == 1
    assert shared_pages(left, pack([]), TOKEN_BYTES) == 0


@given(
    same=st.integers(0, 40),
    rest=st.tuples(st.binary(max_size=30), st.binary(max_size=30)),
    stride=st.integers(1, 9),
)
def test_shared_pages_are_found_by_halves(
    same: int, rest: tuple[bytes, bytes], stride: int
) -> None:
    left, right = (b"a" * same + end for end in rest)
    length = next(
        (n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b),
        min(len(left), len(right)),
    )
    assert shared_pages(left, right, stride) == length // stride


def test_misuse_is_refused() -> None:
    tree = PrefixTree(2)
    with pytest.raises(ValueError, match="hold"):
        tree.insert("", pack([1, 2, 3]), [0])
    match = tree.match("", pack([1, 2]), 1)
    with pytest.raises(ValueError, match="unlocked"):
        tree.unlock(match.node)
    with pytest.raises(ValueError, match="size"):
        PrefixTree(0)
