"""Attention over latents by the native kernels: absorbed, for prompts, decoding and steps of both.

A token's result depends on batch, chunks and threads as little as `attend`'s: see
kernels/latent_attention.inc.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vivace.platforms.attention import LatentLayer, Step, StepPages
from vivace.platforms.cache import stored_width
from vivace.platforms.cpu.native import (
    I64,
    Kernels,
    block,
    matrix,
    require,
    sizes,
    spread_heads,
    wrong,
)
from vivace.platforms.cpu.native_ops import rotation as check_table
from vivace.platforms.memory import zeroed_memory
from vivace.platforms.ops.paged_cache import PagedCache

SEGMENT = 512
"""keys; this, HEADS and CHUNKS_PER_THREAD as in latent_attention.inc"""
HEADS = 32
CHUNKS_PER_THREAD = 6
LARGEST_PARTIAL = 256 << 20
"""bytes of segments' results, committed when touched; beyond it threads share fewer rows"""
KV_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}


@dataclass(frozen=True, slots=True)
class Rotation:
    """What rotated parts are turned by."""

    positions: Tensor
    """[T] int64"""
    cos_sin: Tensor
    """[any, rotated] float32"""


class NativeLatentAttention:
    """`attend_latent` over float32 activations and float32, bfloat16 or int8 KV."""

    def __init__(
        self,
        kernels: Kernels,
        layers: Sequence[LatentLayer],
        memory: PagedCache,
        max_length: int,
    ) -> None:
        """Raises ValueError where the memory has not the layers' shapes, or another type."""
        self._kernels, self._memory = kernels, memory
        self._caches = {layer: latent_memory(layer, memory) for layer in layers}
        self._partial = LatentPartials(layers, kernels.threads, max_length)
        self._store = kernels.operation("store_latent", "q" * 20)
        self._attend = kernels.operation("latent_attention", "q" * 17 + "d" + "q" * 12)

    @property
    def pages(self) -> dict[int, int]:
        """Those of each cache group that has layers."""
        return {
            self._memory.groups[layer.index]: cache[0].pages
            for layer, cache in self._caches.items()
        }

    def attend(
        self,
        layer: LatentLayer,
        q: Tensor,
        q_rope: Tensor,
        latent: Tensor,
        rope: Tensor,
        step: Step,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """As `AttentionBackend.attend_latent`. With a rotation q_rope and rope are turned in place
        on the way."""
        require("attend_latent", layer in self._caches, f"{layer} is not one of this backend")
        rows, *_ = sizes("attend_latent", "q", q, 3)
        self._store_latents(layer, q_rope, latent, rope, step, rotation, rows)
        where, (latents, ropes) = self._find_pages(layer, step), self._caches[layer]
        decode, table = step.host.decode, where.page_table
        spans, pages = sizes("attend_latent", "step.page_table", table)
        require(
            "attend_latent",
            spans == rows or not decode,
            f"{spans} spans of one token, {rows} tokens",
        )
        out = self._kernels.empty(rows, layer.heads, layer.latent_dim)
        self._attend(
            rows,
            *spread_heads("attend_latent", "q", q, rows, layer.heads, layer.latent_dim),
            *spread_heads("attend_latent", "q_rope", q_rope, rows, layer.heads, layer.rope_dim),
            out.data_ptr(),
            *latents.words,
            *ropes.words,
            latents.kind,
            self._memory.page_size,
            layer.heads,
            layer.latent_dim,
            layer.rope_dim,
            layer.scale,
            layer.window or 0,
            *matrix("attend_latent", "step.page_table", table, pages, spans, I64),
            block("attend_latent", "step.context_lens", step.context_lens, spans, dtype=I64),
            0
            if decode
            else block(
                "attend_latent", "step.query_starts", step.query_starts, spans + 1, dtype=I64
            ),
            spans,
            *self._partial.words,
            *path_words("attend_latent", where, step, spans),
        )
        return out

    def _store_latents(
        self,
        layer: LatentLayer,
        q_rope: Tensor,
        latent: Tensor,
        rope: Tensor,
        step: Step,
        rotation: Rotation | None,
        rows: int,
    ) -> None:
        latents, ropes = self._caches[layer]
        slots = self._find_pages(layer, step).slot_mapping
        turned = (0, 0, 0)
        if rotation is not None:
            turned = (
                *check_table("attend_latent", rotation.cos_sin, layer.rope_dim),
                block("attend_latent", "positions", rotation.positions, rows, dtype=I64),
            )
        self._store(
            rows,
            *matrix("attend_latent", "latent", latent, layer.latent_dim, rows),
            *matrix("attend_latent", "rope", rope, layer.rope_dim, rows),
            block("attend_latent", "step.slot_mapping", slots, rows, dtype=I64),
            *latents.words,
            *ropes.words,
            latents.kind,
            layer.latent_dim,
            layer.rope_dim,
            *turned,
            *spread_heads("attend_latent", "q_rope", q_rope, rows, layer.heads, layer.rope_dim),
            layer.heads,
        )

    def _find_pages(self, layer: LatentLayer, step: Step) -> StepPages:
        return step.groups[self._memory.groups[layer.index]]


def path_words(op: str, where: StepPages, step: Step, spans: int) -> tuple[int, int]:
    """(address, elements from row to row) of paths; 0: there are none."""
    if where.paths is None:
        return 0, 0
    require(op, step.host.decode, "paths are of spans that are one token each")
    return matrix(op, "step.paths", where.paths, where.paths.shape[1], spans, I64)


@dataclass(frozen=True, slots=True)
class LatentPart:
    """One part of what a layer keeps, as kernels find it."""

    words: tuple[int, int]
    """address, elements from token to token"""
    pages: int
    kind: int
    """of KV_TYPES"""


def latent_memory(layer: LatentLayer, memory: PagedCache) -> tuple[LatentPart, LatentPart]:
    """Raises ValueError where the memory does not have the layer's shape."""
    require("attend_latent", layer.index in memory.groups, f"no memory for layer {layer.index}")
    latent, rope = memory.parts(layer.index)
    return (
        part_memory("latent", latent, memory.page_size, layer.latent_dim),
        part_memory("rope", rope, memory.page_size, layer.rope_dim),
    )


def part_memory(name: str, kept: Tensor, page_size: int, size: int) -> LatentPart:
    if kept.dtype not in KV_TYPES:
        raise ValueError(f"the native attention kernels do not do KV of {kept.dtype}")
    width = stored_width(size, kept.dtype)
    pages, shape, (page, token, number) = kept.shape[0], kept.shape[1:], kept.stride()
    if shape != (page_size, width) or number != 1 or page != token * page_size or not kept.is_cpu:
        raise wrong("attend_latent", f"KV memory of {name}", kept, f"pages of {page_size}, {width}")
    return LatentPart((kept.data_ptr(), token), pages, KV_TYPES[kept.dtype])


class LatentPartials:
    """Where threads that share a row leave what they found, segment by segment."""

    def __init__(self, layers: Sequence[LatentLayer], threads: int, max_length: int) -> None:
        segments = -(-max_length // SEGMENT) + 1
        row = max((segments * _partial_size(layer) for layer in layers), default=1)
        groups = [-(-layer.heads // HEADS) for layer in layers]
        wanted = -(-CHUNKS_PER_THREAD * threads // min(groups, default=1)) - 1 if threads > 1 else 0
        rows = min(wanted, LARGEST_PARTIAL // (4 * row)) if layers else 0
        self._results = zeroed_memory(4 * rows * row, torch.device("cpu"), huge=False).tensor
        self._arrivals = torch.zeros(rows * max(groups, default=1), dtype=I64)
        self.words = (self._results.data_ptr(), self._arrivals.data_ptr(), rows, segments)


def _partial_size(layer: LatentLayer) -> int:
    """floats of one segment of all heads; as in latent_attention.inc"""
    groups = -(-layer.heads // HEADS)
    heads = -(-layer.heads // groups)
    return groups * (2 * _filled(heads) + heads * _filled(layer.latent_dim))


def _filled(count: int) -> int:
    return -(-count // 16) * 16
