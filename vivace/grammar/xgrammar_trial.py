"""Whether xgrammar takes too much for a constraint, found out in a process that ends then, which
runs this module."""

from __future__ import annotations

import msgspec

from vivace.grammar.backend import JsonFormat, TokenVocabulary
from vivace.grammar.limited_child import Answer, answer_constraints
from vivace.grammar.limited_process import LimitedProcess, TrialLimits, encode
from vivace.grammar.xgrammar_compiler import XGrammarCompiler
from vivace.protocol.constraints import Constraint

MODULE = "vivace.grammar.xgrammar_trial"
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


def begin_trials(message: bytearray) -> tuple[Answer, TrialLimits]:
    begin = msgspec.msgpack.decode(message, type=BeginTrials)
    known = msgspec.structs.asdict(begin.vocabulary)
    vocabulary = TokenVocabulary(**known, encode=lambda text: [])  # nothing is forced here
    compiler = XGrammarCompiler(vocabulary, begin.form)

    def answer(constraint: Constraint) -> None:
        compiler.compile(constraint)

    return answer, begin.limits


if __name__ == "__main__":
    answer_constraints(begin_trials)
