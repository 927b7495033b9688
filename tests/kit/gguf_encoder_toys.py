"""GGUF files of toy encoders with their vocabularies, as llama.cpp's converter writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np

STEMS = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.LayerNorm": "token_embd_norm",
    "classifier.dense": "cls",
    "classifier.out_proj": "cls.output",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
NOMIC_STEMS = {
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "attn_output_norm",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_proj": "ffn_gate",
    "mlp.down_proj": "ffn_down",
    "post_mlp_layernorm": "layer_output_norm",
}
MEAN, CLS, LAST, RANK = 1, 2, 3, 4
"""kinds of pooling"""


def write_gguf_encoder(model: Any, folder: Path, file: Path, pooling: int = CLS) -> None:
    """`model`: transformers', of `write_encoder` in `folder`"""
    config, nomic = model.config, model.config.model_type == "nomic_bert"
    architecture = "nomic-bert" if nomic else "bert"
    writer = gguf.GGUFWriter(str(file), architecture)
    like_bert = config.model_type == "bert" or nomic
    offset = 0 if like_bert else config.pad_token_id + 1
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings - offset)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_causal_attention(False)
    writer.add_uint32(f"{architecture}.pooling_type", pooling)
    if nomic:
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    vocabulary = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    (write_words if like_bert else write_pieces)(writer, vocabulary)
    parameters = {name: one.detach().numpy() for name, one in model.named_parameters()}
    for index in range(config.num_hidden_layers if nomic else 0):
        names = [f"layers.{index}.self_attn.{part}_proj.weight" for part in "qkv"]
        fused = np.concatenate([parameters.pop(name) for name in names])
        writer.add_tensor(f"blk.{index}.attn_qkv.weight", np.ascontiguousarray(fused))
    for name, value in parameters.items():
        if name.endswith("position_embeddings.weight"):
            value = value[offset:]
        if stored := stored_name(name):
            writer.add_tensor(stored, np.ascontiguousarray(value, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def stored_name(name: str) -> str:
    """Empty: the converter leaves it out."""
    part, _, kind = name.removeprefix("bert.").removeprefix("roberta.").rpartition(".")
    if part == "pooler.dense":
        return ""
    if part.startswith("layers."):
        _, layer, inner = part.split(".", 2)
        return f"blk.{layer}.{NOMIC_STEMS[inner]}.{kind}"
    if not part.startswith("encoder.layer."):
        return f"{STEMS[part]}.{kind}"
    _, _, layer, inner = part.split(".", 3)
    return f"blk.{layer}.{STEMS[inner]}.{kind}"


def write_words(writer: gguf.GGUFWriter, vocabulary: dict[str, int]) -> None:
    """WordPiece: what begins a word is marked, not what goes on."""

    def spelled(word: str) -> str:
        if word.startswith("["):
            return word
        return word.removeprefix("##") if word.startswith("##") else f"\u2581{word}"

    words = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("bert")
    writer.add_token_type_count(2)
    writer.add_token_list([spelled(word) for word in words])
    writer.add_token_types([3 if word.startswith("[") else 1 for word in words])
    writer.add_pad_token_id(vocabulary["[PAD]"])
    writer.add_unk_token_id(vocabulary["[UNK]"])
    writer.add_uint32("tokenizer.ggml.cls_token_id", vocabulary["[CLS]"])
    writer.add_sep_token_id(vocabulary["[SEP]"])


def write_pieces(writer: gguf.GGUFWriter, vocabulary: list[tuple[str, float]]) -> None:
    writer.add_tokenizer_model("t5")
    writer.add_token_type_count(1)
    writer.add_token_list([piece for piece, _ in vocabulary])
    writer.add_token_scores([score for _, score in vocabulary])
    writer.add_token_types([3, 3, 3, 2] + [1] * (len(vocabulary) - 4))
    writer.add_bos_token_id(0)
    writer.add_pad_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(True)
