"""Paged attention on the CPU from torch calls.

Decoding rows are batched. Those that decode step after step are attended in a dense copy of their
KV (`dense_rows.py`). Of the others the pages are gathered into one padded buffer; the heads
that share a KV head become the queries of that head, and one fused call attends them all. Rows are
grouped by length, so that short ones are not padded to the longest. One row whose pages lie side
by side is read where it is. A longer span attends by itself, from the keys at hand when it has no
history, else from its gathered pages, in blocks of queries, so that masks stay small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vivace.platforms.attention import (
    FULL_ATTENTION,
    AttentionLayer,
    HostStep,
    LocalAttention,
    Step,
)
from vivace.platforms.cache import CacheLayer
from vivace.platforms.cpu.attention_plan import (
    AttentionPlan,
    DecodeGroup,
    Masks,
    PrefillSpan,
    plan_attention,
)
from vivace.platforms.cpu.dense_rows import DensePlan, DenseRows
from vivace.platforms.cpu.ops import neighbors
from vivace.platforms.ops.cache import store_kv
from vivace.platforms.ops.paged_cache import PagedCache
from vivace.platforms.ops.sequential import SequentialLayers


class CpuAttention:
    """AttentionBackend over `PagedCache`. One plan serves all layers whose queries see the same."""

    reads_paths = False

    def __init__(
        self, layers: Sequence[CacheLayer], memory: PagedCache, dtype: torch.dtype
    ) -> None:
        self._memory = memory
        self._groups = {
            layer.local: memory.groups[layer.index]
            for layer in layers
            if isinstance(layer, AttentionLayer)
        }
        """the cache group of the layers whose queries see so much"""
        self._plans: dict[LocalAttention, AttentionPlan] = {}
        self._masks = Masks(dtype)
        self._gathered = Scratch()
        self._dense = DenseRows(memory, dtype, self._masks)
        self._dense_plan: DensePlan | None = None
        sequential = SequentialLayers(memory)
        self.attend_latent = sequential.attend_latent
        self.recur = sequential.recur

    def plan(self, step: Step) -> None:
        host = step.host
        longest = int(host.context_lens.max())
        everything: dict[int, AttentionPlan] = {}
        first = step.groups[0]
        self._masks.clear()
        self._dense_plan = (
            self._dense.plan(host, first.page_table.numpy())
            if FULL_ATTENTION in self._groups
            else None
        )
        if self._dense_plan is None:
            self._memory.versions[
                np.unique(first.slot_mapping.numpy() // self._memory.page_size)
            ] += 1
        for local, group in self._groups.items():
            pages = step.groups[group].page_table.numpy()
            if local == FULL_ATTENTION and self._dense_plan is not None:
                continue
            if local.limits(longest):
                self._plans[local] = self._plan(host, pages, local)
            else:
                if group not in everything:
                    everything[group] = self._plan(host, pages, FULL_ATTENTION)
                self._plans[local] = everything[group]

    def _plan(self, host: HostStep, pages: np.ndarray, local: LocalAttention) -> AttentionPlan:
        return plan_attention(host, pages, local, self._memory, self._masks)

    def attend(
        self,
        layer: AttentionLayer,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        step: Step,
        out: Tensor | None = None,
    ) -> Tensor:
        kv = self._memory.layers[layer.index]
        self._store(kv, k, v, step.groups[self._memory.groups[layer.index]].slot_mapping)
        if layer.local == FULL_ATTENTION and self._dense_plan is not None:
            flat = self._decode_dense(layer, q, k, v, self._dense_plan)
            return flat if out is None else out.copy_(flat)
        plan = self._plans[layer.local]
        if plan.single is not None:
            flat = self._decode(layer, q, kv, plan.single)
            return flat if out is None else out.copy_(flat)
        if out is None:
            out = q.new_empty(q.shape[0], layer.heads * layer.head_dim)
        for group in plan.groups:
            attended = self._decode(layer, q.index_select(0, group.tokens), kv, group)
            out.index_copy_(0, group.tokens, attended)
        for span in plan.spans:
            self._prefill(layer, q, kv, (k, v), span, out)
        return out

    def _store(self, kv: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
        both = neighbors(k, v) if k.dtype == kv.dtype else None
        if both is None:
            store_kv(k, v, kv[:, :, 0], kv[:, :, 1], slots)
        else:
            kv.view(-1, both.shape[1], both.shape[2]).index_copy_(0, slots, both)

    def _history(self, kv: Tensor, group: DecodeGroup, dtype: torch.dtype) -> Tensor:
        """[n, L, 2, Hk, D]: the group's keys and values, from key `group.first` of each row."""
        shape = (group.rows, group.keys, *kv.shape[2:])
        if group.slot is not None:
            found = kv.view(-1, *kv.shape[2:])[group.slot : group.slot + group.keys].view(shape)
        else:
            assert group.pages is not None
            found = self._gathered.pages(kv, group.pages).view(group.rows, -1, *kv.shape[2:])
            found = found[:, : group.keys]
        return found if found.dtype == dtype else found.to(dtype)

    def _decode(self, layer: AttentionLayer, q: Tensor, kv: Tensor, group: DecodeGroup) -> Tensor:
        """One query for each of n rows: q[n, Hq, D] -> [n, Hq * D]."""
        history = self._history(kv, group, q.dtype)
        queries = q.unflatten(1, (layer.kv_heads, -1))
        keys, values = history[:, :, 0].transpose(1, 2), history[:, :, 1].transpose(1, 2)
        attended = attend(layer, queries, keys, values, group.mask, by_group(layer))
        return attended.reshape(group.rows, -1)

    def _decode_dense(
        self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, plan: DensePlan
    ) -> Tensor:
        """One query for each of n rows over the dense copies: q[n, Hq, D] -> [n, Hq * D]."""
        kept_dtype = self._memory.layers[layer.index].dtype
        both = neighbors(k, v)
        both = torch.cat((k, v), dim=1) if both is None else both
        copies = self._dense.copies(layer.index, plan, round_to(both, kept_dtype))
        keys, values = copies[:, 0, :, : plan.keys], copies[:, 1, :, : plan.keys]
        if plan.order is not None:
            q = q.new_zeros(plan.rows, *q.shape[1:]).index_copy_(0, plan.order, q)
        queries = q.unflatten(1, (layer.kv_heads, -1))
        attended = attend(layer, queries, keys, values, plan.mask, by_group(layer))
        flat = attended.reshape(plan.rows, -1)
        return flat if plan.order is None else flat.index_select(0, plan.order)

    def _prefill(
        self,
        layer: AttentionLayer,
        q: Tensor,
        kv: Tensor,
        fresh: tuple[Tensor, Tensor],
        span: PrefillSpan,
        out: Tensor,
    ) -> None:
        """A span of more than one query; writes its rows of out[T, Hq * D]."""
        if span.history is None:
            keys, values = (round_to(x[span.start : span.end], kv.dtype) for x in fresh)
        else:
            history = self._history(kv, span.history, q.dtype)[0]
            keys, values = history[:, 0], history[:, 1]
        sinks = by_group(layer)
        sinks = None if sinks is None else sinks.unsqueeze(-1)
        for block in span.blocks:
            queries = by_kv_head(q[block.start : block.end], layer.kv_heads)
            attended = attend(
                layer,
                queries,
                shared_heads(keys[block.key_start : block.key_end], queries.shape[1]),
                shared_heads(values[block.key_start : block.key_end], queries.shape[1]),
                block.mask,
                sinks,
                causal=block.causal,
            )
            out[block.start : block.end].view(block.end - block.start, layer.heads, -1).copy_(
                attended.permute(2, 0, 1, 3).flatten(1, 2)
            )


def attend(
    layer: AttentionLayer,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    sinks: Tensor | None,
    *,
    causal: bool = False,
) -> Tensor:
    """queries[a, b, n, D] over keys and values [a, b, L, D] -> [a, b, n, D].

    `mask` is added to the scores, `sinks` (the layer's, as they broadcast to [a, b, n, 1]) stand
    beside them. The soft cap and sinks have no fused kernel and are spelled out.
    """
    if layer.soft_cap is None and sinks is None:
        return functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=causal, scale=layer.scale
        )
    scores = torch.matmul(queries.float(), keys.transpose(-1, -2).float()).mul_(layer.scale)
    if layer.soft_cap is not None:
        scores.div_(layer.soft_cap).tanh_().mul_(layer.soft_cap)
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril_()
        scores.masked_fill_(~seen, -torch.inf)
    elif mask is not None:
        scores.add_(mask)
    return torch.matmul(softmax_with_sinks(scores, sinks), values.float()).to(queries.dtype)


def softmax_with_sinks(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """The softmax over scores[a, b, n, L] beside `sinks`, which broadcast to [a, b, n, 1]."""
    if sinks is None:
        return scores.softmax(-1)
    sinks = sinks.float().expand(*scores.shape[:-1], 1)
    return torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]


def by_group(layer: AttentionLayer) -> Tensor | None:
    """sinks[kv_heads, group, 1], as the queries of a KV head stand side by side."""
    return None if layer.sinks is None else layer.sinks.view(layer.kv_heads, -1, 1)


def round_to(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x as it reads after it was stored: cutting a prompt elsewhere must not change a number."""
    return x if x.dtype == dtype else x.to(dtype).to(x.dtype)


def by_kv_head(q: Tensor, kv_heads: int) -> Tensor:
    """q[n, Hq, D] -> [Hk, group, n, D]"""
    return q.unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3)


def shared_heads(x: Tensor, group: int) -> Tensor:
    """x[L, Hk, D] -> [Hk, group, L, D] without a copy: the group reads the same memory."""
    return x.transpose(0, 1).unsqueeze(1).expand(-1, group, -1, -1)


@dataclass(slots=True)
class Scratch:
    """A buffer that grows to the largest gather and is used for all of them."""

    buffer: Tensor | None = None

    def pages(self, kv: Tensor, pages: Tensor) -> Tensor:
        """kv[pages] as [n, page_size, 2, Hk, D], valid until the next call."""
        row = kv[0].numel()
        needed = pages.shape[0] * row
        if self.buffer is None or self.buffer.numel() < needed or self.buffer.dtype != kv.dtype:
            self.buffer = torch.empty(int(needed * 1.25), dtype=kv.dtype)
        target = self.buffer[:needed].view(pages.shape[0], row)
        torch.index_select(kv.view(kv.shape[0], row), 0, pages, out=target)
        return target.view(pages.shape[0], *kv.shape[1:])
