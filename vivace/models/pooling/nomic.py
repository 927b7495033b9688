"""Nomic's encoders: tokens turn by their positions, gates in MLPs, no biases in layers. What their
configurations say, in Nomic's own keys or in transformers'. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vivace.checkpoint.fields import Flag, Integer, Number, Text
from vivace.checkpoint.source import ModelSource
from vivace.models.config_fields import TABLE, ModelFields

KEYS = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
    "rope_theta": "rotary_emb_base",
}
"""transformers' names -> Nomic's"""
GATED = {"swiglu": "silu", "geglu": "gelu"}
"""what Nomic calls an MLP with a gate -> the gate's activation"""
OTHERWISE = {
    "causal": False,
    "parallel_block": False,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "prenorm": False,
    "use_rms_norm": False,
    "rotary_emb_interleaved": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
}
"""flags of Nomic's classes -> what they are here"""
USUAL_THETA = 1000.0
MOST_EVERY = 4096


def nomic_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Under transformers' keys."""
    known = {ours: config[own] for ours, own in KEYS.items() if own in config}
    if (activation := known.get("hidden_act")) in GATED:
        known["hidden_act"] = GATED[activation]
    return {**known, **config}


def nomic_source(source: ModelSource) -> ModelSource:
    """The same under transformers' keys, which errors call by the file's names."""
    own = {ours: name for ours, name in KEYS.items() if name in source.config}
    return replace(source, config=nomic_config(source.config), renamed=own)


def refuse_other_nomic(fields: ModelFields) -> None:
    """What Nomic's class can be besides. Raises SourceError naming the key."""
    if fields.get("moe_every_n_layers", Integer(0, MOST_EVERY), 0):
        raise fields.unsupported("moe_every_n_layers", "mixtures of experts are not served here")
    if fields.get("activation_function", Text(), "swiglu") not in GATED:
        raise fields.unsupported(
            "activation_function", f"models with {' or '.join(GATED)} are served"
        )
    for key, wanted in OTHERWISE.items():
        if fields.get(key, Flag(), wanted) != wanted:
            raise fields.unsupported(key, f"models with {str(wanted).lower()} are served")
    if fields.get("rotary_emb_fraction", Number(0, 1), 1.0) != 1.0:
        raise fields.unsupported("rotary_emb_fraction", "models with 1 are served")
    if fields.get("rotary_emb_scale_base", Number(0, 1e9), 0.0):
        raise fields.unsupported("rotary_emb_scale_base", "scaled positions are not served here")


def read_theta(fields: ModelFields) -> float:
    """Raises SourceError for positions that are scaled."""
    rope = fields.inner("rope_parameters")
    theta = fields.get("rope_theta", TABLE["rope_theta"], USUAL_THETA)
    if rope is None:
        return theta
    if rope.get("rope_type", Text(), "default") != "default":
        raise rope.unsupported("rope_type", "models with default are served")
    return rope.get("rope_theta", TABLE["rope_theta"], theta)


def read_length(fields: ModelFields) -> int:
    """Positions; those that the model was not trained with would have to be scaled."""
    most = fields.get("max_position_embeddings", TABLE["max_position_embeddings"], 2048)
    trained = TABLE["max_position_embeddings"]
    return min(most, fields.get("max_trained_positions", trained, most))
