"""The embedded model's numbers as a checkpoint of transformers would have them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.torch import save_file

from vivace.checkpoint.gguf_file import GGUFFile

SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
}
NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
HEADS = {"attn_q": 9, "attn_k": 3}


def halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head stored as (0, h, 1, h + 1, ...) back to 0, 1, ..., h, h + 1, ..."""
    per_head = rows.reshape(heads, -1, rows.shape[-1])
    return np.concatenate([per_head[:, 0::2], per_head[:, 1::2]], axis=1).reshape(rows.shape)


def converted(file: Path) -> dict[str, torch.Tensor]:
    """The file's tensors under transformers' names, decoded by gguf, renamed here."""
    found, opened = {}, GGUFFile(file)
    for entry in opened.tensors.values():
        rows = np.frombuffer(opened.data(entry.name), np.uint8)
        value = dequantize(rows.reshape(*entry.shape[:-1], -1), GGMLQuantizationType(entry.type))
        value = np.array(value, dtype=np.float32).reshape(entry.shape)
        stem = entry.name.removesuffix(".weight")
        if stem.startswith("blk."):
            _, layer, part = stem.split(".")
            if part in HEADS:
                value = halves(value, HEADS[part])
            name = f"model.layers.{layer}.{NAMES[part]}.weight"
        else:
            name = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[stem]
            name += ".weight"
        found[name] = torch.from_numpy(value)
    return found


def write_checkpoint(file: Path, folder: Path, dtype: torch.dtype) -> Path:
    """The file's numbers rounded to `dtype`, without a tokenizer."""
    tensors = {name: value.to(dtype) for name, value in converted(file).items()}
    save_file(tensors, folder / "model.safetensors")
    config = {
        **SHAPE,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
