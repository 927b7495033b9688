"""Translates constraints in a process that ends when one takes too much, which runs this module."""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np

from vivace.grammar.backend import (
    GrammarError,
    GrammarMatcher,
    LibraryFault,
    TokenVocabulary,
    is_shared,
)
from vivace.grammar.limited_child import Answer, answer_constraints
from vivace.grammar.limited_process import LESS, LimitedProcess, TrialLimits, encode
from vivace.grammar.llguidance_backend import LLGuidanceBackend
from vivace.grammar.masks import find_bits, mask_words
from vivace.grammar.source import GrammarDialect, translate
from vivace.grammar.stuck_answers import explain_limit
from vivace.protocol.constraints import Constraint

MODULE = "vivace.grammar.translator"
MOST_FOLLOWED = 256
"""bytes that alone may follow: of those that the library says, and of those that it does not"""
FEW = 16
"""bytes that answers of a constraint begin with: each is tried"""


class BeginTranslating(msgspec.Struct, frozen=True):
    """The first message."""

    dialect: GrammarDialect
    limits: TrialLimits


class TranslatedGrammar(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a constraint became, or why it is refused."""

    grammars: list[str] = []
    refusal: str = ""
    fault: str = ""
    """of the library"""


class TranslatorProcess:
    """`translate` of source.py, within limits, in a process for each thread that calls."""

    def __init__(self, dialect: GrammarDialect, limits: TrialLimits | None = None) -> None:
        limits = limits or TrialLimits()
        self.process = LimitedProcess(MODULE, BeginTranslating(dialect, limits), limits)

    def translate(self, constraint: Constraint) -> list[str]:
        """Raises GrammarError; LibraryFault; GrammarUnavailable where the machine is to blame."""
        answer = self.process.ask(encode(constraint))
        found = msgspec.msgpack.decode(answer, type=TranslatedGrammar)
        if found.refusal:
            raise GrammarError(found.refusal)
        if found.fault:
            raise LibraryFault(found.fault)
        return found.grammars


def begin_translating(message: bytearray) -> tuple[Answer, TrialLimits]:
    begin = msgspec.msgpack.decode(message, type=BeginTranslating)
    vocabulary = byte_vocabulary(begin.dialect)
    backend = LLGuidanceBackend(vocabulary, begin.dialect.form, threads=1)
    mask = np.zeros(mask_words(len(vocabulary.tokens)), np.int32)
    return partial(answer_to, dialect=begin.dialect, backend=backend, mask=mask), begin.limits


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
        encode=lambda text: [ids[byte] for byte in text.encode()[:MOST_FOLLOWED]],
    )


def answer_to(
    constraint: Constraint, dialect: GrammarDialect, backend: LLGuidanceBackend, mask: np.ndarray
) -> TranslatedGrammar:
    try:
        grammars = translate(constraint, dialect)
        matcher = backend.build(constraint, grammars)
        check_start(matcher, mask)
    except GrammarError as error:
        return TranslatedGrammar(refusal=str(error))
    except LibraryFault as error:
        return TranslatedGrammar(fault=str(error))
    except MemoryError:
        return TranslatedGrammar(refusal=f"takes too much memory to compile; {LESS}")
    return TranslatedGrammar(grammars=grammars)


def check_start(matcher: GrammarMatcher, mask: np.ndarray) -> None:
    """Raises GrammarError where whatever an answer begins with comes to a limit of the library."""
    matcher.accept(matcher.forced())
    tokens: list[int] = []
    for _ in range(MOST_FOLLOWED):
        matcher.fill(mask)
        tokens = find_bits(mask)
        if len(tokens) != 1 or not matcher.accept(tokens) or matcher.ended:
            break
    error = matcher.error
    for token in tokens if len(tokens) <= FEW else []:
        behind = matcher.copy()
        behind.accept([token])
        behind.fill(mask)
        error = behind.error
        if not error or is_shared(error):  # which has ended the others
            break
    if error and (len(tokens) < 2 or not is_shared(error)):
        raise GrammarError(f"cannot be obeyed {explain_limit(error)}")


if __name__ == "__main__":
    answer_constraints(begin_translating)
