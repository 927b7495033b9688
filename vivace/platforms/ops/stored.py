"""A matrix in the blocks of its file: what kernels take that need no decoded copy."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """`kind` is GGUF's name of the block type in lower case ("q4_1")."""

    kind: str
    data: np.ndarray
    """uint8[rows, bytes of a row], C-contiguous; may be a read-only view of the mapped file"""
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.shape[0], self.columns

    def rows(self, order: np.ndarray) -> StoredBlocks:
        """These rows, in this order; a copy."""
        return replace(self, data=self.data[order])

    def decoded(self) -> Tensor:
        """float32[rows, columns], by the gguf package: the slow twin of every kernel."""
        numbers = dequantize(
            np.ascontiguousarray(self.data), GGMLQuantizationType[self.kind.upper()]
        )
        return torch.from_numpy(np.array(numbers, np.float32))
