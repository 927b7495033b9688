"""From a located checkpoint to a model that can run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch

from vivace.checkpoint.open import TIED, open_weights
from vivace.checkpoint.source import ModelSource
from vivace.checkpoint.weights import OpenWeights, ReportProgress
from vivace.layers.expert_location import ONE_COPY, ExpertLocations
from vivace.layers.layout import SINGLE, ParallelLayout
from vivace.layers.module import Bindings
from vivace.models.causal_lm import CausalLM
from vivace.models.facts import ModelFacts, checkpoint_quantization, undivided_inputs
from vivace.models.registry import ARCHITECTURES
from vivace.platforms.ops.table import Ops
from vivace.quantization.packed import WeightPacker
from vivace.quantization.select import select_quantization


def unwatched(weights: OpenWeights) -> OpenWeights:
    return weights


def load_model(
    source: ModelSource,
    facts: ModelFacts,
    ops: Ops,
    *,
    device: torch.device,
    dtype: torch.dtype,
    matrix_dtype: torch.dtype | None = None,
    blocks: bool = False,
    int8_activations: bool = False,
    quantization: str | None = None,
    layout: ParallelLayout = SINGLE,
    experts: ExpertLocations = ONE_COPY,
    positions: int,
    longest: int | None = None,
    progress: ReportProgress,
    seed: int = 0,
    rank: int = 0,
    watch: Callable[[OpenWeights], OpenWeights] = unwatched,
) -> CausalLM:
    """Build, bind and load. `positions` = longest served context in tokens, `longest`
    = what the device's memory can hold of it, where that may be less.

    `dtype` is that of activations, `matrix_dtype` that of plain matrices (None: the same);
    `blocks` leaves quantized matrices as they are stored, for ops that read them;
    `int8_activations`: those of at most six bits are multiplied with activations in int8.
    `quantization` as --quantization: "w8a8_int8" or "w8a16" make int8 of what is not yet. `layout`:
    this rank's share of each layer, `experts`: which has which; `rank`: of the engine. `watch`:
    of somebody who looks on at what is taken. Raises CheckpointError.
    """
    matrices = matrix_dtype or dtype
    weights = watch(
        open_weights(source, facts, seed=seed, progress=progress, dtype=matrices, rank=rank)
    )
    packer = WeightPacker(ops=ops, dtype=matrices, activations=dtype, device=device, blocks=blocks)
    config = select_quantization(
        checkpoint_quantization(source, quantization),
        weights,
        packer,
        requested=quantization,
        int8_activations=int8_activations,
    )
    model = build_model(replace(facts, tied=weights.tied), positions)
    bindings = Bindings(
        packer=packer,
        quantization=config,
        layout=layout,
        experts=experts,
        longest=longest,
        groups=undivided_inputs(source),
    )
    model.bind("", bindings)
    load_weights(model, weights)
    return model


def without_head(source: ModelSource, facts: ModelFacts) -> tuple[ModelSource, ModelFacts]:
    """The same with the embedding as output layer, for those who ask for no logits: what the files
    have of one, or lack, does not matter."""
    if facts.decoder is None:
        return source, facts
    overridden = (*source.overridden, TIED)
    return replace(source, overridden=overridden), replace(facts, tied=True)


def load_weights(model: CausalLM, weights: OpenWeights) -> None:
    with torch.inference_mode():
        model.load(weights)
    weights.finish(set(model.claims()))


def build_model(facts: ModelFacts, positions: int) -> CausalLM:
    """Our own architecture file, or transformers' code where that was asked for its facts."""
    if facts.decoder is None:
        from vivace.models.transformers_impl import TransformersModel

        return TransformersModel(facts)
    return cast(CausalLM, ARCHITECTURES.get(facts.architecture)(facts, facts.decoder, positions))
