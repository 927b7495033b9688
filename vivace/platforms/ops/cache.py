"""Writing keys and values into paged memory, and how its types keep them.

float32, bfloat16 and float16 are kept as they are rounded. int8 is our own: each head's numbers are
multiples of one float32 scale, whose four bytes follow them, so that whoever copies or clears
tokens or pages need not know.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 127.0
SMALLEST_MOST = 1e-36
"""a head that has nothing above it is kept as zeros"""


def quantize_kv(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x[..., D] -> [..., stored_width(D)] of `dtype`, the nearest it can keep.

    An int8 head in which a number is not finite becomes NaN altogether.
    """
    if dtype != torch.int8:
        return x.to(dtype)
    x = x.float()
    most = x.abs().amax(-1, keepdim=True)
    most = torch.where(x.isfinite().all(-1, keepdim=True), most, torch.nan)
    kept = most >= SMALLEST_MOST
    scale = torch.where(kept, most / LARGEST, 0.0 * most)
    numbers = (x * torch.where(kept, LARGEST / most, 0.0)).round()
    numbers = torch.where(kept, numbers, 0.0).to(torch.int8)
    return torch.cat((numbers, scale.view(torch.int8)), -1)


def dequantize_kv(kept: Tensor, head_dim: int) -> Tensor:
    """What `quantize_kv` kept: [..., D] float32."""
    if kept.dtype != torch.int8:
        return kept.float()
    scale = kept[..., head_dim:].contiguous().view(torch.float32)
    return kept[..., :head_dim].float() * scale


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Write k, v [T, Hk, D] at `slots[T]` (page * page_size + offset) of the caches.

    Caches are [pages, page_size, Hk, stored_width(D)] of any type that `quantize_kv` knows.
    """
    k_cache.flatten(0, 1).index_copy_(0, slots, quantize_kv(k, k_cache.dtype))
    v_cache.flatten(0, 1).index_copy_(0, slots, quantize_kv(v, v_cache.dtype))
