"""How a checkpoint says that its weights are quantized. Torch-free: settings depend on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.fields import ConfigFields, abbreviate

KEYS = ("quantization_config", "compression_config")
MLX = "quantization"
"""where MLX describes its weights; older files have no other key"""
SUPPORTED = (
    "this version reads F32, F16 and BF16 safetensors, int8 ones with a scale for each output "
    "channel (w8a8_int8), FP8, AWQ, GPTQ, MXFP4 and ModelSlim checkpoints, and quantized GGUF "
    "files: "
    "use one of those"
)
GPTQ_BITS = (2, 4, 8)
FP8_INPUTS = 128
"""a block of float8 has a multiple of it"""
FLOAT = "FLOAT"
MODELSLIM_TYPES = (FLOAT, "W8A8", "W8A8_DYNAMIC", "W8A16", "W4A8_DYNAMIC")
MODELSLIM_CACHES = ("kv_cache_type", "kv_quant_type", "fa_quant_type", "indexer_quant_type")
"""what else ModelSlim quantizes, beside weights"""

UNQUANT = "unquant"
"""--quantization: floats are made of what is quantized"""
METHODS = ("awq", "gptq", "modelslim", "compressed-tensors", "mxfp4", "fp8")
"""values of --quantization that name what a checkpoint is"""


@dataclass(frozen=True)
class Int8Checkpoint:
    """int8 with one scale for each output channel."""

    method = "compressed-tensors"


@dataclass(frozen=True, kw_only=True)
class AwqCheckpoint:
    """4-bit numbers, eight output channels in a word; Lin et al. 2023, AutoAWQ's "gemm" layout."""

    method = "awq"
    group_size: int
    zero_points: bool
    skipped: tuple[str, ...]
    """layers whose names contain one of these are floats"""


@dataclass(frozen=True, kw_only=True)
class GptqCheckpoint:
    """Numbers of a few bits, neighboring inputs in a word; Frantar et al. 2022, AutoGPTQ."""

    method = "gptq"
    bits: int
    group_size: int
    """-1: one for all inputs"""
    ordered: bool
    """desc_act: `g_idx` says which group an input is in"""
    symmetric: bool
    """sym: all zero points are the middle"""
    zero_shift: int
    """added to stored zero points: 1 in version 1 of the format"""
    skipped: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ModelSlimCheckpoint:
    """Huawei's msmodelslim ("AscendV1"): a type for every tensor."""

    method = "modelslim"
    types: Mapping[str, str]
    norm_biases: bool


@dataclass(frozen=True, kw_only=True)
class Mxfp4Checkpoint:
    """Experts in blocks of four-bit numbers (gpt-oss); all else is floats."""

    method = "mxfp4"
    block = 32
    """inputs that share a scale"""


@dataclass(frozen=True, kw_only=True)
class Fp8Checkpoint:
    """float8 (e4m3fn) numbers with a float32 scale for each block, or for a tensor."""

    block: tuple[int, int] | None
    """rows and inputs that share a scale; None: all of a tensor, or of an output channel"""
    method: str = "fp8"


QuantizedCheckpoint = (
    Int8Checkpoint
    | AwqCheckpoint
    | GptqCheckpoint
    | ModelSlimCheckpoint
    | Mxfp4Checkpoint
    | Fp8Checkpoint
)


def read_quantization(
    config: ConfigFields,
    description: Mapping[str, Any] | None = None,
    beside: tuple[str, Mapping[str, Any]] = ("", {}),
) -> QuantizedCheckpoint | None:
    """None: the weights are floats, or blocks. `description`: ModelSlim's file of it; `beside`: a
    file of an older tool and what it says, which counts where `config` says nothing.

    Raises SourceError for weights that no method of ours reads.
    """
    if description:
        return read_modelslim(description, config)
    for key in (*KEYS, MLX):
        if key == MLX and not isinstance(config.values.get(key), dict):
            continue  # others write there what concerns no weights
        found = config.inner(key)
        if found is not None and found.values:
            return read_method(found.values, config.place(key))
    place, values = beside
    return read_method(values, place) if values else None


def check_requested_method(
    checkpoint: QuantizedCheckpoint | None, requested: str | None, flag: str = "--quantization"
) -> None:
    """Raises SourceError where `flag` and the checkpoint contradict each other."""
    if requested is None or (checkpoint and requested == checkpoint.method):
        return
    if requested in METHODS:
        found = checkpoint.method if checkpoint else "floats, or blocks of a GGUF file"
        raise SourceError(f"{flag} {requested}: the weights are {found}; leave it out")
    possible = {
        AwqCheckpoint: (UNQUANT,),
        GptqCheckpoint: (UNQUANT,),
        Mxfp4Checkpoint: (UNQUANT,),
        Fp8Checkpoint: (UNQUANT,),
        ModelSlimCheckpoint: (),
    }
    if checkpoint and requested not in possible.get(type(checkpoint), (requested,)):
        raise SourceError(
            f"{flag} {requested}: the weights are {checkpoint.method} already; leave it out"
        )


def read_method(values: Mapping[str, Any], place: str) -> QuantizedCheckpoint:
    method = values.get("quant_method")
    refusal = f"{place}: the weights are quantized ({describe_method(values)}); {SUPPORTED}"
    if int8_by_channel(values):
        return Int8Checkpoint()
    if method == "awq":
        return read_awq(values, place, refusal)
    if method == "gptq":
        return read_gptq(values, place, refusal)
    if method == "mxfp4":
        read_names(values, "modules_to_not_convert", place)  # which these are, the tensors say
        return Mxfp4Checkpoint()
    if method == "fp8":
        return read_fp8(values, place, refusal)
    if method == "fbgemm_fp8":
        read_names(values, "modules_to_not_convert", place)
        return Fp8Checkpoint(block=None, method=method)
    if fp8_by(values, "channel", "tensor"):
        return Fp8Checkpoint(block=None, method=Int8Checkpoint.method)
    if fp8_by(values, "block"):
        return read_compressed_blocks(values, place)
    if method in ("modelslim", "ascend"):
        raise SourceError(f"{place}: quant_model_description.json is missing; fetch it")
    raise SourceError(refusal)


def read_awq(values: Mapping[str, Any], place: str, refusal: str) -> AwqCheckpoint:
    version = str(values.get("version", "gemm")).lower()
    if values.get("bits", values.get("w_bit")) != 4 or version != "gemm":
        raise SourceError(f"{refusal}; of AWQ, the layout gemm with bits 4")
    return AwqCheckpoint(
        group_size=read_group_size(values, "group_size", "q_group_size", place=place),
        zero_points=read_switch(values, "zero_point", True, place),
        skipped=read_names(values, "modules_to_not_convert", place),
    )


def read_gptq(values: Mapping[str, Any], place: str, refusal: str) -> GptqCheckpoint:
    bits, layout = values.get("bits"), values.get("checkpoint_format", "gptq")
    if (
        type(bits) is not int
        or bits not in GPTQ_BITS
        or layout not in ("gptq", "gptq_v2")
        or values.get("dynamic")
    ):
        raise SourceError(
            f"{refusal}; of GPTQ, bits {GPTQ_BITS} of the formats gptq and gptq_v2 and without "
            f"`dynamic`"
        )
    head = () if read_switch(values, "lm_head", False, place) else ("lm_head",)
    return GptqCheckpoint(
        bits=bits,
        group_size=read_group_size(values, "group_size", place=place),
        ordered=read_switch(values, "desc_act", False, place),
        symmetric=read_switch(values, "sym", False, place),
        zero_shift=1 if layout == "gptq" else 0,
        skipped=(*head, *read_names(values, "modules_to_not_convert", place)),
    )


def read_fp8(values: Mapping[str, Any], place: str, refusal: str) -> Fp8Checkpoint:
    """Which layers are floats, the tensors say."""
    for key in ("modules_to_not_convert", "ignored_layers"):
        read_names(values, key, place)
    number, scheme = values.get("fmt", "e4m3"), values.get("activation_scheme", "dynamic")
    if number not in ("e4m3", "float8_e4m3fn") or scheme not in ("dynamic", "static"):
        raise SourceError(f"{refusal}; of FP8, e4m3 with dynamic or static activations")
    block = values.get("weight_block_size")
    if block is None:
        return Fp8Checkpoint(block=None)
    return Fp8Checkpoint(block=read_block(block, f"{place}.weight_block_size"))


def read_compressed_blocks(values: Mapping[str, Any], place: str) -> Fp8Checkpoint:
    """compressed-tensors: every group of layers has blocks of its own description."""
    found = [weights.get("block_structure") for weights, _ in fp8_groups(values)]
    blocks = {read_block(block, f"{place}.config_groups: block_structure") for block in found}
    if len(blocks) > 1:
        raise SourceError(
            f"{place}.config_groups: block_structure is {abbreviate(found)}: layers with blocks of "
            "several sizes are not supported"
        )
    return Fp8Checkpoint(block=blocks.pop(), method=Int8Checkpoint.method)


def read_block(block: Any, place: str) -> tuple[int, int]:
    sizes = block if isinstance(block, list) else []
    if len(sizes) != 2 or any(type(size) is not int or size < 1 for size in sizes):
        raise SourceError(f"{place} is {abbreviate(block)}: it is [rows, inputs] of a block")
    if sizes[1] % FP8_INPUTS:
        raise SourceError(
            f"{place} is {sizes}: blocks of FP8 have a multiple of {FP8_INPUTS} "
            "inputs; use a checkpoint with [128, 128]"
        )
    return sizes[0], sizes[1]


def read_group_size(values: Mapping[str, Any], *keys: str, place: str) -> int:
    found = next((values[key] for key in keys if key in values), None)
    if type(found) is not int or (found != -1 and found < 1):
        raise SourceError(
            f"{place}.{keys[0]} is {abbreviate(found)}: it is a number of inputs, or -1 for all"
        )
    return found


def read_switch(values: Mapping[str, Any], key: str, default: bool, place: str) -> bool:
    found = values.get(key, default)
    if not isinstance(found, bool):
        raise SourceError(f"{place}.{key} is {abbreviate(found)}: it is true or false")
    return found


def read_names(values: Mapping[str, Any], key: str, place: str) -> tuple[str, ...]:
    found = values.get(key) or []
    if not isinstance(found, list) or not all(isinstance(name, str) and name for name in found):
        raise SourceError(f"{place}.{key} is {abbreviate(found)}: it is a list of names")
    return tuple(found)


def read_modelslim(description: Mapping[str, Any], config: ConfigFields) -> ModelSlimCheckpoint:
    """quant_model_description.json: the name of each tensor -> its type, and a few keys more."""
    place = "quant_model_description.json"
    for key in MODELSLIM_CACHES:
        if description.get(key):
            raise SourceError(
                f"{place}: {key} is {abbreviate(description[key])}: quantized KV and attention of "
                "a checkpoint are not supported yet; use one with quantized weights only"
            )
    types = {
        name: kind
        for name, kind in description.items()
        if name.endswith((".weight", ".bias")) and isinstance(kind, str)
    }
    other = sorted({kind for kind in types.values() if kind not in MODELSLIM_TYPES})
    if other:
        raise SourceError(
            f"{place}: tensors of the types {', '.join(map(abbreviate, other[:4]))}; supported of "
            f"ModelSlim's are {', '.join(MODELSLIM_TYPES)}"
        )
    if not any(name.endswith(".weight") for name in types):
        raise SourceError(f"{place}: it has no types of weights; fetch it again")
    return ModelSlimCheckpoint(types=types, norm_biases=any("norm.bias" in name for name in types))


def describe_method(found: Mapping[str, Any]) -> str:
    """The method's name, or of files that name none what they do say."""
    name = found.get("quant_method")
    return abbreviate(dict(found) if name is None else name)


def int8_by_channel(found: Mapping[str, Any]) -> bool:
    """Whether a `quantization_config` describes int8 weights with one scale for each output
    channel, and activations that need no numbers from the checkpoint."""
    if found.get("quant_method") == "w8a8_int8":
        return True
    wanted = {"num_bits": 8, "type": "int", "symmetric": True}
    parts = compressed_groups(found, "int-quantized")
    return bool(parts) and all(
        has(weights, {**wanted, "strategy": "channel"})
        and (inputs is None or has(inputs, {**wanted, "strategy": "token", "dynamic": True}))
        for weights, inputs in parts
    )


def fp8_by(found: Mapping[str, Any], *strategies: str) -> bool:
    """Whether compressed-tensors' description is of float8 weights whose scales are of these;
    activations, which stay floats here, may have any."""
    wanted = {"num_bits": 8, "type": "float", "symmetric": True}
    parts = fp8_groups(found)
    return bool(parts) and all(
        has(weights, wanted)
        and weights.get("strategy") in strategies
        and (inputs is None or has(inputs, {"num_bits": 8, "type": "float"}))
        for weights, inputs in parts
    )


def fp8_groups(found: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    return compressed_groups(found, "float-quantized")


def compressed_groups(found: Mapping[str, Any], form: str) -> list[tuple[Any, Any]]:
    """(weights, activations) of each group of compressed-tensors' layers; nothing where they are
    stored in another form, or KV is quantized too."""
    groups = found.get("config_groups")
    other = found.get("transform_config") or found.get("kv_cache_scheme")
    if found.get("format") != form or other or not isinstance(groups, dict):
        return []
    return [
        (group.get("weights"), group.get("input_activations"))
        if isinstance(group, dict)
        else (0, 0)
        for group in groups.values()
    ]


def has(found: Any, wanted: dict[str, Any]) -> bool:
    return isinstance(found, dict) and all(found.get(key) == wanted[key] for key in wanted)
