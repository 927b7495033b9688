"""Tokens of several engines whose experts are on other ranks."""

from __future__ import annotations

import torch

from vivace.platforms.dispatch import ExpertSpread


def make_spread(rank: int, size: int, counts: list[int], each: int, seed: int) -> ExpertSpread:
    """As this rank sees it: the same slots on all, some tokens are nobody's."""
    chance = torch.Generator().manual_seed(seed)
    slots = torch.randint(0, size * each, (sum(counts), 3), generator=chance)
    slots[torch.rand(len(slots), generator=chance) < 0.1] = -1
    return ExpertSpread(counts, slots - rank * each, each)
