"""Translates constraints in a process that may end (`translation_process.py`)."""

from __future__ import annotations

import msgspec

from vivace.grammar.backend import GrammarError, LibraryFault
from vivace.grammar.limited_process import LimitedProcess, TrialLimits, encode
from vivace.grammar.source import GrammarDialect
from vivace.protocol.constraints import Constraint

MODULE = "vivace.grammar.translation_process"


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
