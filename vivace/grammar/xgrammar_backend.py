"""xgrammar: masks that are mostly known when a grammar is compiled.

It leaves parts of constraints out without saying so, and has no limits of its own: some grammars
end the process (`value ::= value{0,5000}`). So llguidance compiles everything first, which refuses
what cannot be enforced, and keeps all but what xgrammar is known to enforce whole; that is tried in
a process that may end.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from vivace.config.time_slices import yield_often
from vivace.grammar.backend import (
    GrammarBackend,
    GrammarMatcher,
    JsonFormat,
    PlacedMatcher,
    TokenVocabulary,
)
from vivace.grammar.xgrammar_compiler import AnswerEnds, XGrammarCompiler
from vivace.grammar.xgrammar_trial import XGrammarTrial
from vivace.protocol.constraints import Constraint

FEW = 8
"""masks that are filled one after the other: it starts its threads for each batch"""


def trust(constraint: Constraint) -> None:
    """Nothing is wrong with it."""


class XGrammarBackend:
    """`others`: llguidance, for what xgrammar does not enforce. `threads`: that fill masks."""

    def __init__(
        self,
        vocabulary: TokenVocabulary,
        form: JsonFormat,
        others: GrammarBackend,
        threads: int | None = None,
        *,
        checked: bool = False,
    ) -> None:
        """`checked`: somebody else has found that constraints take little."""
        self._others = others
        self._check = trust if checked else XGrammarTrial(vocabulary, form).check
        self._library = import_module("xgrammar")
        self._ends = AnswerEnds(vocabulary)
        self._compiler = XGrammarCompiler(vocabulary, form)
        self._batch = self._library.BatchGrammarMatcher(threads or "auto")

    def compile(self, constraint: Constraint) -> GrammarMatcher:
        other = self._others.compile(constraint)
        if not self._compiler.enforces(constraint):
            return other
        self._check(constraint)
        with yield_often():
            compiled = self._compiler.compile(constraint)
        if compiled is None:
            return other
        return XGrammarMatcher(self._library.GrammarMatcher(compiled), self._ends)

    def fill(self, matchers: Sequence[PlacedMatcher], masks: np.ndarray) -> None:
        own: list[tuple[XGrammarMatcher, int]] = []
        others: list[PlacedMatcher] = []
        for matcher, place in matchers:
            if isinstance(matcher, XGrammarMatcher):
                own.append((matcher, place))
            else:
                others.append((matcher, place))
        if others:
            self._others.fill(others, masks)
        if len(own) > FEW:
            own = self._fill_together(own, masks)
        for matcher, place in own:
            matcher.fill(masks[place])

    def _fill_together(
        self, matchers: Sequence[tuple[XGrammarMatcher, int]], masks: np.ndarray
    ) -> list[tuple[XGrammarMatcher, int]]:
        """On several threads; returns those that have ended, whose masks it would not fill."""
        going = [(one.handle, place) for one, place in matchers if not one.handle.is_terminated()]
        handles, places = [handle for handle, _ in going], [place for _, place in going]
        self._batch.batch_fill_next_token_bitmask(handles, masks, places)
        masks[places, len(self._ends.mask) - 1] &= self._ends.last_word
        return [(one, place) for one, place in matchers if one.handle.is_terminated()]


class XGrammarMatcher:
    """`GrammarMatcher` takes nothing behind an end: here another one may follow."""

    error, cost = "", 0

    def __init__(self, handle: Any, ends: AnswerEnds) -> None:
        self.handle, self._ends = handle, ends

    @property
    def ended(self) -> bool:
        mask = np.zeros_like(self._ends.mask)
        self.fill(mask)
        return bool((mask == self._ends.mask).all())

    def fill(self, mask: np.ndarray) -> None:
        if self.handle.is_terminated():
            mask[:] = 0
            mask[: len(self._ends.mask)] = self._ends.mask
        else:
            self.handle.fill_next_token_bitmask(mask)
            mask[len(self._ends.mask) - 1] &= self._ends.last_word

    def allows(self, token: int) -> bool:
        return self.copy().accept([token]) == 1

    def forced(self) -> list[int]:
        return []  # a text that has to follow may be divided in any way

    def accept(self, tokens: list[int]) -> int:
        for count, token in enumerate(tokens):
            if token in self._ends.never:  # it would say so, in the log
                return count
            if self.handle.is_terminated():
                accepted = token in self._ends.ids
            else:
                accepted = self.handle.accept_token(token)
            if not accepted:
                return count
        return len(tokens)

    def copy(self) -> XGrammarMatcher:
        return XGrammarMatcher(self.handle.fork(), self._ends)

    def fresh(self) -> None:
        return None
