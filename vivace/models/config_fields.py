"""The keys of a model's configuration, and what each may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.fields import (
    CORRECT,
    ConfigFields,
    FieldKind,
    Flag,
    Integer,
    ListOf,
    Number,
    OneOf,
    Text,
    abbreviate,
    whole,
)
from vivace.checkpoint.source import ModelSource
from vivace.models.families import ANY_FAMILY, OPTIONAL, Family
from vivace.models.rope import LARGEST_HEAD, LENGTH, LONGEST_CONTEXT, THETA

DTYPES = ("bfloat16", "float16", "float32")
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""a configuration's name -> the operation's"""
SLIDING = {"sliding_attention": True, "full_attention": False, "chunked_attention": True}
SLIDING["linear_attention"] = True
"""kinds of layers -> whether a query misses keys before it"""
MOST_LAYERS = 4096
MOST_TOKENS = 1 << 24
MOST_EXPERTS = 1 << 14
MOST_ENDS = 256
TOPK_METHODS = ("greedy", "group_limited_greedy", "noaux_tc")

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
    "bias": Flag(),
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
    "num_experts": Integer(0, MOST_EXPERTS),
    "num_local_experts": Integer(0, MOST_EXPERTS),
    "num_experts_per_tok": Integer(1, MOST_EXPERTS),
    "moe_intermediate_size": Integer(1, 1 << 22),
    "shared_expert_intermediate_size": Integer(0, 1 << 22),
    "norm_topk_prob": Flag(),
    "decoder_sparse_step": Integer(1, MOST_LAYERS),
    "mlp_only_layers": ListOf(Integer(0, MOST_LAYERS), MOST_LAYERS),
    "qkv_bias": Flag(),
    "n_routed_experts": Integer(1, MOST_EXPERTS),
    "n_shared_experts": Integer(0, MOST_EXPERTS),
    "n_group": Integer(1, MOST_EXPERTS),
    "topk_group": Integer(1, MOST_EXPERTS),
    "topk_method": OneOf({name: name for name in TOPK_METHODS}),
    "scoring_func": OneOf({name: name for name in ("softmax", "sigmoid")}),
    "routed_scaling_factor": Number(1e-3, 1e3),
    "first_k_dense_replace": Integer(0, MOST_LAYERS),
    "moe_layer_freq": Integer(1, MOST_LAYERS),
    "num_nextn_predict_layers": Integer(0, 64),
    "full_attention_interval": Integer(1, MOST_LAYERS),
    "linear_conv_kernel_dim": Integer(2, 64),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), Integer(1, LARGEST_HEAD)),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), Integer(1, 1 << 16)),
    "use_qk_norm": Flag(),
    "q_lora_rank": Integer(1, 1 << 20),
    "kv_lora_rank": Integer(1, 1 << 16),
    "qk_nope_head_dim": Integer(1, LARGEST_HEAD),
    "qk_rope_head_dim": Integer(2, LARGEST_HEAD),
    "v_head_dim": Integer(1, LARGEST_HEAD),
    "rope_interleave": Flag(),
    "intermediate_size_mlp": Integer(1, 1 << 22),
    "moe_layers": ListOf(Integer(0, MOST_LAYERS), MOST_LAYERS),
    "interleave_moe_layer_step": Integer(1, MOST_LAYERS),
    "no_rope_layers": ListOf(Integer(0, 1), MOST_LAYERS),
    "no_rope_layer_interval": Integer(1, MOST_LAYERS),
    "attention_chunk_size": Integer(1, (1 << 31) - 1),
    "attn_temperature_tuning": Flag(),
    "floor_scale": Number(1, 1e9),
    "attn_scale": Number(0, 1e3),
    "swiglu_alpha": Number(1e-3, 1e3),
    "swiglu_limit": Number(1e-3, 1e6),
    "rope_theta": THETA,
    "rope_local_base_freq": THETA,
    "original_max_position_embeddings": LENGTH,
}
"""what each key of a configuration may be; `rope` has the objects of rotary embedding"""
TABLE["dtype"] = TABLE["torch_dtype"]
NEVER_NULL = frozenset(
    "rms_norm_eps hidden_act max_position_embeddings tie_word_embeddings model_type".split()
)
"""Keys whose null says nothing: transformers fails over it, or reads another value than where the
key is missing. `families` has what null means in the others."""


@dataclass(frozen=True)
class EndIds:
    """Ids that end an answer, one or a list, parted in (tokens, whatever never comes: -1, null and
    ids outside of the vocabulary, which authors write for "none" or keep from another model)."""

    vocabulary: int

    @property
    def expected(self) -> str:
        return f"a token id below {self.vocabulary}, or a list of at most {MOST_ENDS}"

    def read(self, value: Any) -> tuple[tuple[int, ...], tuple[int | None, ...]]:
        listed = value if isinstance(value, list) else [value]
        if len(listed) > MOST_ENDS:
            raise ValueError
        ids = [None if one is None else whole(one) for one in listed]
        tokens = [one for one in ids if one is not None and 0 <= one < self.vocabulary]
        others = [one for one in ids if one is None or not 0 <= one < self.vocabulary]
        return tuple(dict.fromkeys(tokens)), tuple(others)


def is_no_window(value: Any) -> bool:
    """Authors write null, false, 0 or -1 for it."""
    return value is None or value is False or (type(value) in (int, float) and value in (0, -1))


class ModelFields(ConfigFields):
    """A model's configuration; the language model's part of it where that is nested.

    Without the keys that transformers ignores for `family`: `whole` has them too.
    """

    def __init__(self, source: ModelSource, family: Family = ANY_FAMILY) -> None:
        self.outer = ConfigFields(source.config, source.place, source.advice)
        self.nested = self.outer.inner("text_config")
        inner = self.nested.values if self.nested else {}
        within = {key: value for key, value in inner.items() if key not in source.overridden}
        values = {**source.config, **within}

        def place(key: str) -> str:
            return source.place(f"text_config.{key}" if key in within else key)

        is_gguf = bool(source.spelling)
        self.family = family.of_gguf() if is_gguf else family
        self.unread = tuple(
            key
            for key in values
            if key in OPTIONAL
            and not self.family.reads(key)
            and (key in source.overridden or not is_gguf)
        )
        self.whole = ConfigFields(values, place, source.advice, source.overridden)
        read = {key: value for key, value in values.items() if key not in self.unread}
        super().__init__(read, place, source.advice, source.overridden)

    def get_known(self, key: str) -> Any:
        """The value as TABLE reads it; what the family means by none where there is none."""
        if self.has(key):
            return self.need_known(key)
        if key in NEVER_NULL and key in self.values:
            expected = TABLE[key].expected
            raise SourceError(f"{self.place(key)} is null; it must be {expected}. {self.advice}")
        meant = self.family.missing(self.values, key)
        return None if meant is None else TABLE[key].read(meant)

    def need_known(self, key: str) -> Any:
        return self.need(key, TABLE[key])


def read_eos_token_ids(
    source: ModelSource, config: ModelFields, vocabulary: int
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """(generation_config.json's ends, or else those of the configuration; notices of those that
    no model can say)."""
    generation = ConfigFields(source.generation_config, source.generation_place, CORRECT)
    kind = EndIds(vocabulary)
    found: list[tuple[int, ...]] = []
    notices: list[str] = []
    for fields in (generation, config):
        ids, others = fields.get("eos_token_id", kind, ((), ()))
        found.append(ids)
        if others:
            shown_ids = ", ".join("null" if one is None else abbreviate(one) for one in others[:8])
            notices.append(
                f"{fields.place('eos_token_id')} has what is no token of the {vocabulary} in the "
                f"vocabulary ({shown_ids}): it has no effect"
            )
    meant, _ = kind.read(config.family.missing(config.values, "eos_token_id"))
    given = config.has("eos_token_id")
    return found[0] or (found[1] if given else meant), tuple(notices)
