"""The layers of each stage of a pipeline."""

from __future__ import annotations

from itertools import accumulate

import msgspec

from vivace.deploy.server_plan import ServerPlan
from vivace.models.architecture import Architecture


class StagePlan(msgspec.Struct, frozen=True):
    """`number` counts from 0. Of a model's layers those with one wide MLP come first; other kinds
    are taken as spread evenly."""

    number: int
    count: int
    """of stages"""
    layers: int
    dense: int
    """of them, with one wide MLP"""
    part: float
    """of all layers"""

    @property
    def first(self) -> bool:
        """It has the embedding."""
        return self.number == 0

    @property
    def last(self) -> bool:
        """It has the head."""
        return self.number == self.count - 1

    @property
    def text(self) -> str:
        """Of the one that decides; empty for a model that is not divided."""
        if self.count == 1:
            return ""
        return f"stage {self.number} ({self.layers} layers), the fullest of {self.count}"


def list_stages(model: Architecture, server: ServerPlan) -> list[StagePlan]:
    """As SGLANG_PP_LAYER_PARTITION says, or equally many; of those that are left over the last
    stages of SGLang have one each, and the first ones of Vivace."""
    counts = server.stage_layers
    stages = min(server.parallelism.pp, model.layers)  # the check refuses more
    if stages == 1 or len(counts) != stages or sum(counts) != model.layers:
        each, more = divmod(model.layers, stages)
        counts = sorted(([each + 1] * more + [each] * (stages - more)), reverse=server.ours)
    ends = accumulate(counts)
    return [
        StagePlan(
            number=number,
            count=stages,
            layers=count,
            dense=max(0, min(end, model.dense_layers) - (end - count)),
            part=count / model.layers,
        )
        for number, (count, end) in enumerate(zip(counts, ends, strict=True))
    ]
