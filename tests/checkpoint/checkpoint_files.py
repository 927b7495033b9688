"""Small checkpoints written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
}


def shapes() -> dict[str, tuple[int, ...]]:
    """Every tensor of the model in CONFIG."""
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (40, 32),
        "model.norm.weight": (32,),
        "lm_head.weight": (40, 32),
    }
    for layer in range(2):
        at = f"model.layers.{layer}."
        found[at + "input_layernorm.weight"] = (32,)
        found[at + "post_attention_layernorm.weight"] = (32,)
        for name, rows in (("q", 32), ("k", 16), ("v", 16), ("o", 32)):
            found[f"{at}self_attn.{name}_proj.weight"] = (rows, 32)
        for name in ("gate", "up", "down"):
            found[f"{at}mlp.{name}_proj.weight"] = (32, 32)
    return found


def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes().items()}


def write_config(folder: Path, **changes: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))


def write_single(folder: Path, found: dict[str, Tensor] | None = None, **changes: Any) -> Path:
    write_config(folder, **changes)
    save_file(found or tensors(), folder / "model.safetensors")
    return folder


def write_sharded(folder: Path, shards: int = 3) -> Path:
    write_config(folder)
    found = tensors()
    names = list(found)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: found[name] for name in names[shard::shards]}
        save_file(part, folder / file)
        weight_map.update(dict.fromkeys(part, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def write_gguf(
    file: Path,
    *,
    architecture: str = "llama",
    vocabulary: int = 40,
    sampling: dict[str, float] | None = None,
    ends: dict[str, int] | None = None,
    name: str | None = None,
) -> Path:
    """A file with every kind of metadata value; all matrices Q8_0."""
    writer = gguf.GGUFWriter(str(file), architecture)
    if name is not None:
        writer.add_name(name)
    for key, value in (sampling or {}).items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
        add(f"general.sampling.{key}", value)  # type: ignore[arg-type]
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_bool("a.flag", True)
    writer.add_float64("a.double", 0.5)
    writer.add_int8("a.small", -3)
    writer.add_uint64("a.large", 1 << 40)
    writer.add_token_list([f"<{i}>" for i in range(vocabulary)])
    writer.add_token_scores([float(-i) for i in range(vocabulary)])
    for key, token in (ends or {"eos": 2}).items():
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", token)
    random = np.random.default_rng(0)
    layer = {"attn_norm": (32,), "ffn_norm": (32,), "attn_q": (32, 32), "attn_k": (16, 32),
             "attn_v": (16, 32), "attn_output": (32, 32), "ffn_gate": (32, 32),
             "ffn_up": (32, 32), "ffn_down": (32, 32)}  # fmt: skip
    names = {f"blk.0.{name}.weight": shape for name, shape in layer.items()}
    names |= {"token_embd.weight": (vocabulary, 32), "output_norm.weight": (32,)}
    for name, shape in names.items():
        value = random.standard_normal(shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, value)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
