"""What a head makes of each token that ends a step, of prompts that come in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vivace.protocol.tasks import STEPS, Embed
from vivace.worker.pooling.steps import StepsHead, StepsSpan

STEP, ROW = 7, 1
IDS = [5, STEP, 3, STEP, STEP, 9, STEP]
HIDDEN = torch.arange(len(IDS) * 2.0).view(-1, 2)


class Doubling:
    step_token = STEP

    def classify(self, states: Tensor) -> Tensor:
        return states * 2


def make_head(known: int = len(IDS)) -> StepsHead:
    tokens = torch.zeros(3, 16, dtype=torch.int64)
    tokens[ROW, : len(IDS)] = torch.tensor(IDS)
    states: Any = SimpleNamespace(
        embeds={ROW: Embed(pooling=STEPS)},
        known=np.array([0, known, 0]),
        columns=SimpleNamespace(tokens=tokens),
    )
    return StepsHead(states, Doubling(), STEP)


def compute(head: StepsHead, before: int, end: int) -> StepsSpan:
    """A step of two rows, of which one wants to be judged."""
    spans: Any = SimpleNamespace(
        rows=np.array([0, ROW]),
        before=np.array([4, before]),
        counts=np.array([1, end - before]),
        starts=np.array([0, 1, 1 + end - before]),
    )
    (span,) = head.read(spans, torch.cat((torch.zeros(1, 2), HIDDEN[before:end])))
    assert span.span == 1
    return span


def numbers(span: StepsSpan, advanced: int) -> Sequence[Any] | None:
    payload = span.read(advanced)
    if payload is None:
        return None
    return np.frombuffer(payload.data, np.float32).reshape(payload.shape).tolist()


WANTED = [(2 * HIDDEN[at]).tolist() for at, token in enumerate(IDS) if token == STEP]


def test_chunks_are_put_together_whatever_failed_between_them() -> None:
    head = make_head()
    for before, end in ((0, 2), (2, 5), (2, 3), (3, 6)):  # the second one is taken back
        span = compute(head, before, end)
        assert span.read(end - before) is None
        span.record()
    span = compute(head, 6, 7)
    assert numbers(span, 0) is None, "it did not move on"
    assert numbers(span, 1) == WANTED


def test_a_row_that_starts_anew_has_nothing_of_the_one_before() -> None:
    head = make_head(known=4)
    compute(head, 0, 4).record()
    assert numbers(compute(head, 0, 4), 4) == WANTED[:2]
