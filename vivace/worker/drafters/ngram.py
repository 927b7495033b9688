"""Drafts from what was said before: what stood behind the last occurrence of a row's longest suffix
(prompt lookup; Saxena 2023), in its own text, in those of all requests, in a corpus."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from vivace.platforms.host import upload
from vivace.platforms.ngrams import SPACE_BYTES, NgramIndex
from vivace.platforms.rows import RowColumns
from vivace.protocol.step import Join, StepPlan
from vivace.protocol.tasks import Generate
from vivace.protocol.workers import AddCorpus, RemoveCorpus
from vivace.worker.drafter import NoDrafter
from vivace.worker.drafters.growing_corpora import GrowingCorpora
from vivace.worker.drafters.place import DrafterPlace

MOST_CORPORA = 64
"""with an entry each in the state of every worker"""


@dataclass(frozen=True)
class Breadth:
    """How many ways go on behind a suffix: `most` behind one of the `shortest` tokens, `least`
    behind one of the `longest`; at each draft one fewer than at the one before it, but `least`."""

    least: int
    most: int
    shortest: int
    longest: int

    def find_most(self, length: int) -> int:
        """At the root, behind a suffix of `length` tokens."""
        steps = max(1, self.longest - self.shortest)
        known = min(max(0, length - self.shortest), steps)
        return self.most - (self.most - self.least) * known // steps


class NgramDrafter(NoDrafter):
    """What it proposes follows from the plans and what was drawn, so ranks propose the same."""

    reads_tokens = reports_ready = True

    def __init__(
        self,
        index: NgramIndex,
        width: int,
        *,
        certain: int = 0,
        vocabulary: int = 0,
        corpus_tokens: int = 0,
        overlap: int = 0,
        breadth: Breadth | None = None,
        sends: bool = False,
    ) -> None:
        """`index`: of as many drafts. A suffix of fewer than `certain` tokens gets two for each of
        its tokens but one: what follows one token is right one time in five, what follows twelve
        nearly always (docs/speculative.md has what was measured). Corpora may have ids below
        `vocabulary`, and so many tokens together; `overlap`: of `GrowingCorpora`. `breadth`: of
        trees; None: chains. `sends`: other stages of a pipeline have to hear of drafts."""
        self._sends = sends
        self.width = width
        self.trees = breadth is not None
        self._breadth = breadth
        self._index = index
        self._certain = certain
        self._vocabulary = vocabulary
        self._corpus_tokens = corpus_tokens
        self._corpora = GrowingCorpora(index, overlap)
        self._known: dict[int, int] = {}
        """row -> its tokens"""
        self._learned: dict[int, list[int]] = {}
        """row -> tokens that the index has not got yet"""
        self._drafts: dict[int, list[int]] = {}
        self._parents: dict[int, list[int]] = {}
        """of those that are a tree"""

    def attach(self, place: DrafterPlace) -> None:
        if place.rows.columns.parents is None:
            self._breadth = None

    @property
    def text_bytes(self) -> int:
        return self._index.nbytes

    def update(self, plan: StepPlan) -> None:
        self._hand_over()
        self._corpora.step()
        for row in plan.leaves:
            self._forget(row)
        for join in plan.joins:
            self._forget(join.row)
            if isinstance(join.task, Generate):
                self._index.join(join.row, name_space(join), join.tokens, join.cached)
                self._known[join.row] = len(join.tokens)

    def learn(self, row: int, tokens: list[int]) -> None:
        if row in self._known:
            self._learned.setdefault(row, []).extend(tokens)
            self._known[row] += len(tokens)
            self._drafts.pop(row, None)
            self._parents.pop(row, None)

    def ready(self, rows: list[int]) -> list[int]:
        self._hand_over()
        found, counts = self._index.propose(rows), list[int]()
        for row, drafts, length in zip(rows, found.drafts, found.lengths, strict=True):
            if length < self._certain:
                drafts = drafts[: 2 * (length - 1)] if length else drafts
            if self._breadth is not None and drafts:
                drafts = self._branch(row, drafts, length, self._breadth)
            self._drafts[row] = drafts
            counts.append(len(drafts))
        return counts

    def _branch(self, row: int, drafts: list[int], length: int, breadth: Breadth) -> list[int]:
        """A tree whose first way these are, behind a suffix of so many tokens."""
        ways = breadth.find_most(length)
        first = drafts[: -(-self.width // ways)]
        drafts, self._parents[row] = self._index.branch(row, first, ways, breadth.least)
        return drafts

    def drafts_to_send(self, rows: list[int]) -> list[list[int]]:
        return [list(self._drafts.get(row, ())) for row in rows] if self._sends else []

    def add_corpus(self, corpus: AddCorpus) -> str:
        tokens = np.frombuffer(corpus.tokens, np.int32)
        if corpus.name in self.corpora:
            return f"{corpus.name} is there already; remove it first (/remove_external_corpus)"
        if len(self.corpora) >= MOST_CORPORA:
            return (
                f"there are {MOST_CORPORA} corpora, which is the most: remove one "
                "(/remove_external_corpus), or send several texts as documents of one"
            )
        if not (tokens >= 0).any():
            return f"{corpus.name} has no tokens"
        if tokens.min() < -1 or tokens.max() >= self._vocabulary:
            return f"{corpus.name} has ids that the model has not"
        room = self._corpus_tokens - self._corpora.tokens
        if tokens.size > room:
            return (
                f"{corpus.name} has {tokens.size} tokens with ends of documents, and there is room "
                f"for {room} (see --speculative-ngram-external-corpus-max-tokens)"
            )
        self._corpora.add(corpus.name, tokens)
        self._settle()
        return ""

    def remove_corpus(self, corpus: RemoveCorpus) -> str:
        if corpus.name not in self.corpora:
            return f"there is no corpus {corpus.name}"
        self._corpora.remove(corpus.name)
        self._settle()
        return ""

    def _settle(self) -> None:
        """A part at once, and all where nobody waits for a step."""
        while self._corpora.step() and not self._known:
            pass

    @property
    def corpora(self) -> dict[str, int]:
        return self._corpora.names

    def propose(self, columns: RowColumns, rows: np.ndarray, counts: np.ndarray) -> None:
        places, tokens = list[int](), list[int]()
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            if not count:  # it may be one that wants no tokens
                continue
            drafts = self._drafts.get(row, [])[:count]
            tokens += drafts + [0] * (count - len(drafts))
            first = row * columns.tokens.shape[1] + self._known[row]
            places += range(first, first + count)
        device = columns.tokens.device
        values = upload(np.array(tokens, np.int32), device)
        columns.tokens.view(-1).index_copy_(0, upload(np.array(places, np.int64), device), values)
        if columns.parents is not None:
            parents = np.tile(np.arange(-1, self.width - 1, dtype=np.int32), (len(rows), 1))
            for index, (row, count) in enumerate(zip(rows.tolist(), counts.tolist(), strict=True)):
                known = self._parents.get(row, [])[:count]
                parents[index, : len(known)] = known
            columns.parents[upload(rows, device)] = upload(parents, device)

    def _hand_over(self) -> None:
        if self._learned:
            learned, self._learned = self._learned, {}
            tokens = [token for drawn in learned.values() for token in drawn]
            self._index.learn(list(learned), list(map(len, learned.values())), tokens)

    def _forget(self, row: int) -> None:
        if self._known.pop(row, None) is not None:
            self._index.leave(row)
        self._learned.pop(row, None)
        self._drafts.pop(row, None)
        self._parents.pop(row, None)


def name_space(join: Join) -> bytes:
    """Requests share what they say as far as they share cached prefixes."""
    key = join.cache_key.encode("utf-8", "surrogatepass")
    return blake2b(key, digest_size=SPACE_BYTES).digest()
