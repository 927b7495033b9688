"""Keeps the hidden states of every token that an engine computes: what a head is trained with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from vivace.models.decoder import DecoderForCausalLM
from vivace.platforms.host import upload
from vivace.platforms.rows import Spans
from vivace.protocol.step import StepPlan
from vivace.worker.drafter import NoDrafter
from vivace.worker.drafters.build import DraftTarget
from vivace.worker.drafters.place import DrafterPlace
from vivace.worker.step_input import StepInput

STORED = torch.bfloat16
"""the range of float32, as residuals need it, in half of the bytes"""


class StateRecorder(NoDrafter):
    """A drafter that proposes nothing. Of each token of up to `longest` of a row it keeps what the
    layers `taps` were given, and what the model's head is given: `len(taps) + 1` times its hidden
    size, side by side."""

    def __init__(self, taps: Sequence[int], hidden: int, longest: int) -> None:
        self.state_width = (len(taps) + 1) * hidden
        self.row_numbers = longest * self.state_width
        self._taps = taps
        self._hidden = hidden
        self._longest = longest
        self._rows: dict[int, int] = {}
        """key of a request -> where it is computed"""
        self._keys: dict[int, int] = {}
        """where -> who was the last one there"""

    def choose(self, served: DraftTarget) -> StateRecorder:
        """Look on at this model's steps."""
        cast("DecoderForCausalLM", served.model).model.tap(self._taps)
        return self

    def attach(self, place: DrafterPlace) -> None:
        rows, device = place.rows.rows, place.rows.columns.known.device
        shape = rows * self._longest, self.state_width
        self._states = torch.zeros(shape, dtype=STORED, device=device)

    def update(self, plan: StepPlan) -> None:
        for join in plan.joins:
            self._rows[join.key] = join.row
            self._keys[join.row] = join.key

    def follow(self, step: StepInput, spans: Spans, hidden: Tensor, taps: Sequence[Tensor]) -> None:
        starts = upload(np.repeat(spans.rows, spans.counts) * self._longest, hidden.device)
        places = starts + step.positions
        for index, one in enumerate([*taps, hidden]):
            columns = self._states[:, index * self._hidden : (index + 1) * self._hidden]
            columns.index_copy_(0, places, one.to(STORED))

    def has(self, key: int) -> bool:
        """Nobody else is where it was computed."""
        return key in self._rows and self._keys[self._rows[key]] == key

    def take(self, key: int) -> Tensor:
        """[longest, state_width] of a request that goes on no more, before the next step."""
        first = self._rows.pop(key) * self._longest
        return self._states[first : first + self._longest]
