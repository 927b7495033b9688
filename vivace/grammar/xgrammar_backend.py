"""xgrammar: masks that are mostly known when a grammar is compiled.

It leaves parts of constraints out without saying so, and has no limits of its own: some grammars
end the process (`value ::= value{0,5000}`). So llguidance compiles everything first, which refuses
what cannot be enforced, and keeps all but what xgrammar is known to enforce whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from vivace.grammar.backend import (
    GrammarBackend,
    GrammarMatcher,
    JsonFormat,
    PlacedMatcher,
    TokenVocabulary,
)
from vivace.grammar.json_schema import read_schema
from vivace.grammar.masks import mask_words, pack_mask, set_bit
from vivace.grammar.structural_tag import read_structural_tag
from vivace.grammar.xgrammar_scope import enforces, enforces_regex, enforces_tag
from vivace.protocol.constraints import JSON_SCHEMA, REGEX, STRUCTURAL_TAG, Constraint

MAX_BYTES = 64 << 20
"""of a compiled grammar: what takes more is llguidance's"""
FEW = 8
"""masks that are filled one after the other: it starts its threads for each batch"""


class XGrammarBackend:
    """`others`: llguidance, for what xgrammar does not enforce. `threads`: that fill masks."""

    def __init__(
        self,
        vocabulary: TokenVocabulary,
        form: JsonFormat,
        others: GrammarBackend,
        threads: int | None = None,
    ) -> None:
        self._library = import_module("xgrammar")
        self._form, self._others = form, others
        self._ends = AnswerEnds(vocabulary)
        self._special_texts = list(vocabulary.special_texts)
        self._batch = self._library.BatchGrammarMatcher(threads or "auto")
        tokens = self._library.TokenizerInfo(
            [b"" if i in self._ends.special else t for i, t in enumerate(vocabulary.tokens)],
            self._library.VocabType.RAW,
            vocab_size=len(vocabulary.tokens),
            stop_token_ids=list(vocabulary.eos_ids),
        )
        self._compiler = self._library.GrammarCompiler(tokens, max_threads=1, cache_enabled=False)
        self._kinds: dict[str, Callable[[str], Any]] = {
            JSON_SCHEMA: self._compile_schema,
            REGEX: self._compile_regex,
            STRUCTURAL_TAG: self._compile_tag,
        }

    def compile(self, constraint: Constraint) -> GrammarMatcher:
        other = self._others.compile(constraint)
        build = self._kinds.get(constraint.kind)
        try:
            compiled = build and build(constraint.text)
        except Exception:  # whatever a native library raises: llguidance can
            return other
        if compiled is None or compiled.memory_size_bytes > MAX_BYTES:
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

    # --- compiled, or None where it would leave something out -----------------------------------

    def _compile_schema(self, text: str) -> Any:
        schema = read_schema(text)
        if self._form.whitespace_pattern is not None or not enforces(schema):
            return None
        return self._compiler.compile_json_schema(
            json.dumps(schema if isinstance(schema, dict) else {}),
            any_whitespace=not self._form.compact,
            separators=(",", ":") if self._form.compact else None,
        )

    def _compile_regex(self, pattern: str) -> Any:
        return self._compiler.compile_regex(pattern) if enforces_regex(pattern) else None

    def _compile_tag(self, text: str) -> Any:
        tag = read_structural_tag(text)
        if self._form != JsonFormat() or not enforces_tag(tag, self._special_texts):
            return None
        whole = {"type": STRUCTURAL_TAG, "format": tag}
        return self._compiler.compile_structural_tag(json.dumps(whole))


class AnswerEnds:
    """The tokens of a vocabulary that stand for no text, and where it ends."""

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        self.ids = frozenset(vocabulary.eos_ids)
        self.special = frozenset(vocabulary.special_ids)
        self.never = (
            self.special.union(token for token, text in enumerate(vocabulary.tokens) if not text)
            - self.ids
        )
        """nor end an answer"""
        self.mask = np.zeros(mask_words(len(vocabulary.tokens)), np.int32)
        for token in self.ids:
            set_bit(self.mask, token)
        self.last_word = pack_mask(np.ones(len(vocabulary.tokens), np.bool_))[-1]
        """the tokens in the last word of a mask: it allows those behind them, too"""


class XGrammarMatcher:
    """`GrammarMatcher` takes nothing behind an end: here another one may follow."""

    error = ""

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
