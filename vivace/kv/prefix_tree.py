"""Radix tree over token prefixes whose KV is on the device, page by page.

Nodes hold whole pages: the packed tokens (4 bytes each, so that comparing is memcmp) and the page
ids beside them. A node is *locked* while a sequence reads pages of it or of a node below; only
unlocked leaves are evicted, from their end, so exactly as many pages go as are needed.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count as count_up
from typing import Protocol

from vivace.registry import Registry

TOKEN_BYTES = 4
"""size of a packed token"""


def pack(tokens: Sequence[int]) -> bytes:
    """Tokens as the bytes the tree compares; ids are below 2**32."""
    return array("I", tokens).tobytes()


# --- which cached prefix goes first when pages are needed -----------------------------------


class EvictionCandidate(Protocol):
    """What a policy may look at: one node of the prefix tree."""

    used: int
    """tick of the last use"""
    hits: int
    """times a request matched it"""


class Eviction(Protocol):
    """Ranks a node; the lowest goes first. A node's rank must never decrease over its life."""

    def __call__(self, node: EvictionCandidate) -> tuple[int, int]: ...


EVICTIONS: Registry[Eviction] = Registry(
    "radix eviction policy",
    {
        "lru": "vivace.kv.prefix_tree:least_recently_used",
        "lfu": "vivace.kv.prefix_tree:least_frequently_used",
    },
)


def least_recently_used(node: EvictionCandidate) -> tuple[int, int]:
    return node.used, 0


def least_frequently_used(node: EvictionCandidate) -> tuple[int, int]:
    return node.hits, node.used


# --- the tree -------------------------------------------------------------------------------


class Node:
    """A run of pages below `parent`. The root of a namespace has no pages."""

    __slots__ = ("children", "hits", "key", "locks", "pages", "parent", "queued", "used")

    def __init__(self, parent: Node | None, key: bytes, pages: list[int]) -> None:
        self.parent = parent
        self.key = key
        self.pages = pages
        self.children: dict[bytes, Node] = {}
        self.locks = 0
        self.used = 0
        self.hits = 0
        self.queued = False
        """has an entry in the eviction heap"""


class Match:
    """The longest cached prefix: `node` is where it ends, `pages` what it is made of."""

    __slots__ = ("node", "pages")

    def __init__(self, node: Node, pages: list[int]) -> None:
        self.node = node
        self.pages = pages


class PrefixTree:
    """One radix tree per namespace over one set of pages; keys are `pack`ed tokens."""

    def __init__(self, page_size: int, eviction: Eviction = least_recently_used) -> None:
        if page_size < 1:
            raise ValueError(f"page size must be at least 1, not {page_size}")
        self.page_size = page_size
        self.evictable = 0
        """pages that `evict` could give back now"""
        self.size = 0
        """pages in the tree"""
        self._stride = page_size * TOKEN_BYTES
        self._rank = eviction
        self._roots: dict[str, Node] = {}
        self._heap: list[tuple[tuple[int, int], int, Node]] = []
        self._entry = count_up()
        self._tick = 0

    def measure(self, namespace: str, key: bytes) -> int:
        """Pages of `key` that are cached; changes nothing (for ordering)."""
        root = self._roots.get(namespace)
        return sum(count for _, count in self._walk(root, key)) if root else 0

    def find(self, namespace: str, key: bytes) -> list[int]:
        """The pages of `key` that are cached; changes nothing."""
        root = self._roots.get(namespace)
        walk = self._walk(root, key) if root else ()
        return [page for node, count in walk for page in node.pages[:count]]

    def match(self, namespace: str, key: bytes, max_pages: int) -> Match:
        """The longest cached prefix of `key`, at most `max_pages`; counts as a use.

        The node is split where the match ends inside it, so `lock(match.node)` protects exactly
        the matched pages.
        """
        node = self._root(namespace)
        pages: list[int] = []
        self._tick += 1
        for child, count in list(self._walk(node, key[: max_pages * self._stride])):
            node = child if count == len(child.pages) else self._split(child, count)
            node.used = self._tick
            node.hits += 1
            pages += node.pages
        return Match(node, pages)

    def insert(self, namespace: str, key: bytes, pages: list[int]) -> tuple[Node, int]:
        """Make the tree own `pages` as the KV of `key` (whole pages) where it has none yet.

        Returns the node at the end of `key`, and how many leading pages the tree had already: of
        those the tree keeps its own, and the caller still owns `pages[:had]`.
        """
        if len(key) != len(pages) * self._stride:
            raise ValueError(f"{len(pages)} pages cannot hold {len(key) // TOKEN_BYTES} tokens")
        node = self._root(namespace)
        had = 0
        self._tick += 1
        for child, count in list(self._walk(node, key)):
            node = child if count == len(child.pages) else self._split(child, count)
            node.used = self._tick
            had += count
        if had < len(pages):
            node = self._append(node, key[had * self._stride :], pages[had:])
        return node, had

    def lock(self, node: Node) -> None:
        """Protect the path to `node` from eviction; once per `unlock`."""
        while node.parent is not None:
            if not node.locks:
                self.evictable -= len(node.pages)
            node.locks += 1
            node = node.parent
        node.locks += 1

    def unlock(self, node: Node) -> None:
        here: Node | None = node
        while here is not None:
            if here.locks < 1:
                raise ValueError("a prefix is unlocked more often than it was locked")
            here.locks -= 1
            parent = here.parent
            if not here.locks:
                if parent is not None:
                    self.evictable += len(here.pages)
                self._offer(here)
            here = parent

    def evict(self, count: int, dropped: Callable[[bytes], None] = lambda key: None) -> list[int]:
        """Forget up to `count` pages of unlocked leaves, least valuable first; returns them.
        `dropped` is told the tokens of each run of them."""
        evicted: list[int] = []
        while len(evicted) < count and self._heap:
            rank, _, node = heapq.heappop(self._heap)
            node.queued = False
            if not self._is_leaf(node):
                continue
            if rank != self._rank(node):
                self._offer(node)
                continue
            keep = max(0, len(node.pages) - count + len(evicted))
            dropped(node.key[keep * self._stride :])
            self._trim(node, keep, evicted)
        return evicted

    def move(self, moves: Mapping[int, int]) -> None:
        """What page `source` holds is in `moves[source]` from now on."""
        for node in self.nodes():
            node.pages = [moves.get(page, page) for page in node.pages]

    @property
    def namespaces(self) -> int:
        return len(self._roots)

    def pages(self) -> list[int]:
        """All pages the tree owns."""
        return [page for node in self.nodes() for page in node.pages]

    def nodes(self) -> Iterator[Node]:
        pending = list(self._roots.values())
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children.values())

    def clear(self) -> list[int]:
        """Forget everything; returns the pages. ValueError while a sequence holds a lock."""
        if any(root.locks for root in self._roots.values()):
            raise ValueError("the prefix cache is in use and cannot be cleared")
        evicted = self.pages()
        self._roots.clear()
        self._heap.clear()
        self.size = self.evictable = 0
        return evicted

    def audit(self, holders: Sequence[Node]) -> list[str]:
        """Findings where counters, links and locks disagree with the tree and its lock holders."""
        expected: dict[int, int] = {}
        for holder in holders:
            here: Node | None = holder
            while here is not None:
                expected[id(here)] = expected.get(id(here), 0) + 1
                here = here.parent
        findings: list[str] = []
        size = evictable = 0
        for node in self.nodes():
            size += len(node.pages)
            evictable += 0 if node.locks or node.parent is None else len(node.pages)
            if node.locks != expected.pop(id(node), 0):
                findings.append(f"a node of {len(node.pages)} pages has {node.locks} locks")
            if node.parent is not None and not node.pages:
                findings.append("a node of the prefix tree is empty")
            if self._is_leaf(node) and not node.queued:
                findings.append("an unlocked leaf is not offered for eviction")
        if expected:
            findings.append("a lock is held on a node that left the tree")
        if (size, evictable) != (self.size, self.evictable):
            findings.append(
                f"the tree counts {self.size} pages, {self.evictable} evictable; "
                f"it has {size}, {evictable}"
            )
        return findings

    def _root(self, namespace: str) -> Node:
        root = self._roots.get(namespace)
        if root is None:
            name = namespace.encode("utf-8", "surrogatepass")
            root = self._roots[namespace] = Node(None, name, [])
        return root

    def _walk(self, node: Node, key: bytes) -> Iterator[tuple[Node, int]]:
        """(node, matching pages) along `key`; the last one may match only in part."""
        stride = self._stride
        at = 0
        while len(key) - at >= stride:
            child = node.children.get(key[at : at + stride])
            if child is None:
                return
            count = shared_pages(child.key, key[at : at + len(child.key)], stride)
            yield child, count
            if count < len(child.pages):
                return
            at += len(child.key)
            node = child

    def _append(self, parent: Node, key: bytes, pages: list[int]) -> Node:
        node = Node(parent, key, pages)
        node.used = self._tick
        parent.children[key[: self._stride]] = node
        self.size += len(pages)
        self.evictable += len(pages)
        self._offer(node)
        return node

    def _split(self, node: Node, count: int) -> Node:
        """Cut `node` after `count` pages; returns the new upper part."""
        cut = count * self._stride
        parent = node.parent
        assert parent is not None
        upper = Node(parent, node.key[:cut], node.pages[:count])
        upper.locks, upper.used, upper.hits = node.locks, node.used, node.hits
        parent.children[upper.key[: self._stride]] = upper
        node.parent, node.key, node.pages = upper, node.key[cut:], node.pages[count:]
        upper.children[node.key[: self._stride]] = node
        return upper

    def _is_leaf(self, node: Node) -> bool:
        """True when eviction may trim it: below a root, no children, no locks, not forgotten."""
        return bool(node.pages) and not node.children and not node.locks

    def _offer(self, node: Node) -> None:
        """Let `evict` find a leaf; an idle namespace is dropped with its last page."""
        if node.parent is None:
            self._drop_if_idle(node)
        elif self._is_leaf(node) and not node.queued:
            node.queued = True
            # The entry's rank may grow old; `evict` compares and queues the node again.
            heapq.heappush(self._heap, (self._rank(node), next(self._entry), node))

    def _drop_if_idle(self, root: Node) -> None:
        if not root.children and not root.locks:
            self._roots.pop(root.key.decode("utf-8", "surrogatepass"), None)

    def _trim(self, node: Node, keep: int, evicted: list[int]) -> None:
        taken = node.pages[keep:]
        evicted += taken
        self.size -= len(taken)
        self.evictable -= len(taken)
        if keep:
            del node.pages[keep:]
            node.key = node.key[: keep * self._stride]
            self._offer(node)
            return
        parent = node.parent
        assert parent is not None
        del parent.children[node.key[: self._stride]]
        node.pages = []
        self._offer(parent)


def shared_pages(left: bytes, right: bytes, stride: int) -> int:
    """Whole pages in which two keys agree, counted from their start. Looks at each byte twice at
    most: what agrees is not compared again."""
    low, high = 0, min(len(left), len(right)) // stride
    if left.startswith(right[: high * stride]):
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if left.startswith(right[low * stride : middle * stride], low * stride):
            low = middle
        else:
            high = middle - 1
    return low
