"""Compiles constraints with xgrammar, and ends when one takes too much: `python -m` of
`XGrammarTrial`."""

from __future__ import annotations

import msgspec

from vivace.grammar.backend import TokenVocabulary
from vivace.grammar.limited_child import Answer, answer_constraints
from vivace.grammar.limited_process import TrialLimits
from vivace.grammar.xgrammar_compiler import XGrammarCompiler
from vivace.grammar.xgrammar_trial import BeginTrials, TriedGrammar
from vivace.protocol.constraints import Constraint


def begin_trials(message: bytearray) -> tuple[Answer, TrialLimits]:
    begin = msgspec.msgpack.decode(message, type=BeginTrials)
    known = msgspec.structs.asdict(begin.vocabulary)
    vocabulary = TokenVocabulary(**known, encode=lambda text: [])  # nothing is forced here
    compiler = XGrammarCompiler(vocabulary, begin.form)

    def answer(constraint: Constraint) -> TriedGrammar:
        compiler.compile(constraint)
        return TriedGrammar()

    return answer, begin.limits


if __name__ == "__main__":
    answer_constraints(begin_trials)
