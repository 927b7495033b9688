"""Masks what a grammar forbids, before a token is drawn."""

from __future__ import annotations

from itertools import groupby, takewhile

import numpy as np
from torch import Tensor

from vivace.errors import StepRefused
from vivace.grammar.backend import GrammarError, GrammarMatcher, PlacedMatcher
from vivace.grammar.compiler import GrammarCompiler
from vivace.grammar.masks import mask_words
from vivace.grammar.next_masks import NextMasks
from vivace.platforms.host import download, upload
from vivace.platforms.ops.sampling import SamplingOps
from vivace.platforms.rows import TokensByRow
from vivace.protocol.constraints import Constraint
from vivace.protocol.step import Join
from vivace.protocol.tasks import GENERATE
from vivace.sampling.processors import Entries, Histories

MAX_REASON = 200
MOST_FORCED = 11
"""tokens at once: with the one that was drawn a step of one row is still a replay of single tokens
(`REPLAYED_TOKENS`)"""
ANYTHING = -1
"""mask behind a draft that may not stand where it does: nothing there is ever kept"""


class GrammarLogitsProcessor:
    """json_schema, regex, ebnf, structural_tag. What a row has drawn its matcher has accepted; a
    copy goes on over drafts. A row that joins again is built from its tokens.

    Tokens that alone may follow a row knows without a draw: what it draws behind them is the same.
    Not where more is wanted of each token than what it is.
    """

    def __init__(
        self,
        ops: SamplingOps,
        history: Histories,
        compiler: GrammarCompiler,
        *,
        forces: bool = True,
    ) -> None:
        """`forces`: whether it does so"""
        self.host_state = self
        self._ops, self._history, self._compiler = ops, history, compiler
        self._matchers: dict[int, GrammarMatcher] = {}
        self._known: dict[int, int] = {}
        """row -> tokens it knows, its prompt among them"""
        self._constraints: dict[int, Constraint] = {}
        self._forces = forces
        self._stops: dict[int, frozenset[int]] = {}
        """of rows that know what is forced: what they draw nonetheless, since it may be masked"""
        self._masks = NextMasks(compiler.fill)

    def joined(self, row: int, join: Join) -> bool:
        self._masks.drop(row)
        self._stops.pop(row, None)
        constraint = join.sampling.constraint
        if constraint is None:
            return False
        try:
            matcher = self._compiler.matcher(constraint)
        except GrammarError as error:
            raise StepRefused(f"{constraint.field or constraint.kind}: {error}") from error
        matcher.accept(join.tokens[join.prompt :])
        self._matchers[row], self._known[row] = matcher, len(join.tokens)
        self._constraints[row] = constraint
        if self._forces and join.logprobs is None and join.task == GENERATE:
            self._stops[row] = frozenset(join.stop_ids)
        return True

    def apply(self, logits: Tensor, entries: Entries, places: np.ndarray) -> None:
        index = upload(places, logits.device)
        picked = entries.select(places, index)
        masks = self._masks.take(self._matchers, picked.host_rows, mask_words(logits.shape[1]))
        self._fill_behind_drafts(picked, masks)
        self._ops.apply_token_bitmask(logits, index, upload(masks, logits.device))

    def landed(self, drawn: TokensByRow, *, at_once: bool) -> TokensByRow:
        self._masks.wait()
        forced: dict[int, list[int]] = {}
        for row, tokens in drawn.items():
            self._go_on(row, tokens)
            if at_once and row in self._stops and (found := self._find_forced(row)):
                self._go_on(row, found)
                forced[row] = found
        self._masks.begin({row: self._matchers[row] for row in drawn})
        return forced

    def _go_on(self, row: int, tokens: list[int]) -> None:
        self._matchers[row].accept(tokens)
        self._known[row] += len(tokens)

    def _find_forced(self, row: int) -> list[int]:
        """As many as the row has room for."""
        room = self._history.tokens.shape[1] - 1 - self._history.drafts - self._known[row]
        tokens, stops = self._matchers[row].forced(), self._stops[row]
        return list(takewhile(lambda token: token not in stops, tokens))[: min(room, MOST_FORCED)]

    def why_stuck(self, row: int) -> str:
        self._masks.wait()
        error = self._matchers[row].error
        if not error:
            return ""
        constraint = self._constraints[row]
        self._compiler.forget(constraint)
        reason = " ".join(error.split())[:MAX_REASON]
        told = f"cannot be obeyed any further ({reason}); make it simpler"
        return f"{constraint.field or constraint.kind}: {told}"

    def _fill_behind_drafts(self, entries: Entries, masks: np.ndarray) -> None:
        drafts = self._drafts(entries)
        if not any(drafts):
            return
        behind: list[PlacedMatcher] = []
        rows = entries.host_rows.tolist()
        for row, lines in groupby(enumerate(drafts), lambda line: rows[line[0]]):
            branches = DraftBranches(self._matchers[row])
            for place, line in lines:
                if not line:
                    continue
                matcher = branches.follow(tuple(line))
                if matcher is None:
                    masks[place] = ANYTHING
                else:
                    behind.append((matcher.copy(), place))
        self._compiler.fill(behind, masks)

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


class DraftBranches:
    """Where a row would stand behind its drafts, in the order in which they stand: each behind
    those that lead to it."""

    def __init__(self, matcher: GrammarMatcher) -> None:
        self._found: dict[tuple[int, ...], GrammarMatcher | None] = {(): matcher}

    def follow(self, drafts: tuple[int, ...]) -> GrammarMatcher | None:
        """None where one of them may not stand."""
        if drafts not in self._found:
            before = self.follow(drafts[:-1])
            behind = before and before.copy()
            if behind is not None and not behind.accept([drafts[-1]]):
                behind = None
            self._found[drafts] = behind
        return self._found[drafts]
