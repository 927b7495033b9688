"""Tokens of several engines whose experts are on other ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from vivace.platforms.cpu.native import Arena
from vivace.platforms.cpu.shared_group import SharedMemoryGroup
from vivace.platforms.dispatch import ExpertSpread


def make_spread(rank: int, size: int, counts: list[int], each: int, seed: int) -> ExpertSpread:
    """As this rank sees it: the same slots on all, some tokens are nobody's."""
    chance = torch.Generator().manual_seed(seed)
    slots = torch.randint(0, size * each, (sum(counts), 3), generator=chance)
    slots[torch.rand(len(slots), generator=chance) < 0.1] = -1
    return ExpertSpread(counts, slots - rank * each, each)


def travel_captured(one: SharedMemoryGroup, most: int = 6, each: int = 2) -> Tensor:
    """A rank of four, of two engines with up to `most` tokens each: captured steps bring them to
    `each` experts a rank and back, also with fewer tokens than were captured."""
    size, kernels, engine = 4, one._kernels, one.rank // 2
    with kernels.capture(Arena()) as graph:
        x = kernels.empty(most, 40)
        placed = kernels.empty(2 * most, 3, dtype=torch.int64)
        spread = ExpertSpread([most, most], placed, each)
        y = one.collect(one.dispatch(x, spread), spread)
    for rows in (most, 1, 5):
        spread = make_spread(one.rank, size, [rows, rows], each, rows)
        placed[: 2 * rows] = spread.placed
        x[:] = torch.arange(most * 40.0).view(most, 40) + engine
        graph.run(rows)
        own = spread.tokens(engine)
        times = spread.ranks(one.rank, size)[own.start : own.stop].sum(1, keepdim=True)
        assert torch.equal(y[:rows], x[:rows] * times)
    return torch.ones(1)
