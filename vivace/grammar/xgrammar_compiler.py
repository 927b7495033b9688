"""Compiles what xgrammar enforces whole."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import numpy as np

from vivace.grammar.backend import WHITESPACE, JsonFormat, TokenVocabulary
from vivace.grammar.json_schema import read_schema
from vivace.grammar.masks import mask_words, pack_mask, set_bit
from vivace.grammar.tag_forms import read_structural_tag
from vivace.grammar.xgrammar_scope import enforces, enforces_regex, enforces_tag
from vivace.protocol.constraints import JSON_SCHEMA, REGEX, STRUCTURAL_TAG, Constraint

MAX_BYTES = 64 << 20
"""of a compiled grammar: what takes more is llguidance's"""


class XGrammarCompiler:
    """Of constraints that llguidance enforces."""

    def __init__(self, vocabulary: TokenVocabulary, form: JsonFormat) -> None:
        library = import_module("xgrammar")
        self._form = form
        self._special_texts = list(vocabulary.special_texts)
        special = frozenset(vocabulary.special_ids)
        tokens = library.TokenizerInfo(
            [b"" if i in special else text for i, text in enumerate(vocabulary.tokens)],
            library.VocabType.RAW,
            vocab_size=len(vocabulary.tokens),
            stop_token_ids=list(vocabulary.eos_ids),
        )
        self._compiler = library.GrammarCompiler(tokens, max_threads=1, cache_enabled=False)

    def enforces(self, constraint: Constraint) -> bool:
        """Whether all of it."""
        text = constraint.text
        if constraint.kind == JSON_SCHEMA:
            return self._form.whitespace == WHITESPACE and enforces(read_schema(text))
        if constraint.kind == STRUCTURAL_TAG:
            tag = read_structural_tag(text)
            return self._form == JsonFormat() and enforces_tag(tag, self._special_texts)
        return constraint.kind == REGEX and enforces_regex(text)

    def compile(self, constraint: Constraint) -> Any:
        """Of one that it enforces. None: it is too large, or the library refuses."""
        try:
            compiled = self._compile(constraint.kind, constraint.text)
        except Exception:  # whatever a native library raises: llguidance can
            return None
        return None if compiled.memory_size_bytes > MAX_BYTES else compiled

    def _compile(self, kind: str, text: str) -> Any:
        if kind == REGEX:
            return self._compiler.compile_regex(text)
        if kind == STRUCTURAL_TAG:
            whole = {"type": STRUCTURAL_TAG, "format": read_structural_tag(text)}
            return self._compiler.compile_structural_tag(json.dumps(whole))
        schema = read_schema(text)
        return self._compiler.compile_json_schema(
            json.dumps(schema if isinstance(schema, dict) else {}),
            any_whitespace=not self._form.compact,
            separators=(",", ":") if self._form.compact else None,
        )


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
