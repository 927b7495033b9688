"""Which ranks have which experts: slots count through the ranks that share experts, and every slot
has one expert. With more slots than experts some have several copies (EPLB; DeepSeek-AI 2025).

Everything here is a pure function of what is the same on all ranks, so that each of them knows
where a token goes without asking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import eq
from typing import Literal

PERIOD = 64
"""positions after which the choice among copies repeats"""
DispatchAlgorithm = Literal["static", "dynamic", "fake"]


@dataclass(frozen=True, kw_only=True)
class ExpertLocations:
    """Of all layers. `algorithm` chooses among the copies of an expert by a token's position:
    static, in turn; dynamic, by a hash; fake, another expert by a hash, for measurements without
    sense (SGLang's --ep-dispatch-algorithm)."""

    redundant: int = 0
    """slots beyond the number of experts"""
    layers: tuple[tuple[int, ...], ...] | None = None
    """expert of each slot, of every layer of the model, those without experts too; None: in turn"""
    algorithm: DispatchAlgorithm = "static"
    counted: bool = False
    """somebody wants to know how many tokens went to each slot"""

    def find(self, layer: int, experts: int) -> Sequence[int]:
        """The expert of each slot."""
        if self.layers is not None:
            return self.layers[layer]
        if not self.redundant:
            return range(experts)
        return tuple(slot % experts for slot in range(experts + self.redundant))

    def is_plain(self, located: Sequence[int], experts: int) -> bool:
        """Slots are the experts, and nobody counts."""
        in_order = len(located) == experts and all(map(eq, located, range(experts)))
        return in_order and self.algorithm != "fake" and not self.counted


ONE_COPY = ExpertLocations()


def dispatch_table(
    located: Sequence[int], experts: int, algorithm: DispatchAlgorithm
) -> list[list[int]]:
    """[experts][period]: the slot that tokens at a position go to, modulo the period, which is the
    same for every placement of as many slots."""
    copies: list[list[int]] = [[] for _ in range(experts)]
    for slot, expert in enumerate(located):
        copies[expert].append(slot)
    if algorithm == "fake":
        orders = [sorted(range(experts), key=partial(mix, at)) for at in range(PERIOD)]
        return [
            [choose(copies[order[expert]], at) for at, order in enumerate(orders)]
            for expert in range(experts)
        ]
    positions = range(PERIOD if len(located) > experts else 1)
    if algorithm == "static":
        return [[slots[at % len(slots)] for at in positions] for slots in copies]
    return [[choose(slots, at) for at in positions] for slots in copies]


def choose(slots: Sequence[int], at: int) -> int:
    """One of them, by a hash of the position and the expert they are copies of."""
    return slots[mix(at, slots[0]) % len(slots)]


def mix(a: int, b: int) -> int:
    """A hash in 64 bits (the finalizer of SplitMix64; Steele et al. 2014)."""
    x = (a * 0x9E3779B97F4A7C15 + b * 0xD1B54A32D192ED03 + 0x94D049BB133111EB) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


MASK = (1 << 64) - 1
