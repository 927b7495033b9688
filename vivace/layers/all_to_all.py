"""How pairs of a token and an expert come to the rank that has the expert, and back."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from vivace.platforms.attention import Step
from vivace.platforms.dispatch import ExpertSpread
from vivace.platforms.groups import Group


class PairExchange(Protocol):
    """Around what a rank's experts compute."""

    def announce(self, weights: Tensor, chosen: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """(weights[T, top], experts[T, top]) of this engine's tokens -> of those that experts here
        may be asked for"""
        ...

    def dispatch(self, x: Tensor, placed: Tensor, step: Step) -> Tensor:
        """x[T, n] -> a row of each token that was announced; what no expert here is asked for holds
        anything. placed[.., top]: slots, this rank's from 0."""
        ...

    def collect(self, y: Tensor, placed: Tensor, step: Step) -> Tensor:
        """What the experts here make of those -> [T, n]"""
        ...


class StayingTokens:
    """Every rank has all tokens that its experts may be asked for; somebody else adds up what ranks
    make of them."""

    def announce(self, weights: Tensor, chosen: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        return weights, chosen

    def dispatch(self, x: Tensor, placed: Tensor, step: Step) -> Tensor:
        return x

    def collect(self, y: Tensor, placed: Tensor, step: Step) -> Tensor:
        return y


STAYING = StayingTokens()


class TravellingTokens:
    """Each rank sends a part of its engine's tokens to the ranks of their experts, and has the sums
    of all of the engine's tokens afterwards. First come choices, so that everybody knows what goes
    where, then rows. `peers`: the ranks at the same place of each engine; `slots`: of a rank;
    `most`: tokens that a rank sends, None without a limit."""

    def __init__(self, group: Group, peers: Group, slots: int, most: int | None) -> None:
        self._group = group
        self._peers = peers
        self._slots = slots
        self._most = most

    def announce(self, weights: Tensor, chosen: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        counts = step.host.engines.tokens or [len(chosen)]
        found = self._peers.gather_rows(chosen.view(torch.float32), counts)
        return self._peers.gather_rows(weights, counts), found.view(torch.int64)

    def dispatch(self, x: Tensor, placed: Tensor, step: Step) -> Tensor:
        spread = self._spread(placed, step, len(x))
        sent = -(-max(spread.counts) * len(spread.counts) // self._group.size)
        if self._most is not None and sent > self._most:
            raise ValueError(
                f"a rank sends {sent} tokens at once, at most {self._most} are allowed"
            )
        return self._group.dispatch(x, spread)

    def collect(self, y: Tensor, placed: Tensor, step: Step) -> Tensor:
        return self._group.collect(y, self._spread(placed, step, len(y)))

    def _spread(self, placed: Tensor, step: Step, tokens: int) -> ExpertSpread:
        return ExpertSpread(step.host.engines.tokens or [tokens], placed, self._slots)
