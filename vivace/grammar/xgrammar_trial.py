"""Whether xgrammar takes too much for a constraint, found out in a process that may end."""

from __future__ import annotations

import msgspec

from vivace.grammar.backend import JsonFormat, TokenVocabulary
from vivace.grammar.limited_process import LimitedProcess, TrialLimits, encode
from vivace.protocol.constraints import Constraint

MODULE = "vivace.grammar.xgrammar_process"
LIMITS = TrialLimits(cpu_seconds=3.0, memory=1 << 30)
"""It goes through the vocabulary of the model for every place of a grammar."""


class SentVocabulary(msgspec.Struct, frozen=True):
    """Of `TokenVocabulary` what is data."""

    tokens: list[bytes]
    special_ids: list[int]
    special_texts: dict[str, int]
    eos_ids: list[int]


class BeginTrials(msgspec.Struct, frozen=True):
    """The first message."""

    vocabulary: SentVocabulary
    form: JsonFormat
    limits: TrialLimits


class TriedGrammar(msgspec.Struct, frozen=True):
    """It took no more than the limits."""


class XGrammarTrial:
    """In a process for each thread that calls."""

    def __init__(
        self, vocabulary: TokenVocabulary, form: JsonFormat, limits: TrialLimits = LIMITS
    ) -> None:
        sent = msgspec.convert(vocabulary, SentVocabulary, from_attributes=True)
        begin = BeginTrials(sent, form, limits)
        self.process = LimitedProcess(MODULE, begin, limits)

    def check(self, constraint: Constraint) -> None:
        """Raises GrammarError for what takes too much; GrammarUnavailable where the machine is to
        blame."""
        self.process.ask(encode(constraint))
