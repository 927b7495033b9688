"""GGUF files of toy models, written as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from gguf_mixture_toys import LATENT, MIXTURES, NEWEST, FileLayout, file_parts, write_mixture

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
    "feed_forward.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "feed_forward.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "feed_forward.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **MIXTURES,
}
GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


POST_NORMED = ("glm4moe", "gpt-oss")
"""architectures whose second norm of a layer is called after what it follows"""


def stored_name(name: str, architecture: str) -> str:
    gemma = architecture.startswith("gemma")
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        names = {**STEMS, **GEMMA} if gemma else STEMS
        if architecture in POST_NORMED:
            names = {**STEMS, "post_attention_layernorm": "post_attention_norm"}
        beyond, _, expert = part.rpartition(".")
        if expert.isdecimal():
            return f"blk.{layer}.{names[beyond].removesuffix('_exps')}.{expert}.{kind}"
        return f"blk.{layer}.{names[part]}.{kind}"
    return f"{STEMS[stem]}.{kind}"


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows 0, 1, ..., h, h + 1, ... of each head stored as 0, h, 1, h + 1, ..."""
    per_head = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return per_head.swapaxes(1, 2).reshape(rows.shape)


def write(
    model: Any,
    path: Path,
    architecture: str,
    kind: Kind = Kind.F32,
    layout: FileLayout = NEWEST,
    *,
    pooling: int | None = None,
) -> None:
    """Matrices as `kind`, vectors as F32. `model` then holds the numbers that were written."""
    config = model.config
    writer = gguf.GGUFWriter(str(path), architecture)
    if pooling is not None:
        writer.add_uint32(f"{architecture}.pooling_type", pooling)
    write_shape(writer, config)
    for name, parameter in parameters(model).items():
        for part, value in file_parts(name, parameter.detach().numpy(), config, layout):
            if is_encoded(stored_name(part, architecture), value, kind):
                value[...] = rounded(np.ascontiguousarray(value), kind)
            write_tensor(writer, part, value, architecture, config, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def parameters(model: Any) -> dict[str, Any]:
    """Each once, and what is one to a checkpoint."""
    found = {id(parameter): (name, parameter) for name, parameter in model.named_parameters()}
    corrections = [one for one in model.named_buffers() if one[0].endswith("correction_bias")]
    return dict([*found.values(), *corrections])


def is_encoded(stored: str, value: np.ndarray, kind: Kind) -> bool:
    plain = "ffn_gate_inp" in stored or stored.endswith("bias")
    return value.ndim > 1 and kind != Kind.F32 and not plain


def write_shape(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    inside = getattr(config, "intermediate_size_mlp", config.intermediate_size)
    writer.add_feed_forward_length(inside)
    writer.add_head_count(config.num_attention_heads)
    latent = config.model_type in LATENT
    writer.add_head_count_kv(1 if latent else config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim if latent else head)
    writer.add_value_length(config.kv_lora_rank if latent else head)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    write_mixture(writer, config)
    if config.model_type.startswith(("gemma", "mistral", "gpt_oss")):
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
    stored = stored_name(name, architecture)
    if is_encoded(stored, value, kind):
        writer.add_tensor(stored, encoded(np.ascontiguousarray(value), kind), raw_dtype=kind)
    else:
        writer.add_tensor(stored, np.ascontiguousarray(value, dtype=np.float32))


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
