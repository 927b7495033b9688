"""A small vocabulary: every byte, some longer tokens, an end; and automata for it."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import torch

from vivace.grammar.backend import GrammarBackend, GrammarMatcher, JsonFormat, TokenVocabulary
from vivace.grammar.llguidance_backend import LLGuidanceBackend
from vivace.grammar.masks import mask_words
from vivace.grammar.processor import GrammarLogitsProcessor
from vivace.platforms.ops.sampling import TorchSampling
from vivace.protocol.constraints import JSON_SCHEMA, Constraint
from vivace.sampling.processors import Entries

WORDS = [b'{"', b'":', b'": "', b'",', b'"}', b"]}", b"true", b"false", b"null", b"12", b" ", b"  "]
WORDS += [b"abc", b"ab", b"\xc3\xa4", "ä€".encode(), b'"a"', b"[[", b"]]", b", ", b"\n  ", b"-1"]
WORDS = [word for word in WORDS if len(word) > 1]
TOKENS = [bytes([byte]) for byte in range(256)] + WORDS
EOS = len(TOKENS)
CALL = EOS + 1
"""a special token"""
TOKENS += [b"<eos>", b"<|call|>"]
UNUSED = 5
"""ids of the model that the tokenizer has no token for"""
SIZE = len(TOKENS) + UNUSED


def encode(text: str) -> list[int]:
    return list(text.encode())


VOCABULARY = TokenVocabulary(
    tokens=[*TOKENS, *[b""] * UNUSED],
    special_ids=[EOS, CALL],
    special_texts={"<|call|>": CALL},
    eos_ids=(EOS,),
    encode=encode,
)


def backend(form: JsonFormat = JsonFormat()) -> LLGuidanceBackend:
    return LLGuidanceBackend(VOCABULARY, form)


BACKEND = backend()


def compiled(kind: str, what: Any) -> GrammarMatcher:
    text = what if isinstance(what, str) else json.dumps(what)
    return BACKEND.compile(Constraint(kind=kind, text=text))


@functools.cache
def compile_once(backend: GrammarBackend, constraint: Constraint) -> GrammarMatcher:
    return backend.compile(constraint)


def next_answer(backend: GrammarBackend, constraint: Constraint) -> GrammarMatcher:
    """What `compile` gives, for the many answers of one constraint."""
    return compile_once(backend, constraint).fresh() or backend.compile(constraint)


def schema_matcher(schema: Any) -> GrammarMatcher:
    return compiled(JSON_SCHEMA, schema)


def apply_masks(processor: GrammarLogitsProcessor, logits: torch.Tensor, entries: Entries) -> None:
    """In place, as a sampler does."""
    masks = processor.apply(logits, entries, np.arange(len(entries)))
    TorchSampling(reads=True).argmax(logits, masks)


def allowed(matcher: GrammarMatcher) -> np.ndarray:
    """[SIZE] bool"""
    mask = np.zeros(mask_words(SIZE), np.int32)
    matcher.fill(mask)
    assert not matcher.error, matcher.error
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little").astype(bool)
    assert not bits[SIZE:].any()
    return bits[:SIZE]


def walk_randomly(matcher: GrammarMatcher, rng: np.random.Generator, most: int = 200) -> list[int]:
    """A random answer: ids without the end; longer than `most` is not finished."""
    found: list[int] = []
    while len(found) < most:
        ids = np.flatnonzero(allowed(matcher))
        others = ids[ids != EOS]
        ends = EOS in ids and (not others.size or rng.random() < 0.5)
        token = EOS if ends else int(rng.choice(others))
        assert matcher.accept([token]) == 1
        if token == EOS:
            break
        found.append(token)
    return found


def spell(ids: list[int]) -> bytes:
    """What these tokens say."""
    return b"".join(VOCABULARY.tokens[token] for token in ids)


def obeys(kind: str, what: Any, text: str | bytes) -> bool:
    """Whether an answer of this text can end."""
    data = text.encode() if isinstance(text, str) else text
    ids: list[int] = []
    for index, part in enumerate(data.split(b"<|call|>")):
        ids += [*([CALL] if index else []), *part]
    matcher = compiled(kind, what)
    return matcher.accept([*ids, EOS]) == len(ids) + 1
