"""InternLM2's checkpoints under the names that Llama has: queries, keys and values are one tensor
there, group by group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vivace.checkpoint.safetensors_files import spell_whole
from vivace.checkpoint.weights import ALL, TensorReader

FUSED = "self_attn.qkv_proj"
SPELLINGS = {
    "tok_embeddings.": "embed_tokens.",
    "attention.wqkv.": f"{FUSED}.",
    "attention.wo.": "self_attn.o_proj.",
    "attention_norm.": "input_layernorm.",
    "feed_forward.w1.": "mlp.gate_proj.",
    "feed_forward.w3.": "mlp.up_proj.",
    "feed_forward.w2.": "mlp.down_proj.",
    "ffn_norm.": "post_attention_layernorm.",
}
HEADS = {"output.": "lm_head.", "v_head.": "score."}
"""of whole models"""


AXES = {".weight": 0, ".bias": 0, ".qweight": 1, ".qzeros": 1, ".scales": 1}
"""suffix -> which dimension the outputs are, or words of several of them"""
SHARED = (".g_idx",)
"""of inputs alone"""


@dataclass(frozen=True)
class ProjectionNames:
    """Of the fused tensor in a layer, and of the three in its place."""

    fused: str
    parts: tuple[str, ...]


LLAMA = ProjectionNames(FUSED, tuple(f"self_attn.{part}_proj" for part in ("q", "k", "v")))


def spell_internlm2(names: Iterable[str]) -> Mapping[str, str]:
    """Name in InternLM2's files -> Llama's, with `FUSED` in the place of the three projections."""
    found = {name: spell(name) for name in names}
    whole = spell_whole(found.values())
    return {name: whole[spelled] for name, spelled in found.items()}


def spell(name: str) -> str:
    for theirs, ours in HEADS.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    for theirs, ours in SPELLINGS.items():
        name = name.replace(theirs, ours)
    return name


@dataclass(frozen=True)
class ProjectionRows:
    """Of one projection: `rows` in each group of `group` rows of the fused tensor, from `first`; of
    those of AWQ and GPTQ, whose dimensions are the other way round, columns (`axis` 1)."""

    fused: str
    group: int
    first: int
    rows: int
    axis: int = 0


class GroupedProjections:
    """A `TensorReader` with `q_proj`, `k_proj` and `v_proj` in the place of `qkv_proj`. For each
    head of keys that tensor has the rows of its queries, then those of the key, then the value's.
    With one head of each those are the whole projections.
    """

    def __init__(
        self,
        reader: TensorReader,
        heads: int = 1,
        kv_heads: int = 1,
        called: ProjectionNames = LLAMA,
    ) -> None:
        self.place = reader.place
        self.read_stored = self.read
        self._reader = reader
        self._parts = {
            part: rows
            for name in reader.names()
            for part, rows in split_projections(name, reader, heads, kv_heads, called)
        }

    def names(self) -> Iterator[str]:
        fused = {rows.fused for rows in self._parts.values()}
        yield from self._parts
        yield from (name for name in self._reader.names() if name not in fused)

    def shape(self, name: str) -> tuple[int, ...]:
        part = self._parts.get(name)
        if part is None:
            return self._reader.shape(name)
        whole = list(self._reader.shape(part.fused))
        whole[part.axis] = whole[part.axis] // part.group * part.rows
        return tuple(whole)

    def nbytes(self, name: str) -> int:
        part = self._parts.get(name)
        if part is None:
            return self._reader.nbytes(name)
        return self._reader.nbytes(part.fused) // part.group * part.rows

    def dtype(self, name: str) -> torch.dtype | None:
        return self._reader.dtype(self._find(name))

    def label(self, name: str) -> str:
        return self._reader.label(self._find(name))

    def kind(self, name: str) -> str:
        return self._reader.kind(self._find(name))

    def read(
        self, name: str, rows: slice = ALL, columns: slice = ALL, depth: slice = ALL
    ) -> Tensor:
        part = self._parts.get(name)
        if part is None:
            return self._reader.read(name, rows, columns, depth)
        asked, axis = [rows, columns, depth], part.axis
        start, stop, _ = asked[axis].indices(self.shape(name)[axis])
        first, last = start // part.rows, -(-stop // part.rows)
        asked[axis] = slice(first * part.group, last * part.group)
        found = self._reader.read(part.fused, *asked).unflatten(axis, (-1, part.group))
        own = found.narrow(axis + 1, part.first, part.rows).flatten(axis, axis + 1)
        return own.narrow(axis, start - first * part.rows, stop - start).contiguous()

    def _find(self, name: str) -> str:
        part = self._parts.get(name)
        return name if part is None else part.fused


def split_projections(
    name: str, reader: TensorReader, heads: int, kv_heads: int, called: ProjectionNames
) -> Iterator[tuple[str, ProjectionRows]]:
    """(name of a projection, where it is); nothing of a tensor that is none, or of other heads."""
    layer, fused, suffix = name.partition(called.fused)
    axis = AXES.get(suffix)
    if not fused:
        return
    if suffix in SHARED:
        for part in called.parts:
            yield f"{layer}{part}{suffix}", ProjectionRows(name, group=1, first=0, rows=1)
    shape = reader.shape(name)
    if axis is None or len(shape) <= axis or shape[axis] % (heads + 2 * kv_heads):
        return
    head, queries = shape[axis] // (heads + 2 * kv_heads), heads // kv_heads
    counts = (queries, 1, 1)
    for place, (part, count) in enumerate(zip(called.parts, counts, strict=True)):
        rows = ProjectionRows(
            fused=name,
            group=(queries + 2) * head,
            first=sum(counts[:place]) * head,
            rows=count * head,
            axis=axis,
        )
        yield f"{layer}{part}{suffix}", rows
