"""Random weights for `--load-format dummy`: any shape, the same for the same seed and name."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import torch
from torch import Tensor

from vivace.checkpoint.weights import ALL, FLOATS, STAGE, ReportProgress

DEVIATION = 0.02
ORDINARY_EXPONENT = 120
"""2^-7: numbers of four bits become about as large as the others"""


class DummyWeights:
    """Has whatever is asked for. Norm scales and single numbers (parts of a layer share them) are
    ones, lists of integers zeros (they are indexes), everything else is random."""

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

    def dtype(self, name: str) -> torch.dtype:
        return torch.float32

    def label(self, name: str) -> str:
        return f"dummy {name!r}"

    def take(
        self,
        name: str,
        shape: tuple[int, ...],
        rows: slice = ALL,
        columns: slice = ALL,
        *,
        depth: slice = ALL,
        dtypes: Collection[torch.dtype] = FLOATS,
    ) -> Tensor:
        whole = self._whole(name, shape, next(iter(dtypes)))
        return whole[(rows, columns, depth)[: len(shape)]].contiguous()

    def take_stored(
        self, name: str, shape: tuple[int, ...], rows: slice = ALL, columns: slice = ALL
    ) -> Tensor:
        return self.take(name, shape, rows, columns)

    def _whole(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if name.endswith("norm.weight"):
            return torch.ones(shape)
        if shape == (1,):
            return torch.ones(shape, dtype=dtype)
        digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        if dtype.is_floating_point:
            return torch.randn(shape, generator=generator) * DEVIATION
        if len(shape) == 1:
            return torch.zeros(shape, dtype=dtype)
        if name.endswith(".scales"):  # exponents, of MXFP4
            return torch.full(shape, ORDINARY_EXPONENT, dtype=dtype)
        limits = torch.iinfo(dtype)
        return torch.randint(limits.min, limits.max, shape, generator=generator, dtype=dtype)

    def finish(self, claims: Collection[str]) -> None:
        self._progress(STAGE, 1.0)
