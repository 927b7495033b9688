"""The ranks that this worker shares layers with, from the flags."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vivace.config.all_to_all import dispatch_limit
from vivace.config.parallelism import Parallelism, process_groups, ranks_along, requested_sizes
from vivace.config.pipeline_parallel import stage_layers
from vivace.layers.layout import (
    SINGLE,
    WHOLE_MODEL,
    ParallelLayout,
    PipelineStage,
    share_all_layers,
)
from vivace.platforms.groups import SINGLE_RANK, Group
from vivace.platforms.platform import Platform
from vivace.platforms.rendezvous import Rendezvous

if TYPE_CHECKING:
    from vivace.config.config import Config


def join_ranks(
    config: Config, platform: Platform, rendezvous: Rendezvous | None
) -> tuple[Group, ParallelLayout]:
    """(all ranks that compute together, who of them shares which layers)"""
    group, layout = SINGLE_RANK, SINGLE
    if rendezvous is not None:
        group = platform.join(rendezvous)
        layout = divide_layers(config, group)
    runtime = config.runtime
    fixed = runtime.enable_deterministic_inference and not runtime.disable_cpu_kernels
    most = dispatch_limit(config) if config.experts.deepep_mode == "low_latency" else None
    return group, replace(layout, deterministic=fixed, most_sent=most)


def divide_layers(config: Config, everybody: Group) -> ParallelLayout:
    """`everybody`: all ranks that compute together, and which of them this one is."""
    sizes = requested_sizes(config)
    if sizes.pp == 1:
        group, stage = everybody, WHOLE_MODEL
    else:
        group, stage = divide_stages(config, everybody, sizes)
    layout = replace(share_layers(group, sizes), stage=stage)
    return share_with_engines(layout, group, everybody, sizes) if sizes.dp_attention else layout


def divide_stages(
    config: Config, everybody: Group, sizes: Parallelism
) -> tuple[Group, PipelineStage]:
    """Neighbors share layers; each rank hands on to the one at its place of the next stage."""
    tp, rank = sizes.tp, everybody.rank
    group = everybody.divide(ranks_along((sizes.pp, tp), 1))
    pipes = everybody.connect([(one, one + tp) for one in range(everybody.size - tp)])
    divided = stage_layers(config.facts.layers, sizes.pp, config.environment)
    return group, PipelineStage(
        layers=divided[rank // tp],
        source=pipes.get((rank - tp, rank)),
        target=pipes.get((rank, rank + tp)),
    )


def share_with_engines(
    layout: ParallelLayout, group: Group, everybody: Group, sizes: Parallelism
) -> ParallelLayout:
    """`group`: the ranks of this stage, of all engines that share its layers."""
    groups = process_groups(sizes)
    attention = everybody.divide(groups.attention_tp)
    whole = sizes.dense_tp > 1
    return replace(
        layout,
        attention=attention,
        dense=group if whole else SINGLE_RANK,
        vocabulary=attention,
        peers=everybody.divide(groups.attention_dp),
        spanning=frozenset(("experts", "shared_experts", *(("dense",) if whole else ()))),
    )


def share_layers(group: Group, sizes: Parallelism) -> ParallelLayout:
    """Of the ranks of one engine."""
    layout = share_all_layers(group, sizes.ep)
    if sizes.dense_tp == 1:
        layout = replace(layout, dense=SINGLE_RANK)
    if sizes.all_to_all and group.size > 1:
        layout = replace(layout, shared_experts=SINGLE_RANK, travels=True)
    return layout
