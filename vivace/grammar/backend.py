"""What an answer has to obey, as an automaton over tokens: the protocols, and what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from vivace.protocol.constraints import Constraint

if TYPE_CHECKING:
    import numpy as np


class GrammarError(ValueError):
    """A constraint that cannot be enforced; the text says where in it, why, and what to do."""


class LibraryFault(Exception):
    """The library has failed at a constraint, of which nobody knows whether it is to blame. The
    text is what the client is told; another time may go well."""


class GrammarUnavailable(Exception):
    """A constraint that cannot be compiled now, for no fault of its own."""


@dataclass(frozen=True, kw_only=True)
class TokenVocabulary:
    """What the tokens of a model stand for."""

    tokens: Sequence[bytes]
    """of each id of the model; of those that stand for no text, nothing"""
    special_ids: Sequence[int]
    """no text brings them"""
    special_texts: Mapping[str, int]
    """how they are written -> those that end no answer"""
    encode: Callable[[str], list[int]]
    """as the model's tokenizer would; texts of the tokens together are the text"""
    eos_ids: Sequence[int]
    """an answer ends with one of these"""


WHITESPACE = r"[ \t]?(\r?\n[ \t]{0,400})?"
"""A blank, and a line that is indented by four blanks for each of 100 levels: what writers of JSON
put between its parts. A model that likes blanks has to go on behind them."""


@dataclass(frozen=True, kw_only=True)
class JsonFormat:
    """How JSON is written."""

    whitespace: str = WHITESPACE
    """between its parts"""
    compact: bool = False
    """no whitespace between its parts"""


SHARED_LIMITS = "lexer error: ", "PoisonError"
"""in the error of a matcher at a limit for which those of its copies count, too (states, fuel), and
of the copies of one at which the library has failed, since that had their lexer then"""
LIBRARY_FAILED = "the grammar library failed"
"""begins the error of a matcher whose library has; its constraint may be as it should"""


def is_shared(error: str) -> bool:
    """Whether another answer may be to blame."""
    return bool(error) and any(said in error for said in SHARED_LIMITS)


class GrammarMatcher(Protocol):
    """Where one answer stands."""

    @property
    def ended(self) -> bool:
        """Nothing but its end may follow, or it has ended."""
        ...

    @property
    def error(self) -> str:
        """Why it cannot go on: it took more than a limit, or is `STUCK`. Empty: it can."""
        ...

    def fill(self, mask: np.ndarray) -> None:
        """Set the bits of the tokens that may follow in mask[words] int32, clear all others. The
        end may follow exactly where the answer obeys already."""
        ...

    def allows(self, token: int) -> bool:
        """Whether the mask has its bit."""
        ...

    def forced(self) -> list[int]:
        """Tokens that have to follow, each the only one that may behind those before it; not the
        end. There may be more than it says."""
        ...

    def accept(self, tokens: list[int]) -> int:
        """They follow; how many of them may, which is where it stands then."""
        ...

    def copy(self) -> GrammarMatcher:
        """Another answer that stands here; what is found out about texts may be for both, and count
        for both where there is a limit."""
        ...

    @property
    def cost(self) -> int:
        """Of `fresh`: two a microsecond, or fewer. The same on each machine."""
        ...

    def fresh(self) -> GrammarMatcher | None:
        """Another answer, at its start, that has nothing in common with others; None where making
        it takes long, or nothing is shared."""
        ...


PlacedMatcher = tuple[GrammarMatcher, int]
"""with its place among masks"""


class GrammarBackend(Protocol):
    """Makes automata for the vocabulary of one model."""

    def compile(self, constraint: Constraint) -> GrammarMatcher:
        """At the start of an answer. From any thread; raises GrammarError."""
        ...

    def fill(self, matchers: Sequence[PlacedMatcher], masks: np.ndarray) -> None:
        """`GrammarMatcher.fill` of each, which are different ones of this backend, on several
        threads where that pays. masks[m, words] int32 without gaps."""
        ...
