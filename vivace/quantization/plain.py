"""Checkpoints of floats, and GGUF's blocks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from vivace.platforms.blocks import INT8_ACTIVATION_KINDS
from vivace.platforms.ops.stored import StoredBlocks
from vivace.platforms.ops.table import Activation
from vivace.quantization.method import ExpertMethod, LayerWeights, LocalPart, Matrix
from vivace.quantization.packed import (
    PackedMethod,
    Quantize,
    WeightPacker,
    keep,
)
from vivace.quantization.packed_experts import packed_experts

HEAD = "lm_head"


class PlainConfig:
    """`int8_activations`: blocks are multiplied with activations in int8, but for the head's,
    whose error decides tokens."""

    norm_biases = False

    def __init__(self, packer: WeightPacker, *, int8_activations: bool = False) -> None:
        self._packer = packer
        self._int8_activations = int8_activations
        self.take_matrix = read_stored if packer.blocks else read_floats

    def linear_method(self, layer: str, parts: Sequence[str]) -> PackedMethod:
        return PackedMethod(self._packer, self.take_matrix, self._marks(layer))

    def expert_method(self, layer: str, activation: Activation) -> ExpertMethod:
        return packed_experts(self._packer, self.take_matrix, activation, self._marks(layer))

    def _marks(self, layer: str) -> Quantize:
        return mark_int8_activations if self._int8_activations and layer != HEAD else keep


def read_floats(weights: LayerWeights, part: LocalPart) -> Tensor:
    return weights.take_matrix(part)


def read_stored(weights: LayerWeights, part: LocalPart) -> Tensor | StoredBlocks:
    return weights.take_stored(part)


def mark_int8_activations(pieces: Sequence[Matrix]) -> Sequence[Matrix]:
    """Marks the blocks that a kernel multiplies with int8. Wider blocks and floats are multiplied
    with floats."""
    return [
        piece.with_int8_activations()
        if isinstance(piece, StoredBlocks) and piece.kind in INT8_ACTIVATION_KINDS
        else piece
        for piece in pieces
    ]
