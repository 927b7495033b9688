"""Rotary position embedding (Su et al., 2021), neox layout: halves are rotated, not pairs."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate q[T, Hq, D] and k[T, Hk, D] in place by their positions[T]; returns (q, k).

    `cos_sin[max_positions, rot]` holds cosines in its first half and sines in the second
    (float32 is best); rot <= D, dimensions from rot on stay as they are.
    """
    table = torch.index_select(cos_sin, 0, positions).unsqueeze(1)
    cos, sin = table.chunk(2, dim=-1)
    _rotate(q, cos, sin)
    _rotate(k, cos, sin)
    return q, k


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    half = cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    turned_first = first * cos - second * sin
    turned_second = second * cos + first * sin
    first.copy_(turned_first)
    second.copy_(turned_second)
