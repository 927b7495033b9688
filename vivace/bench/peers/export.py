"""The embedded GGUF model as a safetensors checkpoint in BF16, for peers that read no GGUF."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from vivace.bench.errors import BenchError

MODEL_FOLDER = "smollm2-hf"

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def has_export(directory: Path) -> bool:
    return (directory / MODEL_FOLDER / "config.json").exists()


def export_once(directory: Path) -> None:
    """The embedded model in MODEL_FOLDER below, unless it is there."""
    if not has_export(directory):
        print(f"exporting the embedded model to {directory / MODEL_FOLDER}")
        export_embedded(directory / MODEL_FOLDER)


def export_embedded(target: Path) -> None:
    """Write config.json, model.safetensors, tokenizer.json and tokenizer_config.json."""
    from vivace.checkpoint.source import locate
    from vivace.frontend.tokenizer_gguf import load_from_gguf

    source = locate(None)
    if source.format != "gguf":
        raise BenchError("the embedded model is no GGUF file; there is nothing to convert")
    config = dict(source.config)
    if config.get("model_type") != "llama":
        raise BenchError(f"only llama models are exported, not {config.get('model_type')!r}")
    target.mkdir(parents=True, exist_ok=True)
    write_tensors(source.files[0], config, target / "model.safetensors")
    write_json(target / "config.json", config | {"torch_dtype": "bfloat16"})
    write_json(target / "generation_config.json", dict(source.generation_config))
    core, *_ = load_from_gguf(source.files[0])
    core.save(str(target / "tokenizer.json"))
    write_json(target / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})


def write_tensors(file: Path, config: dict[str, Any], target: Path) -> None:
    from gguf import GGUFReader
    from gguf.quants import dequantize

    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    stored: dict[str, np.ndarray] = {}
    for tensor in GGUFReader(file).tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.name.endswith("attn_q.weight"):
            values = halves_order(values, heads)
        elif tensor.name.endswith("attn_k.weight"):
            values = halves_order(values, kv_heads)
        stored[checkpoint_name(tensor.name)] = bfloat16_bits(values)
    write_safetensors(target, stored)


def write_safetensors(target: Path, tensors: dict[str, np.ndarray]) -> None:
    """BF16 bit patterns (uint16 arrays): length of the header, JSON header, the data in order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, bits in tensors.items():
        place = [offset, offset + bits.nbytes]
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": place}
        offset += bits.nbytes
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    with target.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for bits in tensors.values():
            file.write(bits.tobytes())


def checkpoint_name(name: str) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_NAMES:
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.{parts[3]}"
    raise BenchError(f"tensor {name!r} has no place in a llama checkpoint")


def halves_order(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from interleaved rotary pairs to (first half, second half)."""
    rows, columns = weight.shape
    pairs = rows // heads // 2
    return weight.reshape(heads, pairs, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """float32 -> the upper 16 bits, rounded to nearest even (values are finite weights)."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.ascontiguousarray((rounded >> np.uint32(16)).astype(np.uint16))


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2))
