"""Root mean square normalization (Zhang and Sennrich, 2019), reduced in float32."""

from __future__ import annotations

from torch import Tensor


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0, out: Tensor | None = None
) -> Tensor:
    """x[..., n] / rms(x) * (weight[n] + offset). Result has x's dtype; `out` must not alias x.

    With `offset` (Gemma) the scale is applied in float32, without it in the model's dtype, as the
    families' own definitions do.
    """
    wide = x.float()
    wide = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    if offset:
        result = (wide * (weight.float() + offset)).to(x.dtype)
    else:
        result = weight * wide.to(x.dtype)
    if out is None:
        return result
    return out.copy_(result)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """residual += x (in place), then its norm -> (normed, residual)."""
    residual.add_(x)
    return rms_norm(residual, weight, eps, offset=offset), residual
