"""Masks what a grammar forbids, before a token is drawn."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from vivace.errors import StepRefused
from vivace.grammar.backend import GrammarError, GrammarMatcher, mask_words
from vivace.grammar.compiler import GrammarCompiler
from vivace.platforms.host import download, upload
from vivace.platforms.ops.sampling import SamplingOps
from vivace.protocol.step import Join
from vivace.sampling.processors import Entries, Histories

MAX_REASON = 200


class GrammarLogitsProcessor:
    """json_schema, regex, ebnf, structural_tag. What a row has drawn its matcher has accepted; a
    copy goes on over drafts. A row that joins again is built from its tokens."""

    def __init__(self, ops: SamplingOps, history: Histories, compiler: GrammarCompiler) -> None:
        self.host_state = self
        self._ops, self._history, self._compiler = ops, history, compiler
        self._matchers: dict[int, GrammarMatcher] = {}
        self._known: dict[int, int] = {}
        """row -> tokens it knows, its prompt among them"""
        self._fields: dict[int, str] = {}
        self._masks = np.zeros((0, 0), np.int32)

    def joined(self, row: int, join: Join) -> bool:
        constraint = join.sampling.constraint
        if constraint is None:
            return False
        try:
            matcher = self._compiler.matcher(constraint)
        except GrammarError as error:
            raise StepRefused(f"{constraint.field or constraint.kind}: {error}") from error
        matcher.accept(join.tokens[join.prompt :])
        self._matchers[row], self._known[row] = matcher, len(join.tokens)
        self._fields[row] = constraint.field or constraint.kind
        return True

    def apply(self, logits: Tensor, entries: Entries, places: np.ndarray) -> None:
        masks = self._take_masks(len(places), mask_words(logits.shape[1]))
        index = upload(places, logits.device)
        picked = entries.select(places, index)
        rows = picked.host_rows.tolist()
        for mask, row, drafts in zip(masks, rows, self._drafts(picked), strict=True):
            fill_behind(self._matchers[row], drafts, mask)
        self._ops.apply_token_bitmask(logits, index, upload(masks, logits.device))

    def landed(self, row: int, tokens: list[int]) -> None:
        self._matchers[row].accept(tokens)
        self._known[row] += len(tokens)

    def why_stuck(self, row: int) -> str:
        error = self._matchers[row].error
        if not error:
            return ""
        reason = " ".join(error.split())[:MAX_REASON]
        return f"{self._fields[row]}: cannot be obeyed any further ({reason}); make it simpler"

    def _take_masks(self, count: int, words: int) -> np.ndarray:
        if self._masks.shape[1] != words or len(self._masks) < count:
            self._masks = np.zeros((max(count, 2 * len(self._masks)), words), np.int32)
        return self._masks[:count]

    def _drafts(self, entries: Entries) -> list[list[int]]:
        """What stands between the known tokens and each entry."""
        if not self._history.drafts:
            return [[]] * len(entries)
        positions = download(entries.positions)
        known = np.array([self._known[row] for row in entries.host_rows.tolist()])
        if not (positions > known).any():
            return [[]] * len(entries)
        tokens, rows = self._history.tokens, entries.rows
        if entries.paths is not None:
            tokens, rows = entries.paths.read_tokens(tokens, rows, entries.positions)
        found = download(tokens.index_select(0, rows))
        return [
            line[start:end].tolist()
            for line, start, end in zip(found, known, positions, strict=True)
        ]


def fill_behind(matcher: GrammarMatcher, drafts: list[int], mask: np.ndarray) -> None:
    """What may follow behind drafts. Behind one that may not stand there nothing is ever kept, so
    anything may."""
    behind = matcher.copy() if drafts else matcher
    if behind.accept(drafts) < len(drafts):
        mask[:] = -1
    else:
        behind.fill(mask)
