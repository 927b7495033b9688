"""Engines of one machine that take every step together, because all of them share some layers.

Each has two words in shared memory, used in turn: the number of a step, and what it computes of it
(`EngineShare`). Who agrees publishes its word and waits for those of all others. Who publishes step
k + 1 has read all of k, so who has read k + 1 may write over k. One of two bells of an engine rings
when another begins to wait for it, the other one when one that it waits for has come.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from vivace.protocol.bells import Bells, hear_bell
from vivace.protocol.step import EngineShare

SHARE_BITS = 32
STEPS = 1 << 31
"""that have numbers of their own; it is even, so that words go on taking turns"""
SINGLE, MOVES, MOST_TOKENS = 1 << 31, 1 << 30, (1 << 30) - 1
LONGEST_SLEEP = 0.1
"""seconds: a bell that was missed costs no more"""


class SharedLockstep:
    """`Lockstep` of engine `index`. `words`: two signed numbers of 8 bytes for each engine, zeros
    at first; a store or load of one is never torn (protocol/shared_memory.py). `steps`: taken
    before, by all."""

    def __init__(
        self, words: memoryview, index: int, bells: Sequence[Bells], steps: int = 0
    ) -> None:
        self._words = words
        self._index = index
        self._bells = bells
        self._others = [one for one in range(len(bells)) if one != index]
        self._steps = steps
        self._stopped = False

    @property
    def next_step(self) -> int:
        return (self._steps + 1) % STEPS

    @property
    def awaited(self) -> bool:
        return any(self._has_come(other, self.next_step) for other in self._others)

    def agree(self, share: EngineShare) -> list[EngineShare]:
        self._steps = self.next_step
        self._words[2 * self._index + self._steps % 2] = self._steps << SHARE_BITS | pack(share)
        for other in self._others:
            bells, came = self._bells[other], self._has_come(other, self._steps)
            os.eventfd_write(bells.arrived if came else bells.awaited, 1)
        # Of two that come at the same time each may have missed the other: look again before any
        # sleep, behind the bells, which order what both processes see.
        while not all(self._has_come(other, self._steps) for other in self._others):
            if self._stopped:
                return [EngineShare()] * len(self._bells)
            hear_bell(self._bells[self._index].arrived, LONGEST_SLEEP)
        return [unpack(word) for word in self._words[self._steps % 2 :: 2]]

    def wake_with(self, ring: Callable[[], None]) -> None:
        bell = self._bells[self._index].awaited

        def watch() -> None:
            while not self._stopped:
                hear_bell(bell)
                ring()

        threading.Thread(target=watch, name="lockstep", daemon=True).start()

    def stop(self) -> None:
        """Nobody is waited for any more; from any thread."""
        self._stopped = True
        for bell in (self._bells[self._index].arrived, self._bells[self._index].awaited):
            os.eventfd_write(bell, 1)

    def _has_come(self, other: int, step: int) -> bool:
        return self._words[2 * other + step % 2] >> SHARE_BITS == step


def pack(share: EngineShare) -> int:
    """In 32 bits. Raises ValueError for more tokens than anybody computes at once."""
    if share.tokens > MOST_TOKENS:
        raise ValueError(f"a step of {share.tokens} tokens")
    return share.tokens | share.single * SINGLE | share.moves * MOVES


def unpack(word: int) -> EngineShare:
    return EngineShare(word & MOST_TOKENS, bool(word & SINGLE), bool(word & MOVES))
