"""The shapes of a model that memory and communication depend on, from a config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from vivace.checkpoint.fields import CORRECT, ConfigFields, Flag, Integer, ListOf
from vivace.models.attention_shapes import (
    Attention,
    CompressedAttention,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
)
from vivace.models.families import FAMILIES, Family
from vivace.models.stored_weights import ScaleBlocks, parse_blocks, parse_precision

MOST = 1 << 27
"""limit of each size, so that products of several stay printable"""
MOST_LAYERS = 4096


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """Of one layer; `shared_width`: of the expert every token passes, `shared_gate`: weighed."""

    count: int
    chosen: int
    width: int
    shared_width: int
    shared_gate: bool = False


MTP_LAYERS = {"MiMoV2FlashForCausalLM": 3}
"""architecture whose config.json does not say it -> MTP layers of its checkpoint (the technical
report of MiMo-V2-Flash: three, each of 0.33B parameters, dense and with sliding attention)"""


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """Widths in elements, `context` in tokens. `dense_layers` have one wide MLP, the rest
    experts; `linear_layers` keep a state where the rest keep KV; `draft_layers`: layers that
    the checkpoint brings for speculation. `sliding`: the attention of `sliding_layers`, where it
    has other heads than the rest; every layer is counted with all tokens. `precision`: of the
    weights as published, a name of memory/weights.py or of quantization_config."""

    title: str
    layers: int
    hidden: int
    vocabulary: int
    context: int
    tied: bool
    attention: Attention
    dense_layers: int
    dense_width: int
    experts: Experts | None
    linear: LinearAttention | None = None
    linear_layers: int = 0
    draft_layers: int = 0
    multi_layer: bool = False
    """whether each draft step has a layer of its own, with sliding attention and one wide MLP"""
    sliding: GroupedAttention | None = None
    sliding_layers: int = 0
    precision: str = "bf16"
    blocks: ScaleBlocks = ScaleBlocks()
    name: str = ""
    """the first of its config.json's `architectures`"""

    @property
    def kv_layers(self) -> int:
        return self.layers - self.linear_layers

    @property
    def expert_layers(self) -> int:
        return self.layers - self.dense_layers

    def attention_parameters(self) -> tuple[int, int]:
        """Of all layers that keep KV: (shared out over ranks by head, held by every rank)"""
        by_head, everywhere = self.attention.parameters(self.hidden)
        full = self.kv_layers - self.sliding_layers
        other = self.sliding.parameters(self.hidden)[0] if self.sliding is not None else 0
        return full * by_head + self.sliding_layers * other, full * everywhere

    def full_kv_elements(self, ranks: int) -> int:
        """As `kv_elements`, in the layers that keep every token."""
        return (self.kv_layers - self.sliding_layers) * self.attention.kv_elements(ranks)

    def kv_elements(self, ranks: int) -> int:
        """Numbers kept for one token by one of `ranks`, in all layers."""
        other = self.sliding.kv_elements(ranks) if self.sliding is not None else 0
        return self.full_kv_elements(ranks) + self.sliding_layers * other

    def parameters(self, *, active: bool = False) -> int:
        """All of them without draft layers, or those one token is multiplied with: the embedding is
        only looked up."""
        total = sum(self.attention_parameters())
        total += self.linear_layers * (self.linear.parameters(self.hidden) if self.linear else 0)
        total += self.dense_layers * 3 * self.hidden * self.dense_width
        if self.experts is not None:
            count = self.experts.chosen if active else self.experts.count
            width = count * self.experts.width + self.experts.shared_width
            gates = self.experts.count + self.experts.shared_gate
            total += self.expert_layers * self.hidden * (3 * width + gates)
        tables = 1 if self.tied or active else 2
        return total + self.hidden * self.vocabulary * tables


def parse_architecture(config: Mapping[str, Any], title: str, precision: str = "") -> Architecture:
    """With what a family leaves unsaid, as it is served. Raises SourceError naming the key that is
    missing or cannot be."""
    inner = Shapes(config, title).inner("text_config")
    family = find_family(config)
    values = Shapes(family.known({**config, **inner.values} if inner else config), title)
    meant = partial(family.missing, values.values)
    layers = values.size("num_hidden_layers")
    experts = parse_experts(values, meant)
    dense, dense_width = parse_dense(values, meant, layers, experts)
    linear, linear_layers = parse_linear(values, meant, layers)
    sliding, sliding_layers = parse_sliding(values, layers)
    return Architecture(
        title=title,
        layers=layers,
        hidden=values.size("hidden_size"),
        vocabulary=values.size("vocab_size"),
        context=values.size("max_position_embeddings", meant("max_position_embeddings") or 2048),
        tied=values.get("tie_word_embeddings", Flag(), meant("tie_word_embeddings") or False),
        attention=parse_attention(values, meant, layers),
        dense_layers=dense,
        dense_width=values.size(dense_width, meant(dense_width)) if dense else 0,
        experts=experts,
        linear=linear,
        linear_layers=linear_layers,
        draft_layers=values.count("num_nextn_predict_layers", meant("num_nextn_predict_layers"))
        or values.count("mtp_num_hidden_layers")
        or MTP_LAYERS.get(first_architecture(config), 0),
        multi_layer=first_architecture(config) in MTP_LAYERS,
        sliding=sliding,
        sliding_layers=sliding_layers,
        precision=parse_precision(values.values),
        blocks=parse_blocks(values.values),
        name=first_architecture(config),
    )


def find_family(config: Mapping[str, Any]) -> Family:
    """What an architecture that Vivace serves leaves unsaid; nothing for others."""
    return FAMILIES.get(first_architecture(config), Family())


def first_architecture(config: Mapping[str, Any]) -> str:
    listed = config.get("architectures")
    name = listed[0] if isinstance(listed, list) and listed else ""
    return name if isinstance(name, str) else ""


class Shapes(ConfigFields):
    """A configuration's sizes. Raises SourceError naming the key that is missing or cannot be."""

    def __init__(self, config: Mapping[str, Any], title: str) -> None:
        super().__init__(config, lambda key: f"{title}: {key}", CORRECT)

    def size(self, key: str, default: int | None = None) -> int:
        kind = Integer(1, MOST)
        return self.need(key, kind) if default is None else self.get(key, kind, default)

    def count(self, key: str, default: int | None = None) -> int:
        """0 if the key is missing, and no `default` is meant."""
        return self.get(key, Integer(0, MOST), default or 0)


def parse_attention(values: Shapes, meant: Callable[[str], Any], layers: int) -> Attention:
    """`meant`: what the family means by a key that is missing."""
    heads = values.size("num_attention_heads")
    if values.count("kv_lora_rank"):
        return LatentAttention(
            heads=heads,
            q_rank=values.get("q_lora_rank", Integer(0, MOST), meant("q_lora_rank") or 0),
            kv_rank=values.size("kv_lora_rank"),
            nope=values.size("qk_nope_head_dim"),
            rope=values.size("qk_rope_head_dim"),
            value=values.size("v_head_dim"),
            index_heads=values.count("index_n_heads"),
            index_dim=values.count("index_head_dim"),
        )
    if values.has("compress_ratios"):
        return CompressedAttention(
            heads=heads,
            head_dim=values.size("head_dim"),
            q_rank=values.size("q_lora_rank"),
            o_rank=values.size("o_lora_rank"),
            o_groups=values.size("o_groups"),
            ratios=numbers(values, "compress_ratios", layers),
            window=values.count("sliding_window"),
            index_heads=values.count("index_n_heads"),
            index_dim=values.count("index_head_dim"),
        )
    hidden = values.size("hidden_size")
    if heads > hidden:
        raise values.refusal("num_attention_heads", f"hidden_size is only {hidden}")
    head_dim = values.size("head_dim", meant("head_dim") or hidden // heads)
    gated, interval = (
        values.get("attn_output_gate", Flag(), False),
        meant("full_attention_interval"),
    )
    return GroupedAttention(
        heads=heads,
        kv_heads=values.size("num_key_value_heads", meant("num_key_value_heads") or heads),
        head_dim=head_dim,
        value_dim=values.size("v_head_dim", head_dim),
        gated=gated or values.values.get("model_type") == "qwen3_next" or bool(interval),
    )


def numbers(values: Shapes, key: str, layers: int) -> tuple[int, ...]:
    """One for each layer; those of draft layers behind them are left out."""
    found = values.need(key, ListOf(Integer(0, MOST), 2 * MOST_LAYERS))
    if len(found) < layers:
        raise values.refusal(key, f"there are {layers} layers")
    return found[:layers]


def parse_sliding(values: Shapes, layers: int) -> tuple[GroupedAttention | None, int]:
    """(the attention of layers with a window whose heads differ, how many there are)"""
    if not values.has("hybrid_layer_pattern"):
        return None, 0
    head_dim = values.size("head_dim")
    attention = GroupedAttention(
        heads=values.size("num_attention_heads"),
        kv_heads=values.size("swa_num_key_value_heads"),
        head_dim=head_dim,
        value_dim=values.size("v_head_dim", head_dim),
    )
    return attention, sum(map(bool, numbers(values, "hybrid_layer_pattern", layers)))


def parse_dense(
    values: Shapes, meant: Callable[[str], Any], layers: int, experts: Experts | None
) -> tuple[int, str]:
    """(how many layers have one wide MLP, the key of its width)"""
    if experts is None:
        return layers, "intermediate_size"
    if meant("decoder_sparse_step"):
        step = values.size("decoder_sparse_step", meant("decoder_sparse_step"))
        listed = ListOf(Integer(0, MOST_LAYERS), MOST_LAYERS)
        plain = values.get("mlp_only_layers", listed, ())
        wide = [index for index in range(layers) if index in plain or (index + 1) % step]
        return len(wide), "intermediate_size"
    if isinstance(values.values.get("moe_layer_freq"), list):
        spread = numbers(values, "moe_layer_freq", layers)
        return sum(not each for each in spread), "intermediate_size"
    if step := values.count("interleave_moe_layer_step") or meant("interleave_moe_layer_step"):
        every = tuple(range(step - 1, layers, step))
        listed = values.get("moe_layers", ListOf(Integer(0, MOST_LAYERS), MOST_LAYERS), every)
        return layers - len({index for index in listed if index < layers}), "intermediate_size_mlp"
    usual, step = meant("first_k_dense_replace") or 0, values.size("moe_layer_freq", 1)
    first = values.get("first_k_dense_replace", Integer(0, MOST), usual)
    mixed = sum(index >= first for index in range(0, layers, step))
    return layers - mixed, "intermediate_size"


def parse_experts(values: Shapes, meant: Callable[[str], Any]) -> Experts | None:
    """`meant`: what the family means by a key that is missing."""
    names = ("n_routed_experts", "num_experts", "num_local_experts")
    given = next(filter(None, map(values.count, names)), 0)
    count = given or (
        0 if any(map(values.has, names)) else next(filter(None, map(meant, names)), 0)
    )
    if not count:
        return None
    width = values.find("moe_intermediate_size", Integer(1, MOST)) or meant("moe_intermediate_size")
    width = width or values.size("intermediate_size")
    chosen = values.size("num_experts_per_tok", meant("num_experts_per_tok"))
    if chosen > count:
        raise values.refusal("num_experts_per_tok", f"there are {count} experts")
    gated = meant("shared_expert_intermediate_size")
    shared = values.get("shared_expert_intermediate_size", Integer(0, MOST), gated or 0)
    if not shared:
        usual = meant("n_shared_experts") or str(values.values.get("model_type"))[:6] == "llama4"
        shared = values.get("n_shared_experts", Integer(0, MOST), int(usual)) * width
    weighed = bool(gated and shared)
    return Experts(
        count=count, chosen=chosen, width=width, shared_width=shared, shared_gate=weighed
    )


def parse_linear(
    values: Shapes, meant: Callable[[str], Any], layers: int
) -> tuple[LinearAttention | None, int]:
    """(its shapes, how many layers have it)"""
    heads = values.count("linear_num_value_heads") or meant("linear_num_value_heads")
    if not heads:
        return None, 0
    interval = values.size("full_attention_interval", 4)
    kinds = values.values.get("layer_types")
    full = kinds.count("full_attention") if isinstance(kinds, list) else layers // interval
    if full > layers:
        raise values.refusal("layer_types", f"there are {layers} layers")
    return LinearAttention(
        key_heads=values.size("linear_num_key_heads", meant("linear_num_key_heads")),
        value_heads=heads,
        key_dim=values.size("linear_key_head_dim", meant("linear_key_head_dim")),
        value_dim=values.size("linear_value_head_dim", meant("linear_value_head_dim")),
        window=values.size("linear_conv_kernel_dim", 4),
    ), layers - full
