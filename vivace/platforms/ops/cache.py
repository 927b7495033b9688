"""Writing keys and values into paged memory."""

from __future__ import annotations

from torch import Tensor


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Write k, v [T, Hk, D] at `slots[T]` (page * page_size + offset) of the caches.

    Caches are [pages, page_size, Hk, D], contiguous; values are converted to the caches' dtype.
    """
    k_cache.flatten(0, 1).index_copy_(0, slots, k.to(k_cache.dtype))
    v_cache.flatten(0, 1).index_copy_(0, slots, v.to(v_cache.dtype))
