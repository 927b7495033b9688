"""Linear layers with a weight of their own for each head.

Latent attention (MLA) has two: queries go into the space of latents, and weighted latents become
values (DeepSeek-V2, 2024, section 2.1; W_UK and W_UV, absorbed).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from vivace.platforms.ops.linear import pack_linear
from vivace.platforms.ops.stored import Packable


class Product(Protocol):
    """`linear` of an op table"""

    def __call__(self, x: Tensor, weight: Any) -> Tensor: ...


def pack_heads(heads: Sequence[Packable]) -> Any:
    """The weight[out, in] of each head, all of one shape and format."""
    return [pack_linear([weight]) for weight in heads]


class HeadsLinear:
    """`heads_linear` by the `linear` of a table: one product for each head."""

    def __init__(self, linear: Product) -> None:
        self._linear = linear

    def __call__(self, x: Tensor, weight: Any) -> Tensor:
        """x[T, H, in] -> [T, H, out]"""
        if x.shape[1] != len(weight):
            raise ValueError(f"heads_linear: {x.shape[1]} heads, weights of {len(weight)}")
        parts = [self._linear(x[:, head], matrix) for head, matrix in enumerate(weight)]
        return torch.stack(parts, dim=1)
