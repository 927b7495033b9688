"""The index of n-gram drafts in plain Python: the reference of kernels/ngram.cpp, and what runs
where the library is not built."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from vivace.platforms.ngrams import (
    MOST_CHILDREN,
    PROMPT_PATHS,
    STEP_PATHS,
    NgramProposals,
    NgramSettings,
)

NODE_BYTES, GRAM_BYTES = 400, 200
"""of Python's objects, about"""


class PythonNgramIndex:
    def __init__(self, settings: NgramSettings) -> None:
        self._settings = settings
        self._tree = PathTree(settings.capacity)
        self._rows: dict[int, RowText] = {}
        self._corpora = SortedTexts(max(settings.depth, settings.longest + 1))

    @property
    def nodes(self) -> int:
        return self._tree.size

    @property
    def nbytes(self) -> int:
        grams = sum(len(row.ends) for row in self._rows.values())
        corpora = len(self._corpora.tokens)
        return NODE_BYTES * self._tree.size + GRAM_BYTES * grams + 64 * corpora

    def join(self, row: int, space: bytes, tokens: list[int], known: int) -> None:
        self.leave(row)
        text = self._rows[row] = RowText(self._settings, space)
        for token in tokens:
            text.push(token)
        text.shared = max(0, min(known, len(tokens)) - self._settings.depth + 1)
        self._share(text, PROMPT_PATHS)

    def leave(self, row: int) -> None:
        if (text := self._rows.pop(row, None)) is None:
            return
        self._share(text, PROMPT_PATHS)
        if text.shared + self._settings.depth > len(text.tokens):
            for start in range(text.shared, len(text.tokens)):
                self._tree.insert((*text.space, *text.tokens[start:]))

    def learn(self, rows: list[int], counts: list[int], tokens: list[int]) -> None:
        start = 0
        for row, count in zip(rows, counts, strict=True):
            if (text := self._rows.get(row)) is not None:
                for token in tokens[start : start + count]:
                    text.push(token)
                self._share(text, count + STEP_PATHS)
            start += count

    def propose(self, rows: list[int]) -> NgramProposals:
        found = [self._find(self._rows[row]) if row in self._rows else ([], 0) for row in rows]
        return NgramProposals([drafts for drafts, _ in found], [length for _, length in found])

    def branch(
        self, row: int, drafts: list[int], most: int, least: int
    ) -> tuple[list[int], list[int]]:
        drafts, parents, at = list(drafts), list(range(-1, len(drafts) - 1)), -1
        ways: dict[int, list[int]] = {-1: []}
        if (text := self._rows.get(row)) is None:
            return drafts, parents
        while at < len(drafts) and len(drafts) < self._settings.width:
            if at >= 0:
                ways[at] = [*ways[parents[at]], drafts[at]]
            breadth = max(most - len(ways[at]), least)
            children = [drafts[i] for i, parent in enumerate(parents) if parent == at]
            for token in self._follow_all(text, ways[at]):
                if len(children) >= breadth or len(drafts) >= self._settings.width:
                    break
                if token not in children:
                    children.append(token)
                    drafts.append(token)
                    parents.append(at)
            at += 1
        return drafts, parents

    def _follow_all(self, text: RowText, way: list[int]) -> list[int]:
        """What stood in the shared tree behind the longest suffix of the text and a way on."""
        settings, space = self._settings, self._tree.find(text.space)
        window = min(settings.longest, settings.depth - 1, len(text.tokens))
        context = text.tokens[len(text.tokens) - window :] + way
        longest = min(settings.longest, settings.depth - 1, len(context)) if space else 0
        for length in range(longest, settings.shortest - 1, -1):
            place = self._tree.find(context[len(context) - length :], space)
            if place and (found := self._tree.children(place, settings.by_frequency)):
                return found
        return []

    corpus_part = 1 << 30
    """all that was there is sorted again, so parts would only cost more"""

    def add_corpus(self, tokens: np.ndarray) -> None:
        self._corpora.add(tokens.tolist())

    def remove_corpus(self, place: int) -> None:
        self._corpora.remove(place)

    def _find(self, text: RowText) -> tuple[list[int], int]:
        """(drafts, length of the suffix that they follow)"""
        settings, tokens = self._settings, text.tokens
        least = text.length + (0 if settings.by_frequency else 1)
        place, shared = self._match_tree(text, least)
        best = max(text.length, shared)
        for length in range(min(settings.longest, len(tokens)), settings.shortest - 1, -1):
            if length <= best or not settings.budget:
                break
            most = min(settings.width, settings.budget)
            if drafts := self._corpora.follow(tokens[len(tokens) - length :], most):
                return drafts, length
        if place is not None:
            return self._descend(text, place, shared), best
        return (self._repeat(text), best) if text.length else ([], 0)

    def _match_tree(self, text: RowText, least: int) -> tuple[Place | None, int]:
        settings, tokens = self._settings, text.tokens
        space = self._tree.find(text.space)
        longest = min(settings.longest, settings.depth - 1, len(tokens)) if space else 0
        for length in range(longest, max(least, settings.shortest) - 1, -1):
            place = self._tree.find(tokens[len(tokens) - length :], space)
            if place is not None and self._tree.follow(place, False):
                return place, length
        return None, 0

    def _repeat(self, text: RowText) -> list[int]:
        known = text.tokens[text.end :]
        return (known * (1 + self._settings.width // len(known)))[: self._settings.width]

    def _descend(self, text: RowText, place: Place, length: int) -> list[int]:
        """Along the path; where it is as long as paths get, along that of its longest suffix."""
        settings = self._settings
        window = min(settings.longest, settings.depth - 1)
        context, known = text.tokens[-window:], len(text.tokens[-window:])
        while len(context) - known < settings.width:
            following = self._tree.follow(place, settings.by_frequency)
            if following is None:
                if length < settings.depth or len(context) < window:
                    break
                space = self._tree.find(text.space)
                suffix = self._tree.find(context[len(context) - window :], space)
                following = suffix and self._tree.follow(suffix, settings.by_frequency)
                if following is None:
                    break
                length = window
            token, place = following
            length += 1
            context.append(token)
        return context[known:]

    def _share(self, text: RowText, most: int) -> None:
        depth = self._settings.depth
        stop = min(text.shared + most, len(text.tokens) - depth + 1)
        for start in range(text.shared, stop):
            self._tree.insert((*text.space, *text.tokens[start : start + depth]))
        text.shared = max(text.shared, stop)


class RowText:
    """A row's tokens, and where each of their n-grams ended the last time."""

    def __init__(self, settings: NgramSettings, space: bytes) -> None:
        self.space: tuple[int, ...] = tuple(np.frombuffer(space, np.int32).tolist())
        self.shared = 0
        """of its tokens, those at which a path of the tree begins"""
        self.tokens: list[int] = []
        self.ends: dict[tuple[int, ...], int] = {}
        self.length = self.end = 0
        """of the longest suffix that occurred before, and where it ended"""
        self._lengths = range(settings.shortest, settings.longest + 1)

    def push(self, token: int) -> None:
        self.tokens.append(token)
        self.length = self.end = 0
        size = len(self.tokens)
        for length in self._lengths:
            if length > size:
                break
            gram = tuple(self.tokens[size - length :])
            if found := self.ends.get(gram):
                self.length, self.end = length, found
            self.ends[gram] = size


class PathNode:
    """`tail`: what only one path went through behind a leaf."""

    __slots__ = ("children", "count", "parent", "tail", "token")

    def __init__(self, token: int, parent: PathNode | None, tail: Sequence[int] = ()) -> None:
        self.token = token
        self.parent = parent
        self.children: dict[int, PathNode] = {}
        """the latest last"""
        self.count = 1
        self.tail = tuple(tail)


Place = tuple[PathNode, int]
"""behind a node and so many tokens of its tail"""


class PathTree:
    """Paths of tokens with their visits. Of more than `capacity` tokens, in nodes and tails, the
    leaf that was not visited for the longest time leaves first."""

    def __init__(self, capacity: int) -> None:
        self.size = 0
        self._root = PathNode(-1, None)
        self._capacity = capacity
        self._leaves: OrderedDict[int, PathNode] = OrderedDict()
        """by identity, the latest last"""

    def find(self, tokens: Iterable[int], place: Place | None = None) -> Place | None:
        """From the root on, or from `place`."""
        node, used = place or (self._root, 0)
        for token in tokens:
            if node.tail:
                if used == len(node.tail) or node.tail[used] != token:
                    return None
                used += 1
            elif (child := node.children.get(token)) is not None:
                node = child
            else:
                return None
        return node, used

    def follow(self, place: Place, by_frequency: bool) -> tuple[int, Place] | None:
        """The latest or the most frequent token behind a place, and the place behind it."""
        node, used = place
        if used < len(node.tail):
            return node.tail[used], (node, used + 1)
        latest = list(
            islice(reversed(node.children.values()), MOST_CHILDREN if by_frequency else 1)
        )
        if not latest:
            return None
        best = max(latest, key=lambda child: child.count)
        return best.token, (best, 0)

    def children(self, place: Place, by_frequency: bool) -> list[int]:
        """The latest tokens behind a place, or the most frequent ones of these first."""
        node, used = place
        if used < len(node.tail):
            return [node.tail[used]]
        found = list(islice(reversed(node.children.values()), MOST_CHILDREN))
        if by_frequency:
            found.sort(key=lambda child: -child.count)
        return [child.token for child in found]

    def insert(self, tokens: Sequence[int]) -> None:
        """What there is no room for is left out."""
        node = self._root
        for index, token in enumerate(tokens):
            if node.tail:
                first, *rest = node.tail
                node.tail = ()
                self._add(PathNode(first, node, rest))
            if token not in node.children:
                self._grow(node, tokens[index:])
                return
            node = self._visit(node, token)

    def _visit(self, parent: PathNode, token: int) -> PathNode:
        node = parent.children[token] = parent.children.pop(token)
        if not node.children:
            self._leaves.move_to_end(id(node))
        node.count += 1
        return node

    def _grow(self, parent: PathNode, tokens: Sequence[int]) -> None:
        while self.size + len(tokens) > self._capacity:
            leaves = islice(self._leaves.values(), 2)
            oldest = next((leaf for leaf in leaves if leaf is not parent), None)
            if oldest is None:
                break
            self._remove(oldest)
        if fitting := tokens[: self._capacity - self.size]:
            self.size += len(fitting)
            self._add(PathNode(fitting[0], parent, fitting[1:]))

    def _add(self, node: PathNode) -> None:
        assert node.parent is not None
        self._leaves.pop(id(node.parent), None)
        node.parent.children[node.token] = node
        self._leaves[id(node)] = node

    def _remove(self, leaf: PathNode) -> None:
        above = leaf.parent
        assert above is not None
        del above.children[leaf.token]
        del self._leaves[id(leaf)]
        if not above.children and above is not self._root:  # its last visits went through the leaf
            self._leaves[id(above)] = above
            self._leaves.move_to_end(id(above), last=False)
        self.size -= 1 + len(leaf.tail)


class SortedTexts:
    """Texts that do not change, all in one; their positions in the order of the tokens that follow
    them, up to the end of a document (-1)."""

    def __init__(self, depth: int) -> None:
        self.tokens: list[int] = []
        self._sizes: list[int] = []
        """of the texts"""
        self._order: list[int] = []
        self._depth = depth

    def add(self, text: list[int]) -> None:
        text = text if text and text[-1] < 0 else [*text, -1]
        self.tokens += text
        self._sizes.append(len(text))
        self._sort()

    def remove(self, place: int) -> None:
        """The place-th of those that are there, in the order in which they came."""
        first = sum(self._sizes[:place])
        del self.tokens[first : first + self._sizes.pop(place)]
        self._sort()

    def _sort(self) -> None:
        places = (at for at, token in enumerate(self.tokens) if token >= 0)
        self._order = sorted(places, key=self._following)

    def _following(self, at: int) -> list[int]:
        found = self.tokens[at : at + self._depth]
        return found[: found.index(-1) + 1] if -1 in found else found

    def follow(self, gram: list[int], most: int) -> list[int]:
        """Of all that follows the gram what is in the middle of the order, so what follows most of
        its occurrences if anything does."""
        length, tokens = len(gram), self.tokens
        low = bisect_left(self._order, [*gram, 0], key=lambda at: tokens[at : at + length + 1])
        high = bisect_right(self._order, gram, key=lambda at: tokens[at : at + length])
        if low >= high:
            return []
        first = self._order[low + (high - low - 1) // 2] + length
        found = tokens[first : first + most]
        return found[: found.index(-1)] if -1 in found else found
