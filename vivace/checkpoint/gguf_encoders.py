"""Encoders in GGUF files: what llama.cpp calls "bert" (BERT, RoBERTa and XLM-R, whose positions it
makes begin with the first token's), in the keys of a config.json."""

from __future__ import annotations

from vivace.checkpoint.gguf_file import GGUFError
from vivace.checkpoint.gguf_metadata import Config, Metadata

ENCODER = "bert"
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
LABELS = "cls.output.weight"
"""the last of the two layers that judge a text or a pair"""


def read_encoder_config(facts: Metadata) -> Config:
    """Raises GGUFError for a file without one of an encoder's tables."""
    place = facts.file.path
    if facts.get("attention.causal") is True:
        raise GGUFError(f"{place}: bert.attention.causal is true: only encoders are supported")
    judges = facts.has_tensor(LABELS)
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
        raise GGUFError(f"{facts.file.path}: the tensor {name} of an encoder is missing")
    return entry.shape[0]
