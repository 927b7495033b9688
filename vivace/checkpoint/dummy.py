"""Random weights for `--load-format dummy`: any shape, the same for the same seed and name."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from vivace.checkpoint.weights import STAGE, ReportProgress

DEVIATION = 0.02


class DummyWeights:
    """Has whatever is asked for. Norm scales are ones, everything else is normal."""

    int8 = False

    def __init__(self, seed: int, progress: ReportProgress, *, tied: bool) -> None:
        self.tied = tied
        self._seed = seed
        self._progress = progress

    def has(self, name: str) -> bool:
        return True

    def names(self) -> None:
        """No files: every name is had."""

    def shape(self, name: str) -> tuple[int, ...]:
        raise LookupError(name)

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name.endswith("norm.weight"):
            return torch.ones(shape)
        digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        return torch.randn(shape, generator=generator) * DEVIATION

    def take_stored(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self.take(name, shape)

    def finish(self) -> None:
        self._progress(STAGE, 1.0)
