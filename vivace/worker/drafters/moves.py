"""Behind a step with trees of drafts: what was accepted moves to where a chain would have it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.cache import CacheMemory
from vivace.platforms.host import HOST
from vivace.platforms.rows import Spans
from vivace.worker.step_input import StepInput


def straighten(order: Tensor | None, numbers: Sequence[Tensor]) -> list[Tensor]:
    """[T, n] each of a step, at the places of a chain."""
    return list(numbers) if order is None else [one.index_select(0, order) for one in numbers]


def count_places(spans: Spans, stays: np.ndarray) -> list[int]:
    """How many first, second ... drafts of trees are accepted, where entries `stays`[N] stay."""
    if spans.trees is None or spans.ahead is None:
        return []
    return np.bincount(spans.ahead[stays])[1:].tolist()


def move_tokens(kv: CacheMemory, step: StepInput, order: Tensor) -> None:
    """What layers keep of the step's tokens, in all cache groups; order[T] int64: the token that
    belongs to each place. Where the host knows them only those that move are copied."""
    places = torch.arange(len(order), device=order.device)
    if order.device == HOST:
        places = places[order != places]
        if not len(places):
            return
    for group, pages in enumerate(step.groups):
        slots = pages.slot_mapping
        kv.copy_tokens(group, slots[order[places]], slots[places])
