"""From a located checkpoint to a model that can run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch

from vivace.checkpoint.layouts import InputGroups
from vivace.checkpoint.open import open_weights
from vivace.checkpoint.source import ModelSource
from vivace.checkpoint.weights import OpenWeights, ReportProgress
from vivace.layers.expert_location import ONE_COPY, ExpertLocations
from vivace.layers.layout import SINGLE, ParallelLayout
from vivace.layers.module import Bindings
from vivace.models.causal_lm import CausalLM
from vivace.models.facts import ModelFacts, checkpoint_quantization
from vivace.models.registry import ARCHITECTURES
from vivace.quantization.packed import WeightPacker
from vivace.quantization.select import select_quantization


def unwatched(weights: OpenWeights) -> OpenWeights:
    return weights


@dataclass(frozen=True, kw_only=True)
class ModelShare:
    """What one of several ranks loads. `rank`: of the engine; `groups`: inputs that stay on one"""

    layout: ParallelLayout = SINGLE
    experts: ExpertLocations = ONE_COPY
    rank: int = 0
    groups: InputGroups = InputGroups()


@dataclass(frozen=True, kw_only=True)
class RequestedQuantization:
    """`method` as --quantization: "w8a8_int8" or "w8a16" make int8 of what is not yet.
    `int8_activations`: blocks of at most six bits are multiplied with those."""

    method: str | None = None
    int8_activations: bool = False


@dataclass(frozen=True, kw_only=True)
class WeightReading:
    """`seed`: of a dummy; `watch`: of somebody who looks on at what is taken"""

    progress: ReportProgress
    seed: int = 0
    watch: Callable[[OpenWeights], OpenWeights] = unwatched


def load_model(
    source: ModelSource,
    facts: ModelFacts,
    packer: WeightPacker,
    reading: WeightReading,
    *,
    positions: int,
    longest: int | None = None,
    share: ModelShare = ModelShare(),
    requested: RequestedQuantization = RequestedQuantization(),
) -> CausalLM:
    """Build, bind and load. `positions` = longest served context in tokens, `longest`
    = what the device's memory can hold of it, where that may be less. `packer`: how the device
    keeps weights. Raises CheckpointError."""
    opened = open_weights(
        source,
        facts,
        seed=reading.seed,
        progress=reading.progress,
        dtype=packer.dtype,
        rank=share.rank,
    )
    weights = reading.watch(opened)
    config = select_quantization(
        checkpoint_quantization(source, requested.method),
        weights,
        packer,
        requested=requested.method,
        int8_activations=requested.int8_activations,
    )
    model = build_model(replace(facts, tied=weights.tied), positions)
    bindings = Bindings(
        packer=packer,
        quantization=config,
        layout=share.layout,
        experts=share.experts,
        longest=longest,
        groups=share.groups,
    )
    model.bind("", bindings)
    load_weights(model, weights)
    return model


def load_weights(model: CausalLM, weights: OpenWeights) -> None:
    with torch.inference_mode():
        model.load(weights)
    weights.finish(set(model.claims()))


def build_model(facts: ModelFacts, positions: int) -> CausalLM:
    """Our own architecture file, or transformers' code where that was asked for its facts."""
    if facts.pooled is not None:
        from vivace.models.pooling.build import build_pooled

        return build_pooled(facts, lambda decoder: build_model(decoder, positions))
    if facts.decoder is None:
        from vivace.models.transformers_impl import TransformersModel

        return TransformersModel(facts)
    return cast(CausalLM, ARCHITECTURES.get(facts.architecture)(facts, facts.decoder, positions))
