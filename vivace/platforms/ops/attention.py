"""The references for attention: one query at a time, float32, nothing clever.

The backend has the interface of the fast ones and is what they are tested against.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vivace.platforms.attention import AttendingStep, AttentionLayer, LatentLayer, Step
from vivace.platforms.cache import CacheLayer
from vivace.platforms.ops.cache import dequantize_kv, store_kv
from vivace.platforms.ops.paged_cache import PagedCache
from vivace.platforms.ops.sequential import SequentialLayers
from vivace.platforms.trees import locate_context

Rotation = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(q, k, positions, cos_sin) -> (q, k), both in place"""


class RotaryAttend:
    """`ops.rotary_attend` in two: the table's own rotation, then the step's backend."""

    def __init__(self, rotary: Rotation) -> None:
        self._rotary = rotary

    def __call__(
        self,
        layer: AttentionLayer,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos_sin: Tensor,
        step: AttendingStep,
    ) -> Tensor:
        self._rotary(q, k, step.positions, cos_sin)
        return step.attention.attend(layer, q, k, v, step)


class RotaryAttendLatent:
    """`ops.rotary_attend_latent` in two, in the same way."""

    def __init__(self, rotary: Rotation) -> None:
        self._rotary = rotary

    def __call__(
        self,
        layer: LatentLayer,
        q: Tensor,
        q_rope: Tensor,
        latent: Tensor,
        rope: Tensor,
        cos_sin: Tensor,
        step: AttendingStep,
    ) -> Tensor:
        self._rotary(q_rope, rope.unsqueeze(1), step.positions, cos_sin)
        return step.attention.attend_latent(layer, q, q_rope, latent, rope, step)


class ReferenceAttention:
    """AttentionBackend by the definition, over the same memory as the fast ones."""

    reads_paths = True

    def __init__(
        self, layers: Sequence[CacheLayer], memory: PagedCache, dtype: torch.dtype
    ) -> None:
        self._memory = memory
        sequential = SequentialLayers(memory)
        self.attend_latent = sequential.attend_latent
        self.recur = sequential.recur

    def plan(self, step: Step) -> None:
        """Nothing is prepared: `attend` looks everything up."""

    def attend(
        self,
        layer: AttentionLayer,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        step: Step,
        out: Tensor | None = None,
    ) -> Tensor:
        keys, values = self._memory.parts(layer.index)
        where = step.groups[self._memory.groups[layer.index]]
        store_kv(k, v, keys, values, where.slot_mapping)
        result = torch.empty_like(q)
        host = step.host
        for span, length in enumerate(host.context_lens.tolist()):
            first, end = int(host.starts[span]), int(host.starts[span + 1])
            context = locate_context(
                where, span, length, step.context_lens[span], self._memory.page_size
            )
            history = torch.stack(
                [
                    dequantize_kv(part.flatten(0, 1)[context], layer.head_dim)
                    for part in (keys, values)
                ],
                1,
            )
            for token in range(first, end):
                seen = history[: length - (end - token) + 1]  # by the host's upper bound
                position = step.context_lens[span] - (end - token)
                result[token] = _attend_one(layer, q[token].float(), seen, position)
        flat = result.flatten(1)
        return flat if out is None else out.copy_(flat)


def _attend_one(layer: AttentionLayer, q: Tensor, seen: Tensor, position: Tensor) -> Tensor:
    """q[Hq, D] at `position` over what it may see of seen[L, 2, Hk, D] -> [Hq, D]."""
    places = torch.arange(len(seen), device=q.device)
    hidden = (places > position) | (places < layer.local.first_key(position))
    group = layer.heads // layer.kv_heads
    keys = seen[:, 0].repeat_interleave(group, dim=1)
    values = seen[:, 1].repeat_interleave(group, dim=1)
    scores = torch.einsum("hd,lhd->hl", q, keys) * layer.scale
    if layer.soft_cap is not None:
        scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
    scores = scores.masked_fill(hidden, -torch.inf)
    if layer.sinks is not None:
        scores = torch.cat((scores, layer.sinks.float().unsqueeze(1)), dim=1)
    return torch.einsum("hl,lhd->hd", scores.softmax(-1)[:, : len(seen)], values)
