"""Encoders in GGUF files: what llama.cpp calls "bert" (BERT, RoBERTa and XLM-R, whose positions it
makes begin with the first token's) and "nomic-bert", in the keys of a config.json."""

from __future__ import annotations

import re

from vivace.checkpoint.gguf_file import GGUFError
from vivace.checkpoint.gguf_metadata import Config, Metadata

ENCODER, NOMIC = "bert", "nomic-bert"
KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "pooling_type": "pooling_type",
}
TABLES = {
    "max_position_embeddings": "position_embd.weight",
    "type_vocab_size": "token_types.weight",
}
FIRST_OF_HEAD = "cls.weight"
NO_FIRST_OF_HEAD = (
    "its classifier has the last of its two layers only (cls.output): llama.cpp's converter leaves "
    "BERT's pooler out, without which the scores are others; serve it from its safetensors files"
)
NO_TYPES = "; DistilBERT has none and is not supported"
LABELS = "cls.output.weight"
"""the last of the two layers that judge a text or a pair"""
OF_NOMIC = {**KEYS, "max_position_embeddings": "context_length", "rope_theta": "rope.freq_base"}
BIASES = re.compile(r"blk\.\d+\.(?:attn_qkv|attn_output|ffn_\w+)\.bias")


def read_encoder_config(facts: Metadata) -> Config:
    """Raises GGUFError for a file without one of an encoder's tables."""
    place, name = facts.file.path, facts.architecture
    if facts.get("attention.causal") is True:
        raise GGUFError(f"{place}: {name}.attention.causal is true: only encoders are supported")
    return (read_bert if name == ENCODER else read_nomic)(facts)


def read_nomic(facts: Metadata) -> Config:
    """Raises GGUFError for layers with biases, which later models of this name have."""
    if biased := next(filter(BIASES.fullmatch, facts.file.tensors), None):
        raise GGUFError(f"{facts.file.path}: {biased}: only layers without biases are supported")
    table = TABLES["type_vocab_size"]
    facts.spelling["type_vocab_size"] = f"rows of {table}"
    return {
        "architectures": ["NomicBertModel"],
        "model_type": "nomic_bert",
        "hidden_act": "silu",
        "vocab_size": facts.count_words(),
        **facts.translate(OF_NOMIC),
        "type_vocab_size": count_rows(facts, table),
    }


def read_bert(facts: Metadata) -> Config:
    judges = facts.has_tensor(LABELS)
    if judges and not facts.has_tensor(FIRST_OF_HEAD):
        raise GGUFError(f"{facts.file.path}: {NO_FIRST_OF_HEAD}")
    tables = {**TABLES, **({"num_labels": LABELS} if judges else {})}
    facts.spelling.update({key: f"rows of {name}" for key, name in tables.items()})
    return {
        "architectures": ["RobertaForSequenceClassification" if judges else "BertModel"],
        "model_type": ENCODER,
        "vocab_size": facts.count_words(),
        **facts.translate(KEYS),
        **{key: count_rows(facts, name) for key, name in tables.items()},
    }


def count_rows(facts: Metadata, name: str) -> int:
    entry = facts.file.tensors.get(name)
    if entry is None or not entry.shape:
        told = NO_TYPES if name == TABLES["type_vocab_size"] else ""
        raise GGUFError(f"{facts.file.path}: the tensor {name} of an encoder is missing{told}")
    return entry.shape[0]
