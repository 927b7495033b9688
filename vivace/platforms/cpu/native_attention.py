"""Paged attention by the native kernels: one operation for prompts, decoding and steps of both.

A token's result does not depend on the other rows, on how its prompt was cut, nor on the number
of threads: see kernels/attention.inc.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.attention import (
    AttendingStep,
    AttentionLayer,
    LatentLayer,
    Step,
    StepPages,
)
from vivace.platforms.cache import CacheLayer, stored_width
from vivace.platforms.cpu.native import (
    I64,
    Kernels,
    below,
    block,
    head_rows,
    indices,
    matrix,
    optional,
    paged_contents,
    require,
    sizes,
    target,
)
from vivace.platforms.cpu.native_latent import NativeLatentAttention, Rotation, path_words
from vivace.platforms.cpu.native_ops import rotation
from vivace.platforms.cpu.native_recurrence import NativeRecurrence
from vivace.platforms.memory import zeroed_memory
from vivace.platforms.ops.paged_cache import PagedCache

TILE = 128
"""keys; as in attention_tile.inc"""
CHUNKS_PER_THREAD = 6
LEAST_QUERIES = 8
"""of a block of a longer span; both as in attention.inc"""
LARGEST_HEAD = 256
LARGEST_PARTIAL = 256 << 20
"""bytes of tiles' results (committed when touched); fewer rows are shared by threads beyond it"""
KV_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}


def unsupported(layers: Sequence[AttentionLayer], dtype: torch.dtype) -> str | None:
    """Why the kernels cannot serve these layers with KV of `dtype`; None when they can."""
    if dtype not in KV_TYPES:
        return f"KV of {dtype}"
    for layer in layers:
        if layer.head_dim % 16 or layer.head_dim > LARGEST_HEAD:
            return f"heads of {layer.head_dim} (multiples of 16 up to {LARGEST_HEAD})"
        if layer.heads % layer.kv_heads:
            return f"{layer.heads} heads over {layer.kv_heads} KV heads"
    return None


class NativeAttention:
    """AttentionBackend over float32 activations and float32, bfloat16 or int8 KV.

    `max_length` is the longest context of a row: those up to it are shared by threads when few
    rows decode. Raises ValueError for what `unsupported` names.
    """

    reads_paths = True

    def __init__(
        self,
        kernels: Kernels,
        layers: Sequence[CacheLayer],
        memory: PagedCache,
        max_length: int,
    ) -> None:
        attending = [layer for layer in layers if isinstance(layer, AttentionLayer)]
        for kv in memory.layers.values():
            if reason := unsupported(attending, kv.dtype):
                raise ValueError(f"the native attention kernels do not do {reason}")
        for layer in attending:
            stored_in(layer, memory)
        self._kernels = kernels
        self._layers = {layer.index: layer for layer in attending}
        self._memory = memory
        latent = [layer for layer in layers if isinstance(layer, LatentLayer)]
        self._latent = NativeLatentAttention(kernels, latent, memory, max_length)
        self._pages = self._latent.pages | {
            memory.groups[index]: kv.shape[0] for index, kv in memory.layers.items()
        }
        """pages of each group that has layers"""
        self._rotary_positions: int | None = None
        """positions that captured rotations have numbers for"""
        self._partial = PartialResults(attending, kernels.threads, max_length)
        self._attention = kernels.operation("attention", "qqqqqqqqqqqdqqdqqqqqqqqqqqq")
        self._store = kernels.operation("store_kv", "q" * 10)
        self.attend_latent = self._latent.attend
        self.recur = NativeRecurrence(kernels, memory).recur
        self._rotary_store = kernels.operation("rotary_store", "q" * 16)

    def plan(self, step: Step) -> None:
        """Nothing to decide: the kernels read the step's own buffers. Raises ValueError where these
        point outside the memory; while a graph is captured they hold nothing yet."""
        if self._kernels.capturing:
            return
        for group, pages in self._pages.items():
            where = step.groups[group]
            paged_contents(
                "attend",
                slots=where.slot_mapping.numpy(),
                table=where.page_table.numpy(),
                lengths=step.context_lens.numpy(),
                starts=None if step.host.decode else step.query_starts.numpy(),
                pages=pages,
                page_size=self._memory.page_size,
                longest=self._rotary_positions,
            )
            if where.paths is not None:
                check_paths("attend", where.paths.numpy(), step, pages * self._memory.page_size)

    def attend(
        self,
        layer: AttentionLayer,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        step: Step,
        out: Tensor | None = None,
    ) -> Tensor:
        """q[T, Hq, D], k[T, Hk, D], v[T, Hk, D] float32 -> [T, Hq * D]."""
        kv, (rows, *_) = self._kv(layer), sizes("attend", "q", q, 3)
        self._store(
            rows,
            *head_rows("attend", "k", k, rows, layer.kv_heads, layer.head_dim),
            *head_rows("attend", "v", v, rows, layer.kv_heads, layer.head_dim),
            self._locate_slots(layer, step, rows),
            kv.data_ptr(),
            KV_TYPES[kv.dtype],
            layer.kv_heads,
            layer.head_dim,
        )
        return self.attend_stored(layer, q, step, out)

    def rotate_and_attend(
        self,
        layer: AttentionLayer,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        step: Step,
        out: Tensor | None = None,
    ) -> Tensor:
        """`attend` of q and k that were not rotated yet; both are, in place.

        positions[T] int64, cos_sin[positions, rot] float32 as `ops.rotary` takes them.
        """
        kv, (rows, *_) = self._kv(layer), sizes("attend", "q", q, 3)
        table = rotation("attend", cos_sin, layer.head_dim)
        where = self._check_positions("attend", positions, cos_sin, rows)
        self._rotary_store(
            rows,
            *head_rows("attend", "q", q, rows, layer.heads, layer.head_dim),
            layer.heads,
            *head_rows("attend", "k", k, rows, layer.kv_heads, layer.head_dim),
            *head_rows("attend", "v", v, rows, layer.kv_heads, layer.head_dim),
            where,
            self._locate_slots(layer, step, rows),
            *table,
            kv.data_ptr(),
            KV_TYPES[kv.dtype],
            layer.kv_heads,
            layer.head_dim,
        )
        return self.attend_stored(layer, q, step, out)

    def rotate_and_attend_latent(
        self,
        layer: LatentLayer,
        q: Tensor,
        q_rope: Tensor,
        latent: Tensor,
        rope: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        step: Step,
    ) -> Tensor:
        """`attend_latent` of q_rope and rope that were not rotated yet; both are, in place."""
        rows, *_ = sizes("attend_latent", "q", q, 3)
        self._check_positions("attend_latent", positions, cos_sin, rows)
        turned = Rotation(positions, cos_sin)
        return self._latent.attend(layer, q, q_rope, latent, rope, step, turned)

    def _check_positions(self, op: str, positions: Tensor, cos_sin: Tensor, rows: int) -> int:
        """The address of positions[T] that the table has; those of captured steps are looked at
        by `plan`."""
        address = block(op, "positions", positions, rows, dtype=I64)
        count, _ = sizes(op, "cos_sin", cos_sin)
        if self._kernels.capturing:
            self._rotary_positions = min(count, self._rotary_positions or count)
        else:
            indices(op, "positions", positions.numpy(), rows, count)
        return address

    def attend_stored(
        self, layer: AttentionLayer, q: Tensor, step: Step, out: Tensor | None = None
    ) -> Tensor:
        """`attend` when the step's keys and values are in memory already."""
        kv, decode, (rows, *_) = self._kv(layer), step.host.decode, sizes("attend", "q", q, 3)
        table = self._find_pages(layer, step).page_table
        spans, pages = sizes("attend", "step.page_table", table)
        require("attend", spans == rows or not decode, f"{spans} spans of one token, {rows} tokens")
        width = layer.heads * layer.head_dim
        if out is None:
            out = self._kernels.empty(rows, width)
        self._attention(
            rows,
            *head_rows("attend", "q", q, rows, layer.heads, layer.head_dim),
            *target("attend", out, rows, width),
            kv.data_ptr(),
            KV_TYPES[kv.dtype],
            kv.shape[1],
            layer.heads,
            layer.kv_heads,
            layer.head_dim,
            layer.scale,
            layer.window or 0,
            layer.chunk or 0,
            layer.soft_cap or 0.0,
            optional("attend", "sinks", layer.sinks, layer.heads),
            *matrix("attend", "step.page_table", table, pages, spans, I64),
            block("attend", "step.context_lens", step.context_lens, spans, dtype=I64),
            0
            if decode
            else block("attend", "step.query_starts", step.query_starts, spans + 1, dtype=I64),
            spans,
            *self._partial.words,
            *path_words("attend", self._find_pages(layer, step), step, spans),
        )
        return out

    def _locate_slots(self, layer: AttentionLayer, step: Step, rows: int) -> int:
        """Address of the layer's slot mapping."""
        mapping = self._find_pages(layer, step).slot_mapping
        return block("attend", "step.slot_mapping", mapping, rows, dtype=I64)

    def _find_pages(self, layer: AttentionLayer, step: Step) -> StepPages:
        return step.groups[self._memory.groups[layer.index]]

    def _kv(self, layer: AttentionLayer) -> Tensor:
        """The layer's memory; one that was not there at the start is compared with it."""
        if self._layers.get(layer.index) is not layer:
            stored_in(layer, self._memory)
            require("attend", layer in self._layers.values(), f"{layer} is not one of this backend")
        return self._memory.layers[layer.index]


def check_paths(op: str, paths: np.ndarray, step: Step, slots: int) -> None:
    """Raises ValueError where paths[S, any] of a step lead elsewhere than to `slots` slots."""
    below(op, "step.paths", paths, slots)
    below(op, "the lengths of step.paths", paths[:, 0], paths.shape[1])
    shorter = step.context_lens.numpy() - paths[:, 0]
    below(op, "step.context_lens less step.paths", shorter, np.iinfo(np.int64).max)


def stored_in(layer: AttentionLayer, memory: PagedCache) -> None:
    """Raises ValueError where the memory does not have the layer's shape."""
    require("attend", layer.index in memory.layers, f"no memory for layer {layer.index}")
    kv = memory.layers[layer.index]
    width = stored_width(layer.head_dim, kv.dtype)
    shape = (*kv.shape[:1], memory.page_size, 2, layer.kv_heads, width)
    block("attend", "KV memory", kv, *shape, dtype=kv.dtype)


def rotary_attend(
    layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, cos_sin: Tensor, step: AttendingStep
) -> Tensor:
    """`ops.rotary_attend`: rotation and store are one kernel."""
    return native_backend(step).rotate_and_attend(layer, q, k, v, step.positions, cos_sin, step)


def rotary_attend_latent(
    layer: LatentLayer,
    q: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    rope: Tensor,
    cos_sin: Tensor,
    step: AttendingStep,
) -> Tensor:
    """`ops.rotary_attend_latent`: rotation and store are one kernel."""
    backend = native_backend(step)
    return backend.rotate_and_attend_latent(
        layer, q, q_rope, latent, rope, step.positions, cos_sin, step
    )


def native_backend(step: AttendingStep) -> NativeAttention:
    if not isinstance(step.attention, NativeAttention):
        found = type(step.attention).__name__
        raise TypeError(f"native ops need NativeAttention, not {found}")
    return step.attention


class PartialResults:
    """Where threads that share a block of rows leave what they found, tile by tile."""

    def __init__(self, layers: Sequence[AttentionLayer], threads: int, max_length: int) -> None:
        tiles = -(-max_length // TILE) + 1
        row = max((layer.kv_heads * tiles * _partial_size(layer) for layer in layers), default=1)
        fewest = min((layer.kv_heads for layer in layers), default=1)
        wanted = LEAST_QUERIES * -(-CHUNKS_PER_THREAD * threads // fewest) if threads > 1 else 0
        rows = min(wanted, LARGEST_PARTIAL // (4 * row))
        self._results = zeroed_memory(4 * rows * row, torch.device("cpu"), huge=False).tensor
        most = max((layer.kv_heads for layer in layers), default=1)
        self._arrivals = torch.zeros(rows * most, dtype=torch.int64)
        self.words = (self._results.data_ptr(), self._arrivals.data_ptr(), rows, tiles)


def _partial_size(layer: AttentionLayer) -> int:
    """floats of one tile and KV head; as in attention_tile.inc"""
    group = layer.heads // layer.kv_heads
    return 2 * (-(-group // 16) * 16) + group * layer.head_dim
