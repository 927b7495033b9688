"""Gated activations and soft capping."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def silu_mul(x: Tensor, out: Tensor | None = None) -> Tensor:
    """silu(x[:, :n]) * x[:, n:] for x[T, 2n] -> [T, n]."""
    gate, up = x.chunk(2, dim=-1)
    return torch.mul(functional.silu(gate), up, out=out)


def gelu_mul(x: Tensor, *, tanh: bool, out: Tensor | None = None) -> Tensor:
    """gelu(x[:, :n]) * x[:, n:] for x[T, 2n] -> [T, n]; `tanh` picks the tanh approximation."""
    gate, up = x.chunk(2, dim=-1)
    return torch.mul(functional.gelu(gate, approximate="tanh" if tanh else "none"), up, out=out)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap), in place."""
    return x.div_(cap).tanh_().mul_(cap)


def scale(x: Tensor, factor: float) -> Tensor:
    """x * factor, in place; the factor is rounded to x's dtype."""
    return x.mul_(factor)
