"""Root mean square normalization with a learned scale."""

from __future__ import annotations

from torch import Tensor

from vivace.layers.module import Bindings, Module, Weights
from vivace.platforms.ops.table import Ops


class RMSNorm(Module):
    """`offset` is added to the learned scale (Gemma: 1)."""

    weight: Tensor
    _ops: Ops

    def __init__(self, size: int, eps: float, *, offset: float = 0.0) -> None:
        self.size = size
        self.eps = eps
        self.offset = offset

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._ops = env.ops
        self._place = env.device, env.dtype

    def load(self, weights: Weights) -> None:
        self.weight = weights.take(f"{self.name}.weight", (self.size,)).to(*self._place)

    def __call__(self, x: Tensor) -> Tensor:
        """x[..., size] -> normed, like x."""
        return self._ops.rms_norm(x, self.weight, self.eps, offset=self.offset)

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """(norm(residual + x), residual + x); the residual is updated in place. None: it is x."""
        if residual is None:
            return self(x), x
        return self._ops.add_rms_norm(x, residual, self.weight, self.eps, offset=self.offset)
