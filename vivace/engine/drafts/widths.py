"""How many drafts each row gets in a step: as many as pay for what they cost.

A draft that is accepted saves a step; each one makes the step a little longer, because its token is
computed, too. What a step of so many tokens takes was measured when the engine started and is
measured all the time; how likely a row's drafts are to be accepted its own last ones tell. From
both follows the width with which most tokens come per second: next to all of the flags' drafts for
a lone stream that repeats itself, and none for a device that is busy with its rows.
"""

from __future__ import annotations

from collections import Counter
from math import ceil, log
from typing import TYPE_CHECKING, Protocol

import numpy as np

from vivace.engine.drafts.balance import DRAFTING, READING, DraftBalance
from vivace.engine.drafts.gains import DraftShape, choose_gains
from vivace.engine.drafts.levels import LEVELS, OBSERVED, SPOILED, probability
from vivace.engine.drafts.step_seconds import StepSeconds
from vivace.protocol.metrics import StepCosts

if TYPE_CHECKING:
    from vivace.engine.sequence import Sequence
    from vivace.engine.settings import EngineSettings
    from vivace.protocol.step import StepResult

_PROBED_ROWS, _LONGEST_PERIOD = 8, 8
"""at most so many rows that get no drafts get one again, in turn: what they write may have changed;
each after at most so many times `_LIMIT_STEPS`. Together: a step of single tokens is a replay."""
_PROBE_COST = 0.01
"""of the time"""
_LIMIT_STEPS = 8
"""for which limits that were found stay good, and times that were measured"""
_FEW_ROWS = 8
"""whose drafts differ too much from step to step to keep limits"""
_LEARNED_STEPS = 9
"""of a batch that is not small: one of so many tells enough of what they take"""
_FIRST_PLAIN, _LONGEST_PLAIN = 4, 256
"""after so many steps one has no drafts, and then after twice as many as before: only beside those
is it known what the others take"""


def choose_widths(settings: EngineSettings, costs: StepCosts) -> DraftWidths:
    """Where nothing was measured all drafts are tried."""
    if settings.fixed_draft_width or not costs.tokens:
        return FixedWidth()
    return AdaptiveWidth(
        settings.draft_shape,
        costs,
        told=settings.reports_ready,
        catches_up=settings.drafts_catch_up,
        depth=settings.depth,
    )


class DraftWidths(Protocol):
    def choose(self, decoding: list[Sequence]) -> list[int]:
        """The most tokens of each of these in the next step, its drafts among them. The list is
        not to be changed."""
        ...

    def undrafted(self, decoding: list[Sequence]) -> list[int]:
        """Rows of these that get no drafts in the step behind the one that was chosen last,
        whatever there may be for them."""
        ...

    def unread(self, chunks: list[Sequence], tokens: int) -> list[int]:
        """Rows of these whose prompts, of which the step has so many tokens, the drafter need not
        read."""
        ...

    def observe(self, counts: list[int], seconds: float, result: StepResult) -> None:
        """A step of nothing but decode spans, of so many tokens each, took so long; drafting
        included."""
        ...


class FixedWidth:
    """Every row has as many as its drafter has."""

    def choose(self, decoding: list[Sequence]) -> list[int]:
        return [1 + sequence.ready_drafts for sequence in decoding]

    def undrafted(self, decoding: list[Sequence]) -> list[int]:
        return []

    def unread(self, chunks: list[Sequence], tokens: int) -> list[int]:
        return []

    def observe(self, counts: list[int], seconds: float, result: StepResult) -> None:
        """It does not matter."""


class AdaptiveWidth:
    """The widths that bring most tokens per second.

    Rows differ in their level only. Drafts of all rows are taken in the order of the tokens that
    they bring (gains.py), as long as tokens per second rise. So there is a least gain.
    """

    def __init__(
        self,
        shape: DraftShape,
        costs: StepCosts,
        *,
        told: bool = True,
        catches_up: bool = False,
        depth: int = 1,
    ) -> None:
        """`told`: after each step is known how many drafts a row has. `catches_up`: of a prompt it
        can be given drafts later, if it is not read now. `depth`: steps in flight"""
        self._shape = shape
        self._depth = depth
        self._told, self._catches_up = told, catches_up
        self._decoding: list[Sequence] = []
        self._counts: list[int] = []
        """of these, at the last look"""
        self._times = StepSeconds(costs)
        self._gains = choose_gains(shape)
        self._balance = DraftBalance(DRAFTING)
        """in steps of the same rows"""
        self._reading = DraftBalance(READING)
        """in steps of one row, with what a drafter has read of prompts"""
        self._behind = 0
        """groups of rows that had no drafts while the balance was spent"""
        self._steps = self._rows = 0
        self._plain_due = self._plain_period = _FIRST_PLAIN
        self._limits = [shape.width] * LEVELS + [0]
        """most drafts of a row of each level"""

    def choose(self, decoding: list[Sequence]) -> list[int]:
        self._steps += 1
        self._balance.step_chosen()
        if self._catches_up:
            self._reading.step_chosen(self._in_single_steps(len(decoding)))
        if self._steps >= self._plain_due:
            self._plain_period = min(2 * self._plain_period, _LONGEST_PLAIN)
            self._plain_due += self._plain_period
            return [1] * len(decoding)
        if self._balance.is_spent:
            self._behind = self._depth
            return [1] * len(decoding)
        if self._behind:
            self._behind -= 1
            self._leave_behind(decoding)
        step = self._steps % _LIMIT_STEPS
        if self._told or not step or decoding != self._decoding:
            self._decoding = decoding
            self._counts = self._choose(decoding)
        return self._counts if step else self._with_probes(decoding)

    def _choose(self, decoding: list[Sequence]) -> list[int]:
        ready = [sequence.ready_drafts for sequence in decoding]
        if not any(ready):
            return [1] * len(ready)
        levels, rows = [sequence.draft_level for sequence in decoding], len(decoding)
        if rows <= _FEW_ROWS or self._rows != rows or self._steps % _LIMIT_STEPS == 0:
            self._rows = rows
            self._limits = self._find_limits(rows, Counter(zip(levels, ready, strict=True)))
        limits = self._limits
        pairs = zip(ready, levels, strict=True)
        return [1 + (n if n < limits[level] else limits[level]) for n, level in pairs]

    def _with_probes(self, decoding: list[Sequence]) -> list[int]:
        """Some that got no drafts get one. A row whose last drafts were just too bad soon has the
        next try, one that fails on and on ever more seldom."""
        if 1 not in self._counts:
            return self._counts
        turn, rows, counts = self._steps // _LIMIT_STEPS, len(decoding), self._counts.copy()
        least = next((level for level, most in enumerate(self._limits) if most), LEVELS)
        longest = self._longest_period(rows)
        left, start = _PROBED_ROWS, turn * _PROBED_ROWS % max(1, rows)
        for index in (*range(start, rows), *range(start)):
            sequence = decoding[index]
            if counts[index] > 1 or not sequence.ready_drafts:
                continue
            if turn % min(longest, probe_period(sequence.draft_level, least)):
                continue
            if self._balance.allows(price := self._price(sequence, rows)):
                self._balance.pay(price)
                counts[index], left = 2, left - 1
                if not left:
                    break
        return counts

    def _leave_behind(self, decoding: list[Sequence]) -> None:
        """Rows of which the drafter missed too much while they had no drafts get no more."""
        for sequence in decoding:
            price = self._price(sequence, len(decoding))
            if sequence.draft_level != SPOILED and not self._balance.allows(price):
                sequence.draft_level = 0

    def _price(self, sequence: Sequence, rows: int) -> float:
        """Steps that it takes until a drafter knows all of a row."""
        missed = len(sequence.tokens) - sequence.drafted_len
        return self._times.draft(missed) / self._times.step(rows)

    def _in_single_steps(self, rows: int) -> float:
        """A step of so many rows"""
        return self._times.step(rows) / self._times.step(1)

    def undrafted(self, decoding: list[Sequence]) -> list[int]:
        """Those below all limits. All are looked at where limits are found anew, by what there is,
        and rows get a draft to try."""
        if self._told and self._balance.is_spent:
            return [sequence.row for sequence in decoding]
        soon = -(self._steps + 1) % _LIMIT_STEPS < self._depth
        if soon or not self._told or len(decoding) <= _FEW_ROWS:
            return []
        limits = self._limits
        return [sequence.row for sequence in decoding if not limits[sequence.draft_level]]

    def unread(self, chunks: list[Sequence], tokens: int) -> list[int]:
        """All, while drafts do not pay for what is read."""
        if not self._catches_up:
            return []
        if not (self._balance.is_spent or self._reading.is_spent):
            self._reading.pay(self._times.draft(tokens) / self._times.step(1))
            return []
        for sequence in chunks:
            sequence.drafted_len = 0
        return [sequence.row for sequence in chunks]

    def _longest_period(self, rows: int) -> int:
        """With which probes take next to no time, or `_LONGEST_PERIOD`."""
        probed = self._times.step(rows + min(rows, _PROBED_ROWS)) + self._times.draft(rows)
        cost = (probed / self._times.step(rows) - 1) / _LIMIT_STEPS
        return max(1, min(_LONGEST_PERIOD, ceil(cost / _PROBE_COST)))

    def observe(self, counts: list[int], seconds: float, result: StepResult) -> None:
        rows, drafting, stands_for = len(counts), 0.0, 1
        if rows > _FEW_ROWS:
            if self._steps % _LEARNED_STEPS:
                return
            stands_for = _LEARNED_STEPS
        passes = max(counts, default=1) - 1
        if passes:
            drafting = float(self._drafting(rows, np.array(passes)))
            came = map(len, result.tokens)  # fewer where tokens were known that it computed
            saved = stands_for * sum(map(min, result.advanced, came)) / rows
            took = stands_for * seconds / self._times.step(rows)
            self._balance.observe(saved, took)
            if self._catches_up:
                of_one = self._in_single_steps(rows)
                self._reading.observe(saved * of_one, took * of_one)
        self._times.observe(sum(counts), drafting, seconds)
        self._gains.observe(counts, result.accepted_drafts)

    def _drafting(self, rows: int, passes: np.ndarray) -> np.ndarray:
        """Seconds of so many passes of drafts (1 or more) for so many rows."""
        first, branches = self._times.draft(rows), self._shape.branches
        further = first if branches == 1 else self._times.draft(rows * branches)
        return first + further * (np.minimum(passes, self._shape.passes) - 1)

    def _find_limits(self, rows: int, classes: Counter[tuple[int, int]]) -> list[int]:
        """`classes`: rows of each level and number of drafts."""
        likely = sum(probability(level) * count for (level, _), count in classes.items())
        gains = self._gains.table(likely / rows)
        return (gains >= self._find_least_gain(rows, classes, gains)).sum(1).tolist()

    def _find_least_gain(
        self, rows: int, classes: Counter[tuple[int, int]], gains: np.ndarray
    ) -> float:
        """That a draft must have; more than any has: nobody gets one."""
        levels, ready = np.array(list(classes)).T
        there = ready[:, None] > np.arange(len(gains[0]))
        which, place = np.nonzero(there)
        gain, count = gains[levels[which], place], np.array(list(classes.values()))[which]
        order = np.lexsort((place, -gain))
        gain, place, count = gain[order], place[order], count[order]
        seconds = self._times.steps(rows + np.cumsum(count))
        seconds = seconds + self._drafting(rows, np.maximum.accumulate(place + 1))
        rates = (rows + np.cumsum(count * gain)) / seconds
        best = int(np.argmax(rates))
        return float(gain[best]) if rates[best] > rows / self._times.step(rows) else 2.0


def probe_period(level: int, least: int) -> int:
    """After how many turns of `_LIMIT_STEPS` a row gets a draft again of which the level is below
    the `least` that drafts pay for: twice as many for each draft that was wrong since then."""
    fails = log(max(1, least) / max(level, 0.5)) / -log(1 - OBSERVED)
    return min(_LONGEST_PERIOD, 1 << min(int(max(0.0, fails)), 8))
