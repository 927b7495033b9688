"""The keys of a model's configuration, and what each may be."""

from __future__ import annotations

from typing import Any

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.fields import (
    ConfigFields,
    FieldKind,
    Flag,
    Integer,
    ListOf,
    Number,
    OneOf,
    Text,
)
from vivace.checkpoint.source import ModelSource
from vivace.models.rope import LARGEST_HEAD, LONGEST_CONTEXT

DTYPES = ("bfloat16", "float16", "float32")
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""a configuration's name -> the operation's"""
SLIDING = {"sliding_attention": True, "full_attention": False}
MOST_LAYERS = 4096
MOST_TOKENS = 1 << 24

TABLE: dict[str, FieldKind[Any]] = {
    "hidden_size": Integer(1, 1 << 20),
    "num_hidden_layers": Integer(1, MOST_LAYERS),
    "num_attention_heads": Integer(1, 1 << 16),
    "num_key_value_heads": Integer(1, 1 << 16),
    "head_dim": Integer(1, LARGEST_HEAD),
    "intermediate_size": Integer(1, 1 << 22),
    "vocab_size": Integer(1, MOST_TOKENS),
    "max_position_embeddings": Integer(2, LONGEST_CONTEXT),
    "model_type": Text(),
    "tie_word_embeddings": Flag(),
    "attention_bias": Flag(),
    "mlp_bias": Flag(),
    "rms_norm_eps": Number(1e-12, 0.1),
    "hidden_act": OneOf(ACTIVATIONS),
    "hidden_activation": OneOf(ACTIVATIONS),
    "query_pre_attn_scalar": Number(1e-3, 1e6),
    "attn_logit_softcapping": Number(1e-3, 1e6),
    "final_logit_softcapping": Number(1e-3, 1e6),
    "sliding_window": Integer(1, (1 << 31) - 1),
    "use_sliding_window": Flag(),
    "max_window_layers": Integer(0, 1 << 16),
    "sliding_window_pattern": Integer(1, MOST_LAYERS),
    "layer_types": ListOf(OneOf(SLIDING), MOST_LAYERS),
    "torch_dtype": OneOf(
        {prefix + name: name for name in DTYPES for prefix in ("", "torch.")} | {"auto": ""}
    ),
    "rope_local_base_freq": Number(2, 1e15),
}
"""what each key of a configuration may be; `rope` has those of rotary embedding"""
TABLE["dtype"] = TABLE["torch_dtype"]
NEVER_NULL = frozenset(
    "rms_norm_eps hidden_act max_position_embeddings tie_word_embeddings model_type".split()
)
"""Keys whose null says nothing: transformers fails over it, or reads another value than where the
key is missing. Null in the others is as good as missing, there too."""


class ModelFields(ConfigFields):
    """A model's configuration; the language model's part of it where that is nested."""

    def __init__(self, source: ModelSource) -> None:
        self.outer = ConfigFields(source.config, source.place)
        self.nested = self.outer.inner("text_config")
        inner = self.nested.values if self.nested else {}
        within = {key: value for key, value in inner.items() if key not in source.overridden}
        super().__init__(
            {**source.config, **within},
            lambda key: source.place(f"text_config.{key}" if key in within else key),
            overridden=source.overridden,
        )

    def get_known(self, key: str, default: Any = None) -> Any:
        """The value as TABLE reads it."""
        if key in NEVER_NULL and key in self.values and self.values[key] is None:
            expected = TABLE[key].expected
            raise SourceError(f"{self.place(key)} is null; it must be {expected}. {self.advice}")
        return self.get(key, TABLE[key], default)

    def need_known(self, key: str) -> Any:
        return self.need(key, TABLE[key])
