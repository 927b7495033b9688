"""The dense copies of decoding rows: never a number other than the pages'."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from vivace.platforms.attention import AttentionLayer, HostStep, StepPages
from vivace.platforms.cpu import dense_rows
from vivace.platforms.cpu.attention import CpuAttention
from vivace.platforms.ops.attention import ReferenceAttention
from vivace.platforms.ops.paged_cache import PagedCache
from vivace.protocol.step import Copy

LAYER = AttentionLayer(index=0, heads=4, kv_heads=2, head_dim=8, scale=8**-0.5)
PAGES, PAGE = 40, 4


@dataclass(frozen=True)
class DecodeStep:
    host: HostStep
    slot_mapping: torch.Tensor
    page_table: torch.Tensor

    @property
    def context_lens(self) -> torch.Tensor:
        return torch.from_numpy(self.host.context_lens)

    @property
    def groups(self) -> tuple[StepPages, ...]:
        return (StepPages(slot_mapping=self.slot_mapping, page_table=self.page_table),)


class Rows:
    """Rows with made-up pages that decode, leave, are replaced, and have their pages taken."""

    def __init__(self, seed: int) -> None:
        self.chance = np.random.default_rng(seed)
        self.free = list(self.chance.permutation(PAGES))
        self.pages: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def join(self, row: int) -> None:
        self.leave(row)
        self.lengths[row] = int(self.chance.integers(0, 13))
        self.pages[row] = []

    def leave(self, row: int) -> None:
        self.free += self.pages.pop(row, [])
        self.lengths.pop(row, None)

    def step(self) -> DecodeStep:
        rows = np.array(sorted(self.lengths))
        for row in rows.tolist():
            self.lengths[row] += 1
            while len(self.pages[row]) * PAGE < self.lengths[row]:
                self.pages[row].append(self.free.pop(0))
        lengths = np.array([self.lengths[row] for row in rows.tolist()])
        table = np.full((len(rows), -(-lengths.max() // PAGE)), PAGES, np.int64)
        for line, row in zip(table, rows.tolist(), strict=True):
            line[: len(self.pages[row])] = self.pages[row]
        last = lengths - 1
        slots = table[np.arange(len(rows)), last // PAGE] * PAGE + last % PAGE
        starts = np.arange(len(rows) + 1)
        host = HostStep(starts=starts, context_lens=lengths, decode=True, rows=rows)
        return DecodeStep(host, torch.from_numpy(slots), torch.from_numpy(table))


@pytest.mark.parametrize("seed", range(8))
def test_equal_to_the_reference_while_rows_come_and_go(seed: int) -> None:
    torch.manual_seed(seed)
    rows = Rows(seed)
    memory = PagedCache([LAYER], [PAGES], PAGE, torch.float32, torch.device("cpu"))
    memory.layers[0].normal_()
    tested = CpuAttention([LAYER], memory, torch.float32)
    reference = ReferenceAttention([LAYER], memory, torch.float32)
    for row in range(4):
        rows.join(row)
    used = 0
    for turn in range(40):
        disturb(rows, memory, turn)
        step = rows.step()
        q, k, v = (torch.randn(len(step.host.context_lens), heads, 8) for heads in (4, 2, 2))
        tested.plan(step)
        used += tested._dense_plan is not None
        got = tested.attend(LAYER, q, k, v, step)
        reference.plan(step)
        torch.testing.assert_close(got, reference.attend(LAYER, q, k, v, step))
    assert used > 8


def disturb(rows: Rows, memory: PagedCache, turn: int) -> None:
    """Now and then: a row is replaced (its pages go round), or a page changes by a copy."""
    if rows.chance.random() < 0.3:
        rows.join(int(rows.chance.integers(0, 4)))
    if rows.chance.random() < 0.2:
        owned = [page for pages in rows.pages.values() for page in pages]
        if owned:
            memory.copy([Copy(int(rows.chance.integers(PAGES)), int(rows.chance.choice(owned)))])
    if turn % 13 == 12:
        rows.leave(3)
        rows.join(3)


def test_large_steps_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_rows, "LARGEST", 1)
    rows = Rows(1)
    memory = PagedCache([LAYER], [PAGES], PAGE, torch.float32, torch.device("cpu"))
    attention = CpuAttention([LAYER], memory, torch.float32)
    rows.join(0)
    rows.join(1)
    attention.plan(rows.step())
    assert attention._dense_plan is None
