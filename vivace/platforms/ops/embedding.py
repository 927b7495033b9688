"""Token embedding lookup."""

from __future__ import annotations

import torch
from torch import Tensor

from vivace.platforms.ops.stored import StoredBlocks


def embedding(ids: Tensor, weight: Tensor | StoredBlocks, out: Tensor | None = None) -> Tensor:
    """Rows of `weight[V, hidden]` for `ids[T]` (int64 or int32) -> [T, hidden].

    Blocks become float32, decoded row by row with the gguf package.
    """
    if isinstance(weight, Tensor):
        return torch.index_select(weight, 0, ids, out=out)
    rows = weight.rows(ids.numpy()).decoded()
    return rows if out is None else out.copy_(rows)
