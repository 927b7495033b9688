"""Translates constraints, and ends when one takes too much: `python -m` of `TranslatorProcess`."""

from __future__ import annotations

from functools import partial

import msgspec

from vivace.grammar.backend import GrammarError, LibraryFault, TokenVocabulary
from vivace.grammar.limited_child import Answer, answer_constraints
from vivace.grammar.limited_process import LESS, TrialLimits
from vivace.grammar.llguidance_backend import LLGuidanceBackend
from vivace.grammar.source import GrammarDialect, translate
from vivace.grammar.translator import BeginTranslating, TranslatedGrammar
from vivace.protocol.constraints import Constraint


def begin_translating(message: bytearray) -> tuple[Answer, TrialLimits]:
    begin = msgspec.msgpack.decode(message, type=BeginTranslating)
    vocabulary = byte_vocabulary(begin.dialect)
    backend = LLGuidanceBackend(vocabulary, begin.dialect.form, threads=1)
    return partial(answer_to, dialect=begin.dialect, backend=backend), begin.limits


def byte_vocabulary(dialect: GrammarDialect) -> TokenVocabulary:
    """All bytes, and the special tokens of the model: what a grammar costs shows with these."""
    special = dialect.special_ids
    words = {token: word.encode() for word, token in special.items()}
    plain = (bytes([byte]) for byte in range(256))
    size = max(words, default=0) + 258  # one token is left for the end
    tokens = [words.get(token) or next(plain, b"") for token in range(size)]
    ids = {text[0]: token for token, text in enumerate(tokens) if text and token not in words}
    return TokenVocabulary(
        tokens=tokens,
        special_ids=[*sorted(words), size - 1],
        special_texts=special,
        eos_ids=(size - 1,),
        encode=lambda text: [ids[byte] for byte in text.encode()],
    )


def answer_to(
    constraint: Constraint, dialect: GrammarDialect, backend: LLGuidanceBackend
) -> TranslatedGrammar:
    try:
        grammars = translate(constraint, dialect)
        backend.build(constraint, grammars)
    except GrammarError as error:
        return TranslatedGrammar(refusal=str(error))
    except LibraryFault as error:
        return TranslatedGrammar(fault=str(error))
    except MemoryError:
        return TranslatedGrammar(refusal=f"takes too much memory to compile; {LESS}")
    return TranslatedGrammar(grammars=grammars)


if __name__ == "__main__":
    answer_constraints(begin_translating)
