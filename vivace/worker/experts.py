"""The experts of a worker's layers: how many tokens went to each, and their moves between ranks."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from vivace.checkpoint.open import open_weights
from vivace.checkpoint.weights import CheckpointError, Weights
from vivace.config.expert_location import find_experts, read_locations
from vivace.errors import CannotStart
from vivace.layers.expert_location import ONE_COPY, DispatchAlgorithm, ExpertLocations
from vivace.layers.experts import RoutedExperts
from vivace.layers.module import Module
from vivace.platforms.groups import SINGLE_RANK, Group
from vivace.protocol.workers import MoveExperts

if TYPE_CHECKING:
    from vivace.config.config import Config


def locate_experts(config: Config, group: Group) -> ExpertLocations:
    """Read by every rank, and the same on all of them. Raises CannotStart."""
    asked, found = config.experts, find_experts(config.facts)
    if found is None:
        return ONE_COPY
    layers = read_locations(config, found)
    digest = zlib.crc32(repr(layers).encode())
    if group.minimum([digest, -digest]) != [digest, -digest]:
        raise CannotStart("--init-expert-location: the ranks have read different placements")
    return ExpertLocations(
        redundant=asked.ep_num_redundant_experts,
        layers=layers,
        algorithm=cast("DispatchAlgorithm", asked.ep_dispatch_algorithm or "static"),
        counted=asked.expert_distribution_recorder_mode is not None,
    )


class ExpertLayers:
    """`layers`: those of this rank's stage; `open_weights` opens the checkpoint again, once for all
    moves; `group`: all ranks that compute together, of all stages."""

    def __init__(
        self,
        layers: Sequence[RoutedExperts],
        open_weights: Callable[[], Weights],
        group: Group,
    ) -> None:
        self._layers = {layer.layer: layer for layer in layers}
        self._open = open_weights
        self._weights: Weights | None = None
        self._group = group
        slots = (layer.slots for layer in layers)
        self._counts = [one.counts for one in slots if one is not None and one.counts is not None]

    def begin_step(self) -> None:
        """What was counted before belongs to no step."""
        for counts in self._counts:
            counts.zero_()

    def count(self) -> list[Tensor]:
        """[layers, slots] of the step under way, alone; nothing where nobody counts"""
        return [torch.stack(self._counts)] if self._counts else []

    def move(self, command: MoveExperts) -> str:
        """Why no rank has moved anything; empty: all have. Weights come from the checkpoint."""
        refused, moves = "", list[Callable[[], None]]()
        try:
            weights = self._weights = self._weights or self._open()
            for layer, placed in zip(command.layers, command.placed, strict=True):
                if layer in self._layers:
                    moves.append(self._layers[layer].move(placed, weights))
        except (CheckpointError, CannotStart, OSError) as error:
            refused = str(error)
        if self._group.minimum([int(not refused)]) == [0]:
            return refused or "another rank cannot read its experts"
        for finish in moves:
            finish()
        return ""


def movable_experts(
    config: Config, model: object, group: Group, dtype: torch.dtype
) -> ExpertLayers:
    """The model's, with its checkpoint."""

    def reopen() -> Weights:
        return open_weights(
            config.source,
            config.facts,
            seed=config.runtime.random_seed or 0,
            progress=lambda stage, fraction: None,
            dtype=dtype,
        )

    layers = list(model.find(RoutedExperts)) if isinstance(model, Module) else []
    return ExpertLayers(layers, reopen, group)


def no_weights() -> Weights:
    raise CannotStart("the model has no experts")


NO_EXPERTS = ExpertLayers([], no_weights, SINGLE_RANK)
