"""What the rest of the house may know about a model: plain values from its configuration, each
checked here and in `config_fields` only, so that models and layers can rely on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from vivace.checkpoint.classifier import PooledFacts
from vivace.checkpoint.fields import ConfigFields, Flag
from vivace.checkpoint.layouts import InputGroups, read_quant_description, read_quantize_config
from vivace.checkpoint.source import ModelSource
from vivace.models.architecture import Architecture, Experts
from vivace.models.attention_shapes import Attention, GroupedAttention, LatentAttention
from vivace.models.class_name import read_class_name, unread_parts
from vivace.models.config_fields import ModelFields, read_eos_token_ids
from vivace.models.expert_facts import ExpertFacts, read_experts
from vivace.models.families import ANY_FAMILY, FAMILIES
from vivace.models.head_facts import HeadFacts, LatentFacts, read_heads, read_query_scale
from vivace.models.layer_windows import idle_patterns, layer_windows, sliding_layers
from vivace.models.llama4_facts import Llama4Facts, read_llama4, read_width
from vivace.models.recurrent_facts import RecurrentFacts, read_recurrent
from vivace.models.rope import (
    Rope,
    RotatedHead,
    Stretch,
    read_rope,
    read_stretch,
    rope_by_layer,
    rope_objects,
    rope_of_layers,
    with_scaling,
)
from vivace.models.twins import describe, twin_notices, unread_notices
from vivace.quantization.description import (
    KEYS,
    MLX,
    AwqCheckpoint,
    Fp8Checkpoint,
    GptqCheckpoint,
    Mxfp4Checkpoint,
    QuantizedCheckpoint,
    check_requested_method,
    read_quantization,
)


@dataclass(frozen=True, kw_only=True)
class DecoderFacts:
    """What the architectures that Vivace has written are built from, beside the shapes.

    `query_scale` multiplies queries; `local_rope` turns the layers with a window, where those
    have a frequency of their own; caps are of attention scores and of logits.
    """

    norm_eps: float
    activation: str
    attention_bias: bool
    mlp_bias: bool
    rope: Rope
    local_rope: Rope
    query_scale: float
    score_cap: float | None
    logit_cap: float | None
    qkv_bias: bool | None = None
    """where the configuration may turn off what the family has"""
    qk_norm: bool = False
    """where the configuration says whether query and key heads are normed"""
    latent: LatentFacts | None = None
    experts: ExpertFacts | None = None
    llama4: Llama4Facts | None = None
    recurrent: RecurrentFacts | None = None


@dataclass(frozen=True, kw_only=True)
class AttentionFacts:
    """One attention of a model that transformers' code runs, in the order of its forward pass.

    `window` in tokens, None where attention is full; `sinks`: each head has a score that no key
    has.
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    window: int | None
    soft_cap: float | None
    sinks: bool

    @property
    def head_dim(self) -> int:
        """Numbers kept of a key and of a value: the shorter one is filled up with zeros."""
        return max(self.key_dim, self.value_dim)

    @property
    def kv_elements(self) -> int:
        """Numbers kept of one token."""
        return 2 * self.kv_heads * self.head_dim


@dataclass(frozen=True, kw_only=True)
class TracedModel:
    """What transformers' code makes of a configuration (`transformers_trace`); `parameters` are
    counted, `limits` say why the context is shorter than the configuration's."""

    attention: tuple[AttentionFacts, ...]
    hidden_size: int
    vocabulary: int
    context: int
    tied: bool
    parameters: int
    limits: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Shapes in elements, `context` in tokens; `layer_windows` has one entry per layer."""

    architecture: str
    model_type: str
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocabulary: int
    context: int
    dtype: str
    tied: bool
    eos_ids: tuple[int, ...]
    sliding_window: int | None
    layer_windows: tuple[int | None, ...]
    parameters: int = 0
    kv_elements: int = 0
    """numbers that all layers keep of one token"""
    full_kv_elements: int = 0
    """those of layers without a window"""
    decoder: DecoderFacts | None = None
    """None where transformers' code runs the model, and of encoders"""
    pooled: PooledFacts | None = None
    """of models that answer with numbers"""
    attention: tuple[AttentionFacts, ...] = ()
    """where transformers' code runs the model"""
    config: dict[str, Any] = field(default_factory=dict)
    """for transformers' code, where that runs the model"""
    notices: tuple[str, ...] = ()
    """what the user should know about values that have no effect"""
    draft_layers: int = 0
    """behind the last one, for speculation"""
    stretch: Stretch | None = None
    """where more than `context` may be what the model was trained for"""

    @property
    def latent(self) -> LatentFacts | None:
        """Where all heads share one; None: keys and values have heads of their own."""
        return self.decoder.latent if self.decoder is not None else None

    @property
    def attended_width(self) -> int:
        """Of what all heads of a layer make of values."""
        return self.heads * (self.head_dim if self.latent is None else self.latent.value)

    @property
    def mlp_widths(self) -> tuple[int, ...]:
        """Inside of the MLPs and experts of all layers, each once."""
        experts = self.decoder.experts if self.decoder is not None else None
        if experts is None:
            return (self.intermediate_size,)
        plain = () if all(experts.layers) else (self.intermediate_size,)
        shared = (experts.shared_width,) if experts.shared_width else ()
        return tuple(dict.fromkeys((*plain, experts.width, *shared)))


def read_facts(source: ModelSource) -> ModelFacts:
    """Read the facts of an architecture that Vivace has written from a model's configuration.

    Raises SourceError naming the bad key.
    """
    architecture = read_class_name(source)
    config = ModelFields(source, FAMILIES[architecture])
    refuse_bidirectional(config)
    checkpoint_quantization(source)  # weights that are not read are refused before all else
    found = read_heads(config)
    layers, vocabulary = config.need_known("num_hidden_layers"), config.need_known("vocab_size")
    sliding = sliding_layers(config, layers)
    windows = layer_windows(config, sliding)
    context = config.get_known("max_position_embeddings")
    ends, notices = read_eos_token_ids(source, config, vocabulary)
    model_type = read_model_type(config, architecture)
    facts = ModelFacts(
        architecture=architecture,
        model_type=model_type,
        hidden_size=config.need_known("hidden_size"),
        layers=layers,
        heads=found.heads,
        kv_heads=found.kv_heads,
        head_dim=found.head_dim,
        intermediate_size=read_width(config),
        vocabulary=vocabulary,
        context=context,
        dtype=read_dtype(config),
        tied=config.get_known("tie_word_embeddings"),
        eos_ids=ends,
        sliding_window=next((w for w in windows if w), None),
        layer_windows=windows,
        decoder=read_decoder_facts(config, found, context, sliding),
        draft_layers=config.get_known("num_nextn_predict_layers") or 0,
        stretch=read_stretch(config, context, model_type),
        notices=(
            *source.notices,
            *unread_parts(source),
            *notices,
            *twin_notices(config, found.rotated, context),
            *idle_patterns(config, windows),
            *unread_notices(config, windows),
            *idle_draft_layers(config),
        ),
    )
    return add_sizes(facts)


def checkpoint_quantization(
    source: ModelSource, requested: str | None = None, flag: str = "--quantization"
) -> QuantizedCheckpoint | None:
    """What the files say of their weights. Raises SourceError for what is not read, and where
    `flag` asks for something that cannot be made of it."""
    description, beside = read_quant_description(source.path), read_quantize_config(source.path)
    found = read_quantization(ModelFields(source), description, beside)
    check_requested_method(found, requested, flag)
    return found


def undivided_inputs(source: ModelSource, *, decoded: bool) -> InputGroups:
    """How many neighboring inputs of a layer are on one rank, because they share a scale. Blocks of
    a GGUF file that are `decoded` have none."""
    found = checkpoint_quantization(source)
    if isinstance(found, Mxfp4Checkpoint):
        return InputGroups(experts=found.block)
    if isinstance(found, Fp8Checkpoint):
        return same_groups(found.block[1] if found.block else 1)
    if isinstance(found, GptqCheckpoint) and found.ordered:  # every rank has all scales
        return InputGroups()
    if isinstance(found, AwqCheckpoint | GptqCheckpoint):
        return same_groups(max(1, found.group_size))
    return InputGroups() if decoded and source.format == "gguf" else source.groups


def without_quantization(source: ModelSource, groups: InputGroups) -> ModelSource:
    """As if its configuration did not say how weights are stored, but with these groups."""
    plain = {key: value for key, value in source.config.items() if key not in (*KEYS, MLX)}
    return replace(source, config=plain, groups=groups)


def same_groups(size: int) -> InputGroups:
    return InputGroups(heads=size, mlp=size, experts=size, shared=size)


def refuse_bidirectional(config: ModelFields) -> None:
    """Two keys make every token see those behind it, as models of embeddings want."""
    for key, causal in (("use_bidirectional_attention", False), ("is_causal", True)):
        if config.get(key, Flag(), causal) is not causal:
            raise config.unsupported(key, "only causal attention is supported")


def idle_draft_layers(config: ModelFields) -> Iterator[str]:
    key = "num_nextn_predict_layers"
    if config.has(key) and config.get_known(key):
        yield (
            f"{describe(config, key)}: layers behind the last one are there for drafts; they are "
            "not loaded without --speculative-algorithm NEXTN"
        )


def read_dtype(config: ModelFields) -> str:
    """`torch_dtype` is the older key; where both are, transformers reads `dtype`."""
    found = [config.need_known(key) for key in config.spelled("dtype", "torch_dtype")]
    return next(filter(None, found), "bfloat16")


def read_model_type(config: ModelFields, architecture: str) -> str:
    types = config.family.model_types
    found = config.get_known("model_type") or types[0]
    if found not in types:
        raise config.refusal("model_type", f"that of {architecture} is {' or '.join(types)}")
    return found


def read_decoder_facts(
    config: ModelFields, found: HeadFacts, context: int, local: list[bool]
) -> DecoderFacts:
    rope, local_rope = read_ropes(config, found.rotated, context)
    return DecoderFacts(
        norm_eps=config.get_known("rms_norm_eps"),
        activation=config.get_known(config.family.activation),
        attention_bias=bool(config.get_known("attention_bias") or config.get_known("bias")),
        mlp_bias=bool(config.get_known("mlp_bias")),
        rope=rope,
        local_rope=local_rope,
        query_scale=read_query_scale(config, found, rope),
        score_cap=config.get_known("attn_logit_softcapping"),
        logit_cap=config.get_known("final_logit_softcapping"),
        qkv_bias=config.get_known("qkv_bias"),
        qk_norm=bool(config.get_known("use_qk_norm")),
        latent=found.latent,
        experts=read_experts(config, len(local)),
        llama4=read_llama4(config, local),
        recurrent=read_recurrent(config, local),
    )


def read_ropes(config: ModelFields, head: RotatedHead, context: int) -> tuple[Rope, Rope]:
    """(of layers that attend fully, of those with a window), from either spelling."""
    nested = rope_by_layer(config)
    by_layer = config.family.reads("rope_local_base_freq")
    if nested is not None and not by_layer:
        raise config.refusal("rope_parameters", "all layers of this architecture turn alike")
    if nested is None and by_layer and config.values.get("rope_parameters"):
        why = "it must have one object for full_attention and one for sliding_attention"
        raise config.refusal("rope_parameters", why)
    full = None
    if nested is not None:
        full = with_scaling(config, rope_of_layers(nested, "full_attention"))
    elif config.family.rope is not None and not rope_objects(config):
        full = ConfigFields(config.family.rope, config.place)
    rope = read_rope(config, head, context, full, config.family.defaults["rope_theta"])
    if not by_layer:
        return rope, rope
    base = config.get_known("rope_local_base_freq")
    if nested is None:
        return rope, Rope(theta=base, rotated=rope.rotated)
    local = rope_of_layers(nested, "sliding_attention")
    return rope, read_rope(config, head, context, local, base, own=True)


def add_sizes(facts: ModelFacts) -> ModelFacts:
    """With what follows from the shapes."""
    shape = describe_architecture(facts)
    return replace(
        facts,
        parameters=shape.parameters(),
        kv_elements=shape.kv_elements(1),
        full_kv_elements=shape.full_kv_elements(1),
    )


def describe_architecture(facts: ModelFacts) -> Architecture:
    """The same model as memory and communication see it."""
    attention = describe_attention(facts)
    found, recurrent = (own.experts, own.recurrent) if (own := facts.decoder) else (None, None)
    return Architecture(
        title=facts.architecture,
        layers=facts.layers,
        hidden=facts.hidden_size,
        vocabulary=facts.vocabulary,
        context=facts.context,
        tied=facts.tied,
        attention=attention,
        dense_layers=facts.layers if found is None else found.layers.count(False),
        dense_width=facts.intermediate_size,
        experts=None if found is None else describe_experts(found),
        linear=None if recurrent is None else recurrent.shape,
        linear_layers=0 if recurrent is None else sum(recurrent.layers),
        sliding=attention if isinstance(attention, GroupedAttention) else None,
        sliding_layers=sum(window is not None for window in facts.layer_windows),
        name=facts.architecture,
    )


def describe_attention(facts: ModelFacts) -> Attention:
    latent, family = facts.latent, FAMILIES.get(facts.architecture, ANY_FAMILY)
    if latent is None:
        return GroupedAttention(
            heads=facts.heads,
            kv_heads=facts.kv_heads,
            head_dim=facts.head_dim,
            value_dim=facts.head_dim,
            gated=facts.decoder is not None and family.reads("full_attention_interval"),
        )
    return LatentAttention(
        heads=facts.heads,
        q_rank=latent.q_rank,
        kv_rank=latent.kv_rank,
        nope=latent.nope,
        rope=latent.rope,
        value=latent.value,
    )


def describe_experts(found: ExpertFacts) -> Experts:
    return Experts(
        count=found.count,
        chosen=found.choice.top,
        width=found.width,
        shared_width=found.shared_width,
        shared_gate=found.shared_gate,
    )
