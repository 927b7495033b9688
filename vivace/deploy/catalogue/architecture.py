"""What memory and communication depend on in a model: its shapes, from a config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

MOST = 1 << 31


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """Grouped-query attention of one layer; `gated`: a gate as wide as the queries beside them."""

    heads: int
    kv_heads: int
    head_dim: int
    gated: bool = False

    def parameters(self, hidden: int) -> tuple[int, int]:
        """(shared out over ranks by head, held by every rank)"""
        width = self.heads * self.head_dim
        queries = width * (2 if self.gated else 1)
        return hidden * (queries + width + 2 * self.kv_heads * self.head_dim), 0

    def kv_elements(self, ranks: int) -> int:
        """Numbers kept for one token by one of `ranks`; heads are copied when there are fewer."""
        return 2 * max(1, -(-self.kv_heads // ranks)) * self.head_dim


class LatentAttention(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head latent attention (DeepSeek-V2), with the index of sparse attention (V3.2)."""

    heads: int
    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int
    index_heads: int = 0
    index_dim: int = 0

    def parameters(self, hidden: int) -> tuple[int, int]:
        """(shared out over ranks by head, held by every rank)"""
        queries = self.heads * (self.nope + self.rope)
        by_head = (self.q_rank or hidden) * queries
        by_head += self.kv_rank * self.heads * (self.nope + self.value)
        by_head += self.heads * self.value * hidden
        everywhere = hidden * (self.q_rank + self.kv_rank + self.rope)
        if self.index_heads:
            everywhere += self.q_rank * self.index_heads * self.index_dim
            everywhere += hidden * (self.index_dim + self.index_heads)
        return by_head, everywhere

    def kv_elements(self, ranks: int) -> int:
        """One latent serves all heads, so every rank keeps it."""
        return self.kv_rank + self.rope + self.index_dim


class LinearAttention(msgspec.Struct, frozen=True, kw_only=True):
    """Gated delta layers (Qwen3-Next): a state for each request, nothing for each token."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    window: int

    def parameters(self, hidden: int) -> int:
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        projections = hidden * (2 * keys + 2 * values + 2 * self.value_heads)
        return projections + (2 * keys + values) * self.window + values * hidden

    def state_bytes(self, ranks: int) -> int:
        """Of one request on one rank: the state in float32, the window in 16 bits."""
        heads = max(1, self.value_heads // ranks)
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        window = (2 * keys + values) // ranks * (self.window - 1) * 2
        return heads * self.key_dim * self.value_dim * 4 + window


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """Of one layer; `shared_width`: of the expert every token passes."""

    count: int
    chosen: int
    width: int
    shared_width: int


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """Widths in elements, `context` in tokens. `dense_layers` have one wide MLP, the rest
    experts; `linear_layers` keep a state where the rest keep KV; `draft_layers`: layers that
    the checkpoint brings for speculation."""

    title: str
    layers: int
    hidden: int
    vocabulary: int
    context: int
    tied: bool
    attention: Attention | LatentAttention
    dense_layers: int
    dense_width: int
    experts: Experts | None
    linear: LinearAttention | None = None
    linear_layers: int = 0
    draft_layers: int = 0

    @property
    def kv_layers(self) -> int:
        return self.layers - self.linear_layers

    @property
    def expert_layers(self) -> int:
        return self.layers - self.dense_layers

    @property
    def latent(self) -> bool:
        return isinstance(self.attention, LatentAttention)

    def parameters(self, *, active: bool = False) -> int:
        """All of them without draft layers, or those one token passes."""
        by_head, everywhere = self.attention.parameters(self.hidden)
        total = self.kv_layers * (by_head + everywhere)
        total += self.linear_layers * (self.linear.parameters(self.hidden) if self.linear else 0)
        total += self.dense_layers * 3 * self.hidden * self.dense_width
        if self.experts is not None:
            count = self.experts.chosen if active else self.experts.count
            width = count * self.experts.width + self.experts.shared_width
            total += self.expert_layers * self.hidden * (3 * width + self.experts.count)
        return total + self.hidden * self.vocabulary * (1 if self.tied else 2)


def architecture_of(config: Mapping[str, Any], title: str) -> Architecture:
    """Raises ValueError naming the key that is missing or cannot be."""
    inner = config.get("text_config")
    values = Shapes({**config, **inner} if isinstance(inner, dict) else dict(config), title)
    layers = values.whole("num_hidden_layers")
    experts = experts_of(values)
    dense = values.whole("first_k_dense_replace", 0) if experts else layers
    linear, linear_layers = linear_of(values, layers)
    return Architecture(
        title=title,
        layers=layers,
        hidden=values.whole("hidden_size"),
        vocabulary=values.whole("vocab_size"),
        context=values.whole("max_position_embeddings", 2048),
        tied=bool(config.get("tie_word_embeddings", False)),
        attention=attention_of(values),
        dense_layers=min(dense, layers),
        dense_width=values.whole("intermediate_size") if dense else 0,
        experts=experts,
        linear=linear,
        linear_layers=linear_layers,
        draft_layers=values.whole("num_nextn_predict_layers", 0),
    )


class Shapes(msgspec.Struct, frozen=True):
    values: dict[str, Any]
    title: str

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOST:
            raise ValueError(f"{self.title}: config.json has {key} = {str(value)[:80]!r}")
        if value == 0 and default is None:
            raise ValueError(f"{self.title}: config.json has {key} = 0")
        return value


def attention_of(values: Shapes) -> Attention | LatentAttention:
    heads = values.whole("num_attention_heads")
    rank = values.whole("kv_lora_rank", 0)
    if rank:
        return LatentAttention(
            heads=heads,
            q_rank=values.whole("q_lora_rank", 0),
            kv_rank=rank,
            nope=values.whole("qk_nope_head_dim"),
            rope=values.whole("qk_rope_head_dim"),
            value=values.whole("v_head_dim"),
            index_heads=values.whole("index_n_heads", 0),
            index_dim=values.whole("index_head_dim", 0),
        )
    return Attention(
        heads=heads,
        kv_heads=values.whole("num_key_value_heads", heads),
        head_dim=values.whole("head_dim", values.whole("hidden_size") // heads),
        gated=values.values.get("model_type") == "qwen3_next",
    )


def experts_of(values: Shapes) -> Experts | None:
    count = next(
        (
            values.whole(key)
            for key in ("n_routed_experts", "num_experts", "num_local_experts")
            if values.values.get(key)
        ),
        0,
    )
    if not count:
        return None
    width = values.whole("moe_intermediate_size", values.values.get("intermediate_size"))
    shared = values.whole("shared_expert_intermediate_size", 0)
    return Experts(
        count=count,
        chosen=values.whole("num_experts_per_tok"),
        width=width,
        shared_width=shared or values.whole("n_shared_experts", 0) * width,
    )


def linear_of(values: Shapes, layers: int) -> tuple[LinearAttention | None, int]:
    """(its shapes, how many layers have it)"""
    heads = values.whole("linear_num_value_heads", 0)
    if not heads:
        return None, 0
    interval = values.whole("full_attention_interval", 4)
    kinds = values.values.get("layer_types")
    full = kinds.count("full_attention") if isinstance(kinds, list) else layers // max(interval, 1)
    return LinearAttention(
        key_heads=values.whole("linear_num_key_heads"),
        value_heads=heads,
        key_dim=values.whole("linear_key_head_dim"),
        value_dim=values.whole("linear_value_head_dim"),
        window=values.whole("linear_conv_kernel_dim", 4),
    ), layers - full
