"""Which quantized safetensors can be read, from the configuration that describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.fields import ConfigFields, abbreviate

KEYS = ("quantization_config", "compression_config")
MLX = "quantization"
"""where MLX describes its weights; older files have no other key"""
SUPPORTED = (
    "this version reads F32, F16 and BF16 safetensors, int8 ones with a scale for each output "
    "channel (w8a8_int8), and quantized GGUF files: use one of those"
)


def refuse_quantized(config: ConfigFields) -> None:
    """Raises SourceError for weights that no reader of ours decodes."""
    for key in (*KEYS, MLX):
        if key == MLX and not isinstance(config.values.get(key), dict):
            continue  # others write there what concerns no weights
        found = config.inner(key)
        if found is not None and found.values and not int8_by_channel(found.values):
            what = describe_method(found.values)
            raise SourceError(
                f"{config.place(key)}: the weights are quantized ({what}); {SUPPORTED}"
            )


def describe_method(found: Mapping[str, Any]) -> str:
    """The method's name, or of files that name none what they do say."""
    name = found.get("quant_method")
    return abbreviate(dict(found) if name is None else name)


def int8_by_channel(found: Mapping[str, Any]) -> bool:
    """Whether a `quantization_config` describes int8 weights with one scale for each output
    channel, and activations that need no numbers from the checkpoint."""
    if found.get("quant_method") == "w8a8_int8":
        return True
    groups = found.get("config_groups")
    if found.get("format") != "int-quantized" or not isinstance(groups, dict):
        return False
    wanted = {"num_bits": 8, "type": "int", "symmetric": True}
    parts = [
        (group.get("weights"), group.get("input_activations"))
        for group in groups.values()
        if isinstance(group, dict)
    ]
    return bool(parts) and all(
        has(weights, {**wanted, "strategy": "channel"})
        and (inputs is None or has(inputs, {**wanted, "strategy": "token", "dynamic": True}))
        for weights, inputs in parts
    )


def has(found: Any, wanted: dict[str, Any]) -> bool:
    return isinstance(found, dict) and all(found.get(key) == wanted[key] for key in wanted)
