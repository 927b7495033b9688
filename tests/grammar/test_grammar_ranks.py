"""Ranks fill the same masks on threads of their own, in whatever order these come."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest
import torch
from grammar_kit import SIZE, VOCABULARY, apply_masks

from vivace.grammar.backend import JsonFormat, PlacedMatcher
from vivace.grammar.compiler import GrammarCompiler
from vivace.grammar.llguidance_backend import LLGuidanceBackend
from vivace.grammar.processor import GrammarLogitsProcessor
from vivace.platforms.ops.sampling import TorchSampling
from vivace.protocol.constraints import REGEX, Constraint
from vivace.protocol.messages import SamplingParams
from vivace.protocol.step import Join
from vivace.sampling.processors import Entries, Histories

ROWS, DRAFTS = 6, 2
FIRSTS = "abcdef"
TEXT = "|".join(f"{one}[xy{one}]{{900}}" for one in FIRSTS)
Order = Callable[[list[PlacedMatcher]], list[PlacedMatcher]]


class OrderedBackend(LLGuidanceBackend):
    """Fills one mask after the other. `order`: of the matchers that are to be filled together."""

    def __init__(self, order: Order) -> None:
        super().__init__(VOCABULARY, JsonFormat())
        self._order = order

    def fill(self, matchers: Sequence[PlacedMatcher], masks: np.ndarray) -> None:
        for matcher, place in self._order(list(matchers)):
            matcher.fill(masks[place])


def shuffled(seed: int) -> Order:
    chance = random.Random(seed)
    return lambda matchers: chance.sample(matchers, len(matchers))


def run_rank(order: Order, drafts: int) -> list[list[bool]]:
    """In which entries of each step something may follow, while rows go on until nothing may."""
    tokens = torch.zeros(ROWS, 200, dtype=torch.int32)
    known = np.ones(ROWS, np.int64)
    histories = Histories(tokens=tokens, prompt=torch.ones(ROWS).long(), known=known, drafts=drafts)
    compiler = GrammarCompiler(lambda: OrderedBackend(order))
    processor = GrammarLogitsProcessor(TorchSampling(reads=True), histories, compiler)
    sampling = SamplingParams(temperature=0.9, constraint=Constraint(kind=REGEX, text=TEXT))
    join = Join(row=0, key=0, tokens=[1], prompt=1, cached=0, pages=[], sampling=sampling)
    for row in range(ROWS):
        processor.joined(row, msgspec.structs.replace(join, row=row))
    rows, found = list(range(ROWS)), list[list[bool]]()
    for place in range(60):
        said = {row: [*FIRSTS[row].encode(), *row * b"x", *120 * b"yx"][place:] for row in rows}
        for row in rows:
            tokens[row, 1 + place : 1 + place + drafts] = torch.tensor(said[row][:drafts])
        entry_rows = np.repeat(rows, 1 + drafts)
        positions = torch.arange(1 + place, 2 + place + drafts).repeat(len(rows))
        entries = Entries(torch.from_numpy(entry_rows), positions, entry_rows)
        logits = torch.zeros(len(entry_rows), SIZE)
        apply_masks(processor, logits, entries)
        found.append(logits.isfinite().any(1).tolist())
        stuck = [row for row, goes in zip(rows, found[-1][:: 1 + drafts], strict=True) if not goes]
        for row in stuck:
            assert processor.why_stuck(row)
            processor.left(row)
        rows = [row for row in rows if row not in stuck]
        processor.landed({row: said[row][:1] for row in rows}, at_once=False)
    return found


@pytest.mark.parametrize("drafts", [0, DRAFTS])
def test_ranks_agree_on_who_has_come_to_a_limit(
    drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which rows of one constraint do so first is of the order of the threads; then some go on with
    an automaton of their own, and of drafts what may follow is not known."""
    monkeypatch.setattr("vivace.grammar.llguidance_backend.MAX_LEXER_STATES", 100)
    monkeypatch.setattr("vivace.grammar.processor.MOST_MADE", 1)
    first = run_rank(lambda matchers: matchers, drafts)
    assert not all(map(all, first)), "some are refused"
    for order in (lambda matchers: matchers[::-1], *map(shuffled, range(3))):
        assert run_rank(order, drafts) == first
