"""Which layers of a model are mixtures of experts, their sizes, and how they are chosen, from its
configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vivace.models.config_fields import ModelFields


@dataclass(frozen=True, kw_only=True)
class ExpertChoice:
    """How a token's experts are chosen and weighed: `platforms.ops.moe.Gate`, and whether the
    checkpoint has a bias for the choice."""

    top: int
    """experts of a token"""
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = False
    """a token's weights sum to `scale`"""
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    corrected: bool = False
    weigh_inputs: bool = False
    """an expert sees its token times its weight, instead of the result"""


@dataclass(frozen=True, kw_only=True)
class ClampFacts:
    """Numbers of gpt-oss's activation: `platforms.ops.elementwise.SwigluOai`."""

    alpha: float
    limit: float


@dataclass(frozen=True, kw_only=True)
class ExpertFacts:
    """Of every layer that has experts; widths in elements."""

    count: int
    width: int
    """inside of one"""
    shared_width: int
    """inside of the one that every token passes; 0: there is none"""
    shared_gate: bool
    """that one is weighed by the token"""
    choice: ExpertChoice
    layers: tuple[bool, ...]
    """which layers; the others have one MLP"""
    clamp: ClampFacts | None = None
    """of an activation that is not the MLP's"""


def read_experts(config: ModelFields, layers: int) -> ExpertFacts | None:
    """None where no layer has any. Raises SourceError naming the bad key."""
    if not config.family.reads("num_experts_per_tok"):
        return None
    count = read_count(config)
    mixed = mixed_layers(config, layers, count)
    if not any(mixed):
        return None
    own_width = config.family.reads("moe_intermediate_size")
    width = config.get_known("moe_intermediate_size" if own_width else "intermediate_size")
    gated = config.get_known("shared_expert_intermediate_size") or 0
    shared = config.get_known("n_shared_experts") or config.family.shared_experts
    return ExpertFacts(
        count=count,
        width=width,
        shared_width=gated or shared * width,
        shared_gate=gated > 0,
        choice=read_choice(config, count),
        layers=mixed,
        clamp=read_clamp(config),
    )


def read_clamp(config: ModelFields) -> ClampFacts | None:
    if not config.family.reads("swiglu_limit"):
        return None
    alpha, limit = config.get_known("swiglu_alpha"), config.get_known("swiglu_limit")
    return ClampFacts(alpha=alpha, limit=limit)


def read_count(config: ModelFields) -> int:
    """Under either name where a family reads both; they must not contradict each other."""
    if config.family.reads("n_routed_experts"):
        return config.get_known("n_routed_experts")
    found = {
        key: config.need_known(key) for key in config.spelled("num_experts", "num_local_experts")
    }
    if len(set(found.values())) > 1:
        raise config.refusal("num_local_experts", f"num_experts is {found['num_experts']}")
    if found:
        return next(iter(found.values()))
    return config.get_known("num_experts") or config.get_known("num_local_experts") or 0


def mixed_layers(config: ModelFields, layers: int, count: int) -> tuple[bool, ...]:
    """Those that `moe_layers` lists. Otherwise every `decoder_sparse_step`-th or
    `interleave_moe_layer_step`-th layer, but for those that are listed as plain; every
    `moe_layer_freq`-th one behind the first."""
    listed = config.get_known("moe_layers")
    if listed is not None:
        return tuple(count > 0 and index in listed for index in range(layers))
    step = config.get_known("decoder_sparse_step")
    step = step or config.get_known("interleave_moe_layer_step") or 1
    plain = config.get_known("mlp_only_layers") or ()
    first, every = (
        config.get_known("first_k_dense_replace") or 0,
        config.get_known("moe_layer_freq") or 1,
    )
    return tuple(
        count > 0
        and index not in plain
        and (index + 1) % step == 0
        and index >= first
        and index % every == 0
        for index in range(layers)
    )


def read_choice(config: ModelFields, count: int) -> ExpertChoice:
    """Raises SourceError where the numbers do not fit each other."""
    top = config.get_known("num_experts_per_tok")
    if top is None:
        top = config.need_known("num_experts_per_tok")
    if top > count:
        raise config.refusal("num_experts_per_tok", f"there are {count} experts")
    if config.family.reads("moe_layers"):
        return ExpertChoice(top=top, scoring="sigmoid", weigh_inputs=True)
    if not config.family.reads("routed_scaling_factor"):
        renormalize = config.get_known("norm_topk_prob") is not False
        return ExpertChoice(top=top, renormalize=renormalize)
    method = read_method(config)
    groups, top_groups = read_groups(config, count, top) if method.grouped else (1, 1)
    return ExpertChoice(
        top=top,
        scoring=method.scoring,
        renormalize=bool(config.get_known("norm_topk_prob")),
        scale=config.get_known("routed_scaling_factor"),
        groups=groups,
        top_groups=top_groups,
        corrected=method.corrected,
    )


@dataclass(frozen=True)
class ChoiceMethod:
    """What a `topk_method` is."""

    scoring: Literal["softmax", "sigmoid"]
    grouped: bool
    corrected: bool


METHODS = {
    "greedy": ChoiceMethod("softmax", grouped=False, corrected=False),
    "group_limited_greedy": ChoiceMethod("softmax", grouped=True, corrected=False),
    "noaux_tc": ChoiceMethod("sigmoid", grouped=True, corrected=True),
}


def read_method(config: ModelFields) -> ChoiceMethod:
    """Checkpoints of one family have the correction, those of another have not."""
    named, usual = config.get_known("topk_method"), config.family.defaults["topk_method"]
    method, corrected = METHODS[named], METHODS[usual].corrected
    if method.corrected != corrected:
        allowed = [name for name, one in METHODS.items() if one.corrected == corrected]
        why = f"models of the type {config.family.model_types[0]} have {' or '.join(allowed)}"
        raise config.refusal("topk_method", why)
    if config.get_known("scoring_func") != method.scoring:
        raise config.refusal("scoring_func", f"with topk_method {named} it is {method.scoring}")
    return method


def read_groups(config: ModelFields, count: int, top: int) -> tuple[int, int]:
    """(groups of experts, how many of them a token chooses from)"""
    groups, chosen = config.get_known("n_group") or 1, config.get_known("topk_group")
    if count % groups:
        raise config.refusal("n_group", f"it must divide the {count} experts")
    chosen = groups if chosen is None else chosen
    if chosen > groups:
        raise config.refusal("topk_group", f"there are {groups} groups (n_group)")
    if top > chosen * (count // groups):
        why = f"{chosen} groups of {count // groups} experts have fewer (topk_group, n_group)"
        raise config.refusal("num_experts_per_tok", why)
    return groups, chosen
