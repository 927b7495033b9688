"""Ops whose result for one token does not depend on what it is batched with.

Library products choose kernels by shape: the same row in a product of 1, 7 or 64 rows may be
rounded differently. Here every product has one fixed shape, so a row goes through the same
instructions however requests are batched and prompts are cut: linear layers run in blocks of
exactly BLOCK rows, attention takes each query by itself over keys padded to whole KEY_BLOCKs
(masked keys add exact zeros). It costs speed; the tokens and log-probabilities of
`--enable-deterministic-inference` are bitwise equal in return.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from vivace.platforms.attention import AttentionLayer, Step
from vivace.platforms.cache import CacheLayer
from vivace.platforms.cpu.attention import Scratch, attend, by_group
from vivace.platforms.ops import elementwise
from vivace.platforms.ops.cache import store_kv
from vivace.platforms.ops.heads import HeadsLinear
from vivace.platforms.ops.moe import GroupedLinear
from vivace.platforms.ops.paged_cache import PagedCache
from vivace.platforms.ops.sequential import SequentialLayers
from vivace.platforms.ops.table import Ops

BLOCK = 16
"""rows of every matrix product"""
KEY_BLOCK = 512
"""keys are padded to a multiple of this: the fused kernel walks them in such pieces"""
QUERY_PART = 32
"""queries whose masks are built at once"""


def batch_invariant(ops: Ops) -> Ops:
    """The same table with fixed-shape products, and norms that are no products."""

    def linear(
        x: Tensor, weight: Any, bias: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        return _in_blocks(ops, x, weight, bias, out)

    return dataclasses.replace(
        ops,
        linear=linear,
        heads_linear=HeadsLinear(linear),
        grouped_linear=GroupedLinear(linear),
        rms_norm=elementwise.rms_norm,
        add_rms_norm=elementwise.add_rms_norm,
    )


def _in_blocks(ops: Ops, x: Tensor, weight: Any, bias: Tensor | None, out: Tensor | None) -> Tensor:
    """x[T, in] in blocks of exactly BLOCK rows, the last one filled up with zeros."""
    tokens = x.shape[0]
    padded = functional.pad(x, (0, 0, 0, -tokens % BLOCK)).contiguous()
    pieces = [ops.linear(piece, weight, bias) for piece in padded.split(BLOCK)]
    result = torch.cat(pieces)[:tokens] if len(pieces) > 1 else pieces[0][:tokens]
    return result if out is None else out.copy_(result)


class BatchInvariantAttention:
    """AttentionBackend that attends every query by itself, in products of one shape."""

    reads_paths = False

    def __init__(
        self, layers: Sequence[CacheLayer], memory: PagedCache, dtype: torch.dtype
    ) -> None:
        self._memory = memory
        self._gathered = Scratch()
        sequential = SequentialLayers(memory)
        self.attend_latent = sequential.attend_latent
        self.recur = sequential.recur

    def plan(self, step: Step) -> None:
        """Nothing is shared between spans, so nothing is prepared."""

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
        where = step.groups[self._memory.groups[layer.index]]
        store_kv(k, v, kv[:, :, 0], kv[:, :, 1], where.slot_mapping)
        result = torch.empty_like(q, memory_format=torch.contiguous_format)
        host = step.host
        for span, length in enumerate(host.context_lens.tolist()):
            first, end = int(host.starts[span]), int(host.starts[span + 1])
            history = self._history(kv, where.page_table[span], length).to(q.dtype)
            for start in range(first, end, QUERY_PART):
                stop = min(end, start + QUERY_PART)
                positions = torch.arange(length - (end - start), length - (end - stop))
                result[start:stop] = _attend_each(layer, q[start:stop], history, positions)
        flat = result.flatten(1)
        return flat if out is None else out.copy_(flat)

    def _history(self, kv: Tensor, pages: Tensor, length: int) -> Tensor:
        """[L, 2, Hk, D] with L a multiple of KEY_BLOCK; what is behind `length` is zero."""
        size = self._memory.page_size
        used = pages[: -(-length // size)]
        padded = -(-length // KEY_BLOCK) * KEY_BLOCK
        found = self._gathered.pages(kv, used).flatten(0, 1)[:length]
        history = kv.new_zeros(padded, *kv.shape[2:])
        history[:length] = found
        return history


def _attend_each(layer: AttentionLayer, q: Tensor, history: Tensor, positions: Tensor) -> Tensor:
    """q[n, Hq, D] at `positions[n]` over history[L, 2, Hk, D] -> [n, Hq, D].

    The queries are the batch dimension and read the same keys (stride 0), so that each product is
    one query's group of heads by KEY_BLOCK keys.
    """
    count, places = q.shape[0], torch.arange(history.shape[0])
    at = positions.unsqueeze(1)
    hidden = (places > at) | (places < layer.local.first_key(at))
    mask = torch.zeros(hidden.shape, dtype=q.dtype).masked_fill_(hidden, -torch.inf)
    keys, values = (
        history[:, which].transpose(0, 1).unsqueeze(0).expand(count, -1, -1, -1) for which in (0, 1)
    )
    queries = q.unflatten(1, (layer.kv_heads, -1))
    attended = attend(layer, queries, keys, values, mask[:, None, None, :], by_group(layer))
    return attended.reshape(q.shape)
