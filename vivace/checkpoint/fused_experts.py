"""Experts whose matrices are one tensor for all experts of a layer, as if each had its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vivace.checkpoint.weights import ALL, FLOATS, Weights

GATE, UP, DOWN = "gate_proj", "up_proj", "down_proj"
FUSED = {GATE: "gate_up_proj", UP: "gate_up_proj", DOWN: "down_proj"}
ENDINGS = {"weight": "", "bias": "_bias", "blocks": "_blocks", "scales": "_scales"}
"""suffix of an expert's own tensor -> what the fused one's name ends with"""


@dataclass(frozen=True, kw_only=True)
class FusedTensors:
    """`gate_up_proj` [experts, hidden, 2 * inner] and `down_proj` [experts, inner, hidden], which
    are transposed (transformers' GptOssExperts and Llama4TextExperts); `_bias` [experts, outputs];
    of MXFP4 `_blocks` [experts, outputs, inputs / 32, 16] and `_scales`, which are not."""

    interleaved: bool
    """gate and up take turns; otherwise gate comes first"""

    def names(self, place: str, suffixes: Collection[str]) -> Iterator[str]:
        """Tensors of the layer `place`"""
        for fused in dict.fromkeys(FUSED.values()):
            yield from (f"{place}.{fused}{ENDINGS[one]}" for one in suffixes if one in ENDINGS)


def single_experts(weights: Weights, place: str, count: int, fused: FusedTensors | None) -> Weights:
    """A checkpoint that has tensors of every expert of the layer `place`: a dummy and GGUF files
    do, and where no tensors are fused all others."""
    if fused is None or weights.names() is None or weights.has(f"{place}.0.{GATE}.weight"):
        return weights
    return FusedExperts(weights, place, count, fused)


class FusedExperts:
    """A checkpoint that has `PLACE.E.gate_proj.weight`, `.up_proj.` and `.down_proj.` of every
    expert E: parts of the fused tensors. Of others it has what the checkpoint has."""

    def __init__(self, weights: Weights, place: str, count: int, fused: FusedTensors) -> None:
        self.tied = weights.tied
        self.take_stored = self.take
        self._weights = weights
        self._place = place
        self._count = count
        self._fused = fused
        self._last: tuple[object, Tensor | None] = None, None
        """gate and up that take turns are read together, and wanted one after the other"""

    def has(self, name: str) -> bool:
        return self._weights.has(self._find(name)[0])

    def names(self) -> Iterable[str] | None:
        return self._weights.names()

    def shape(self, name: str) -> tuple[int, ...]:
        """Of an expert's part the fused tensor's, without the first dimension."""
        found, expert, _ = self._find(name)
        return self._weights.shape(found)[0 if expert is None else 1 :]

    def dtype(self, name: str) -> torch.dtype | None:
        return self._weights.dtype(self._find(name)[0])

    def label(self, name: str) -> str:
        return self._weights.label(self._find(name)[0])

    def take(
        self,
        name: str,
        shape: tuple[int, ...],
        rows: slice = ALL,
        columns: slice = ALL,
        *,
        depth: slice = ALL,
        dtypes: Collection[torch.dtype] = FLOATS,
    ) -> Tensor:
        found, expert, part = self._find(name)
        if expert is None:
            return self._weights.take(name, shape, rows, columns, depth=depth, dtypes=dtypes)
        whole, wanted, step = self._locate(part, shape[0], rows)
        key = found, expert, wanted.start, wanted.stop, columns.start, columns.stop
        last, tensor = self._last
        if tensor is None or last != key:
            one, rest = slice(expert, expert + 1), shape[1:]
            if name.endswith(".weight"):
                shape = (self._count, *rest, whole)
                tensor = self._weights.take(found, shape, one, columns, depth=wanted, dtypes=dtypes)
                tensor = tensor[0].T
            else:
                shape = (self._count, whole, *rest)
                tensor = self._weights.take(found, shape, one, wanted, depth=columns, dtypes=dtypes)
                tensor = tensor[0]
            self._last = (key, tensor) if step.step == 2 else (None, None)
        return tensor[step].contiguous()

    def _find(self, name: str) -> tuple[str, int | None, str]:
        """(the tensor that the checkpoint has, the expert, its part)"""
        expert, _, rest = name.removeprefix(f"{self._place}.").partition(".")
        if not name.startswith(f"{self._place}.") or not expert.isdecimal():
            return name, None, ""
        part, _, suffix = rest.partition(".")
        return f"{self._place}.{FUSED[part]}{ENDINGS.get(suffix, suffix)}", int(expert), part

    def _locate(self, part: str, size: int, rows: slice) -> tuple[int, slice, slice]:
        """(outputs of the fused tensor, those to read, which of these are the part's)"""
        start, stop, _ = rows.indices(size)
        if part == DOWN:
            return size, slice(start, stop), ALL
        second = part == UP
        if self._fused.interleaved:
            return 2 * size, slice(2 * start, 2 * stop), slice(int(second), None, 2)
        return 2 * size, slice(second * size + start, second * size + stop), ALL
