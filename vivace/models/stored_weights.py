"""How a checkpoint stores its weights, from quantization_config of its config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

MLP = re.compile(r"experts|(?:gate|up|gate_up|down)_proj")
"""parts of names of layers in an MLP"""


class ScaleBlocks(msgspec.Struct, frozen=True):
    """Rows and columns of a block of FP8 weights with one scale, 1: none; `certain`: not only
    concluded from the name of the checkpoint."""

    rows: int = 1
    columns: int = 1
    certain: bool = True

    def divide(self, width: int, ranks: int) -> bool:
        """Whether each of the ranks that share an MLP has whole blocks of it."""
        return not (width % (ranks * self.rows) or width % (ranks * self.columns))


def parse_precision(config: Mapping[str, Any]) -> str:
    """quant_method, with its bits where they differ within one method."""
    found = config.get("quantization_config")
    if not isinstance(found, Mapping):
        return "bf16"
    if config.get("expert_dtype") == "fp4":
        return "fp8_fp4"
    method, bits = str(found.get("quant_method", "unknown")), found.get("bits")
    if method == "compressed-tensors" and "'num_bits': 4" in str(found):
        return "int4"
    return f"int{bits}" if method in ("awq", "gptq") and isinstance(bits, int) else method


def parse_blocks(config: Mapping[str, Any]) -> ScaleBlocks:
    """No blocks where some layers of an MLP are not converted."""
    found = config.get("quantization_config")
    if not isinstance(found, Mapping) or found.get("quant_method") != "fp8":
        return ScaleBlocks()
    plain = (found.get(key) for key in ("modules_to_not_convert", "ignored_layers"))
    match found.get("weight_block_size"):
        case [int(rows), int(columns)] if min(rows, columns) > 0 and not MLP.search(str([*plain])):
            return ScaleBlocks(rows, columns)
    return ScaleBlocks()
