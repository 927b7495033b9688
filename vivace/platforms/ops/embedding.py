"""Token embedding lookup."""

from __future__ import annotations

import torch
from torch import Tensor

from vivace.platforms.ops.stored import StoredBlocks


def pack_embedding(weight: Tensor | StoredBlocks) -> Tensor:
    """weight[V, hidden] in the form `embedding` likes best: here, itself; blocks are decoded."""
    return weight if isinstance(weight, Tensor) else weight.decoded()


def embedding(ids: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
    """Rows of `weight[V, hidden]` for `ids[T]` (int64 or int32) -> [T, hidden]."""
    return torch.index_select(weight, 0, ids, out=out)
