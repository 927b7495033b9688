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


class XGrammarBackend:
    """`others`: llguidance, for what xgrammar does not enforce."""

    def __init__(
        self,
        vocabulary: TokenVocabulary,
        form: JsonFormat,
        others: GrammarBackend,
        *,
        checked: bool = False,
    ) -> None:
        """`checked`: somebody else has found that constraints take little."""
        self._others = others
        self._trial = None if checked else XGrammarTrial(vocabulary, form)
        self._library = import_module("xgrammar")
        self._ends = AnswerEnds(vocabulary)
        self._compiler = XGrammarCompiler(vocabulary, form)

    def compile(self, constraint: Constraint) -> GrammarMatcher:
        other = self._others.compile(constraint)
        if not self._compiler.enforces(constraint):
            return other
        if self._trial is not None:
            self._trial.check(constraint)
        with yield_often():
            compiled = self._compiler.compile(constraint)
        if compiled is None:
            return other
        return XGrammarMatcher(self._library.GrammarMatcher(compiled), self._ends)

    def fill(self, matchers: Sequence[PlacedMatcher], masks: np.ndarray) -> None:
        """Those of xgrammar one by one: they take little, and it starts threads for each batch."""
        self._others.fill(matchers, masks)


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
