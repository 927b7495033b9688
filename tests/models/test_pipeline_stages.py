"""Stages of a pipeline, of every family: the numbers of the whole model, from their own bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import paged_model
import pytest
import torch
from descriptors import rank_memories
from paged_model import PagedModel, load
from rank_toys import CLASSES, FAMILIES, SIZES
from torch import Tensor
from toy_models import make, tokens

from vivace.checkpoint.weights import TrackedWeights
from vivace.config.pipeline_parallel import stage_layers
from vivace.layers.layout import PipelineStage
from vivace.layers.linear import Embedding
from vivace.models.causal_lm import CausalLM
from vivace.platforms.cpu.native import Kernels
from vivace.platforms.cpu.platform import NativePlatform
from vivace.platforms.groups import Pipe
from vivace.platforms.platform import Platform, detect
from vivace.platforms.rendezvous import Rendezvous

IDS = tokens(21)
CHUNKS = [9, 1, 11]
LAYERS = 5


class QueuedPipe:
    """A `Pipe` between stages that compute with torch's operations, in one process."""

    def __init__(self) -> None:
        self._sent: deque[Tensor] = deque()

    def send(self, x: Tensor) -> None:
        self._sent.append(x.clone())

    def receive(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        x = self._sent.popleft()
        assert (x.shape, x.dtype) == ((rows, columns), dtype)
        return x


def connect(stages: int) -> list[tuple[Platform | None, dict[tuple[int, int], Pipe]]]:
    """(platform, pipes) of each stage"""
    pairs = [(rank, rank + 1) for rank in range(stages - 1)]
    if paged_model.PLATFORM is None:
        queued: dict[tuple[int, int], Pipe] = {pair: QueuedPipe() for pair in pairs}
        return [(None, queued)] * stages
    platforms = [NativePlatform(detect("cpu"), Kernels(1)) for _ in range(stages)]
    places = [
        Rendezvous(rank=rank, size=stages, meeting="", memory=memory)
        for rank, memory in enumerate(rank_memories(stages))
    ]
    return [
        (platform, platform.join(place).connect(pairs))
        for platform, place in zip(platforms, places, strict=True)
    ]


class StagedModel:
    """A model in stages, one after the other in one process; `read`: bytes that each has read."""

    def __init__(self, path: Path, stages: int, partition: str = "") -> None:
        layers = stage_layers(LAYERS, stages, {"SGLANG_PP_LAYER_PARTITION": partition})
        self.read: list[int] = []
        self.stages: list[PagedModel] = []
        for rank, (platform, pipes) in enumerate(connect(stages)):
            stage = PipelineStage(
                layers=layers[rank],
                source=pipes.get((rank - 1, rank)),
                target=pipes.get((rank, rank + 1)),
            )
            model = self._count(path, stage=stage, platform=platform)
            self.stages.append(PagedModel(model, platform=platform))

    def _count(self, path: Path, **options: Any) -> CausalLM:
        finish, read = TrackedWeights.finish, self.read

        def counted(weights: TrackedWeights, claims: Any) -> None:
            read.append(weights.read_bytes)
            finish(weights, claims)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TrackedWeights, "finish", counted)
            return load(path, **options)

    def feed(self, ids: Sequence[int], chunks: Sequence[int]) -> Tensor:
        found, at = [], 0
        for count in chunks:
            spans: dict[str, Sequence[int]] = {"a": ids[at : at + count]}
            for stage in self.stages[:-1]:
                stage.forward(spans)
            found.append(self.stages[-1].step(spans)["a"])
            at += count
        return torch.cat(found)


def write(folder: Path, family: str, **more: Any) -> Path:
    sizes = {**SIZES, **FAMILIES[family], "num_hidden_layers": LAYERS, **more}
    make(CLASSES.get(family, family), folder, **sizes)
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_stages_compute_what_the_whole_model_does(family: str, tmp_path: Path) -> None:
    path = write(tmp_path, family)
    whole = StagedModel(path, 1)
    wanted = whole.feed(IDS, CHUNKS)
    for stages, partition in ((2, ""), (3, "1,3,1")):
        model = StagedModel(path, stages, partition)
        assert torch.equal(model.feed(IDS, CHUNKS), wanted), stages
        tied = 4 * SIZES["hidden_size"] * SIZES["vocab_size"]
        assert sum(model.read) - whole.read[0] in (0, tied), stages
        assert max(model.read) < whole.read[0]


def test_an_uneven_split_reads_its_own_layers_only(tmp_path: Path) -> None:
    path = write(tmp_path, "Llama")
    first, second = StagedModel(path, 2, "1,4").read
    layer = (second - first) / 3  # embedding and head are as large, but for a norm
    assert abs(first - 97 * 128 * 4 - layer) < 128 * 4


def test_a_tied_embedding_is_in_both_ends(tmp_path: Path) -> None:
    path = write(tmp_path, "Llama", tie_word_embeddings=True)
    model = StagedModel(path, 3)
    held = [
        [not one.elsewhere for one in part.model.find(Embedding)]  # type: ignore[attr-defined]
        for part in model.stages
    ]
    assert held == [[True], [], [True]]
    assert torch.equal(model.feed(IDS, CHUNKS), StagedModel(path, 1).feed(IDS, CHUNKS))
    table = 97 * 128 * 4
    assert sum(model.read) - StagedModel(path, 1).read[0] == table
