"""What a model needs of a step (`worker.inputs.StepInput` is one)."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from vivace.platforms.attention import AttendingStep


class ModelStep(AttendingStep, Protocol):
    """T tokens of some sequences, side by side."""

    @property
    def ids(self) -> Tensor:
        """[T] int64 token ids"""
        ...
