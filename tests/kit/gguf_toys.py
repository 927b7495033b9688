"""GGUF files of toy models, written as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

STEMS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate": "ffn_gate_exps",
    "mlp.experts.up": "ffn_up_exps",
    "mlp.experts.down": "ffn_down_exps",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def stored_name(name: str, gemma: bool) -> str:
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        names = {**STEMS, **GEMMA} if gemma else STEMS
        return f"blk.{layer}.{names[part]}.{kind}"
    return f"{STEMS[stem]}.{kind}"


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows 0, 1, ..., h, h + 1, ... of each head stored as 0, h, 1, h + 1, ..."""
    per_head = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return per_head.swapaxes(1, 2).reshape(rows.shape)


def write(model: Any, path: Path, architecture: str, kind: Kind = Kind.F32) -> None:
    """Matrices as `kind`, vectors as F32. `model` then holds the numbers that were written."""
    config = model.config
    writer = gguf.GGUFWriter(str(path), architecture)
    write_shape(writer, config)
    seen: set[int] = set()
    for name, parameter in model.named_parameters():
        if id(parameter) in seen:
            continue
        seen.add(id(parameter))
        value = parameter.detach().numpy()
        if value.ndim > 1 and kind != Kind.F32 and not name.endswith("gate.weight"):
            value = rounded(value, kind)
            parameter.data.copy_(parameter.new_tensor(value))
        for part, matrix in file_parts(name, value):
            write_tensor(writer, part, matrix, architecture, config, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def file_parts(name: str, value: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """transformers has gate and up of all experts in one tensor."""
    place, _, part = name.rpartition(".")
    if part == "gate_up_proj":
        gate, up = np.split(value, 2, 1)
        return [(f"{place}.gate.weight", gate), (f"{place}.up.weight", up)]
    if part == "down_proj":
        return [(f"{place}.down.weight", value)]
    if name.endswith("shared_expert_gate.weight"):
        return [(name, value[0])]
    return [(name, value)]


def write_shape(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head)
    writer.add_value_length(head)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if hasattr(config, "moe_intermediate_size"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if hasattr(config, "shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if config.model_type.startswith(("gemma", "mistral")):
        writer.add_sliding_window(config.sliding_window)
    if config.model_type == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(7)


def write_tensor(
    writer: gguf.GGUFWriter,
    name: str,
    value: np.ndarray,
    architecture: str,
    config: Any,
    kind: Kind,
) -> None:
    gemma = architecture.startswith("gemma")
    if architecture == "llama" and ".q_proj." in name:
        value = interleaved(value, config.num_attention_heads)
    if architecture == "llama" and ".k_proj." in name:
        value = interleaved(value, config.num_key_value_heads)
    if gemma and name.endswith("norm.weight"):
        value = value + 1.0
    stored = stored_name(name, gemma)
    if value.ndim == 1 or kind == Kind.F32 or "ffn_gate_inp" in stored:
        writer.add_tensor(stored, np.ascontiguousarray(value, dtype=np.float32))
    else:
        writer.add_tensor(stored, encoded(np.ascontiguousarray(value), kind), raw_dtype=kind)


def rounded(value: np.ndarray, kind: Kind) -> np.ndarray:
    """The nearest values that `kind` can hold (some, for the types gguf cannot encode)."""
    return np.array(dequantize(encoded(value, kind), kind), dtype=np.float32).reshape(value.shape)


def encoded(value: np.ndarray, kind: Kind) -> np.ndarray:
    if kind not in K_SCALES:
        return quantize(value, kind)
    return random_blocks(value.shape, kind)


K_SCALES = {
    Kind.Q2_K: (80, 82),
    Kind.Q3_K: (108,),
    Kind.Q4_K: (0, 2),
    Kind.Q5_K: (0, 2),
    Kind.Q6_K: (208,),
}
"""byte offsets of the float16 scales in a block of 256"""


def random_blocks(shape: tuple[int, ...], kind: Kind) -> np.ndarray:
    """Blocks with random contents and small scales; the same for the same shape."""
    size, nbytes = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(shape[0] * 1000 + shape[1])
    blocks = random.integers(0, 256, (int(np.prod(shape)) // size, nbytes), dtype=np.uint8)
    for at in K_SCALES[kind]:
        scales = random.uniform(0.0001, 0.001, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(*shape[:-1], -1)
