"""Which layers of a model are mixtures of experts, and their sizes, from its configuration."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.models.config_fields import ModelFields


@dataclass(frozen=True, kw_only=True)
class ExpertFacts:
    """Of every layer that has experts; widths in elements."""

    count: int
    top: int
    """experts of a token"""
    width: int
    """inside of one"""
    shared_width: int
    """inside of the one that every token passes; 0: there is none"""
    renormalize: bool
    """a token's weights sum to 1"""
    layers: tuple[bool, ...]
    """which layers; the others have one MLP"""


def read_experts(config: ModelFields, layers: int) -> ExpertFacts | None:
    """None where no layer has any. Raises SourceError naming the bad key."""
    if not config.family.reads("num_experts_per_tok"):
        return None
    count, top = read_count(config), config.get_known("num_experts_per_tok")
    mixed = mixed_layers(config, layers, count)
    if not any(mixed):
        return None
    if top > count:
        raise config.refusal("num_experts_per_tok", f"there are {count} experts")
    own_width = config.family.reads("moe_intermediate_size")
    return ExpertFacts(
        count=count,
        top=top,
        width=config.get_known("moe_intermediate_size" if own_width else "intermediate_size"),
        shared_width=config.get_known("shared_expert_intermediate_size") or 0,
        renormalize=config.get_known("norm_topk_prob") is not False,
        layers=mixed,
    )


def read_count(config: ModelFields) -> int:
    """Under either name where a family reads both; they must not contradict each other."""
    found = {
        key: config.need_known(key) for key in config.spelled("num_experts", "num_local_experts")
    }
    if len(set(found.values())) > 1:
        raise config.refusal("num_local_experts", f"num_experts is {found['num_experts']}")
    if found:
        return next(iter(found.values()))
    return config.get_known("num_experts") or config.get_known("num_local_experts") or 0


def mixed_layers(config: ModelFields, layers: int, count: int) -> tuple[bool, ...]:
    """Every `decoder_sparse_step`-th layer, but for those that are listed as plain."""
    step = config.get_known("decoder_sparse_step") or 1
    plain = config.get_known("mlp_only_layers") or ()
    return tuple(
        count > 0 and index not in plain and (index + 1) % step == 0 for index in range(layers)
    )
