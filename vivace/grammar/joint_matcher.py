"""Answers that obey several grammars at once. One may demand what another has not allowed since a
place behind them: there the answer is stuck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vivace.grammar.backend import GrammarMatcher

STUCK = "the input of a custom tool has in it what ends its call, but its grammar demands more"


def first_error(matchers: Sequence[GrammarMatcher]) -> str:
    """Empty: none has taken more than a limit."""
    return next(filter(None, (one.error for one in matchers)), "")


@dataclass
class JointMatcher:
    """What follows may follow in all of them."""

    matchers: Sequence[GrammarMatcher]
    stuck: bool = False

    @property
    def ended(self) -> bool:
        return any(one.ended for one in self.matchers)

    @property
    def error(self) -> str:
        return first_error(self.matchers) or STUCK * self.stuck

    def fill(self, mask: np.ndarray) -> None:
        first, *others = self.matchers
        first.fill(mask)
        for one in others:
            own = np.zeros_like(mask)
            one.fill(own)
            mask &= own
        self.stuck = not mask.any()

    def allows(self, token: int) -> bool:
        return all(one.allows(token) for one in self.matchers)

    def forced(self) -> list[int]:
        return []  # what one forces another may refuse

    def accept(self, tokens: list[int]) -> int:
        for count, token in enumerate(tokens):
            if not self.allows(token):
                return count
            for one in self.matchers:
                one.accept([token])
        return len(tokens)

    def copy(self) -> JointMatcher:
        return JointMatcher([one.copy() for one in self.matchers], self.stuck)

    @property
    def cost(self) -> int:
        return sum(one.cost for one in self.matchers)

    def fresh(self) -> JointMatcher | None:
        found = [one for matcher in self.matchers if (one := matcher.fresh()) is not None]
        return JointMatcher(found) if len(found) == len(self.matchers) else None
