"""Which of the quantizations a checkpoint and --quantization want."""

from __future__ import annotations

import torch

from vivace.checkpoint.weights import Weights
from vivace.quantization.description import (
    UNQUANT,
    AwqCheckpoint,
    Fp8Checkpoint,
    GptqCheckpoint,
    Int8Checkpoint,
    ModelSlimCheckpoint,
    Mxfp4Checkpoint,
    QuantizedCheckpoint,
)
from vivace.quantization.fp8 import Fp8Config
from vivace.quantization.int8 import OF_INT8_CHECKPOINTS, SCHEMES, Int8Config
from vivace.quantization.method import QuantizationConfig
from vivace.quantization.modelslim import ModelSlimConfig
from vivace.quantization.mxfp4 import Mxfp4Config
from vivace.quantization.packed import WeightPacker
from vivace.quantization.plain import PlainConfig
from vivace.quantization.weight_only import WeightOnlyConfig


def select_quantization(
    checkpoint: QuantizedCheckpoint | None,
    weights: Weights,
    packer: WeightPacker,
    *,
    requested: str | None = None,
    int8_activations: bool = False,
) -> QuantizationConfig:
    """`checkpoint`: what its files say; `requested`: --quantization; `int8_activations`: GGUF's
    blocks are multiplied with those."""
    match checkpoint:
        case AwqCheckpoint() | GptqCheckpoint():
            return WeightOnlyConfig(packer, checkpoint, decode=requested == UNQUANT)
        case ModelSlimCheckpoint():
            return ModelSlimConfig(packer, checkpoint)
        case Mxfp4Checkpoint():
            return Mxfp4Config(packer, decode=requested == UNQUANT)
        case Fp8Checkpoint():
            return Fp8Config(packer, checkpoint, decode=requested == UNQUANT)
    if isinstance(checkpoint, Int8Checkpoint) or has_int8(weights):
        scheme = OF_INT8_CHECKPOINTS if requested in (None, Int8Checkpoint.method) else requested
        return Int8Config(packer, scheme if scheme in SCHEMES else None, online=False)
    if requested in SCHEMES:
        return Int8Config(packer, requested, online=True)
    return PlainConfig(packer, int8_activations=int8_activations)


def has_int8(weights: Weights) -> bool:
    """Older files of int8 have no word about it."""
    return any(weights.dtype(name) is torch.int8 for name in weights.names() or ())
