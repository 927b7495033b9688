"""Running the model over a step's buffers: eagerly here, replayed from a capture elsewhere."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from vivace.platforms.attention import AttentionBackend
from vivace.worker.inputs import StepInput


class RunnableModel(Protocol):
    """What of a model a runner calls (`models.causal_lm.Model` is one)."""

    def forward(self, step: StepInput) -> Tensor:
        """-> hidden[T, hidden], after the final norm"""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden[n, hidden] -> [n, vocabulary] float32"""
        ...


class Runner(Protocol):
    """Computes hidden states; `captured` tells whether the last step was a replay."""

    captured: bool

    def forward(self, step: StepInput) -> Tensor:
        """-> hidden[T, hidden]"""
        ...


class EagerRunner:
    """Calls the model, op by op. Works for every step; a capturing runner falls back on it."""

    captured = False

    def __init__(self, model: RunnableModel, attention: AttentionBackend) -> None:
        self._model = model
        self._attention = attention

    def forward(self, step: StepInput) -> Tensor:
        self._attention.plan(step)
        return self._model.forward(step)


def finite_tokens(hidden: Tensor) -> Tensor | None:
    """[T] bool, False where a token's numbers went wrong; None when all are fine.

    One reduction over hidden[T, n] in the usual case: a NaN or an infinity anywhere makes the sum
    one. What a token stored in the KV memory reaches its own hidden state (it attends to itself),
    so this also finds bad keys and values, in the middle of a prompt too.
    """
    if bool(torch.isfinite(hidden.sum(dtype=torch.float32))):
        return None
    finite = torch.isfinite(hidden).all(-1)
    return None if bool(finite.all()) else finite
