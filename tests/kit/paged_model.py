"""A loaded model over the CPU's real paged attention, fed span by span."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vivace.checkpoint.source import ModelSource, locate
from vivace.config.kernels import INT8
from vivace.layers.expert_location import ONE_COPY, ExpertLocations
from vivace.layers.layout import WHOLE_MODEL, PipelineStage, share_all_layers
from vivace.models.causal_lm import CausalLM
from vivace.models.facts import ModelFacts, undivided_inputs
from vivace.models.loading import (
    ModelShare,
    RequestedQuantization,
    WeightReading,
    load_model,
)
from vivace.models.pooling.facts import read_served_facts
from vivace.models.transformers_facts import facts_from, trace_request
from vivace.models.transformers_impl import TransformersModel
from vivace.models.transformers_trace import trace_result
from vivace.platforms.attention import HostStep, StepPages, StepStates
from vivace.platforms.cpu.attention import CpuAttention
from vivace.platforms.cpu.ops import cpu_ops
from vivace.platforms.groups import SINGLE_RANK, Group
from vivace.platforms.ops.paged_cache import PagedCache
from vivace.platforms.platform import Platform
from vivace.quantization.packed import WeightPacker
from vivace.worker.step_input import StepInput

# More threads than free cores make toy models many times slower.
torch.set_num_threads(1)
CPU = torch.device("cpu")

PLATFORM: Platform | None = None
"""the platform tests run on; None = torch's operations"""
ONCE = pytest.mark.parametrize("operations", ["torch"], indirect=True)
"""of tests of models in which nothing is computed"""


def load(
    path: Path | None,
    *,
    dtype: torch.dtype = torch.float32,
    positions: int | None = None,
    implementation: str = "auto",
    quantization: str | None = None,
    overrides: dict[str, Any] | None = None,
    source: ModelSource | None = None,
    group: Group = SINGLE_RANK,
    ep: int = 1,
    deterministic: bool = False,
    int8_activations: bool = False,
    experts: ExpertLocations = ONE_COPY,
    load_format: str = "auto",
    travels: bool = False,
    stage: PipelineStage = WHOLE_MODEL,
    platform: Platform | None = None,
) -> CausalLM:
    """`travels`: tokens go to the ranks of their experts."""
    layout = replace(share_all_layers(group, ep), deterministic=deterministic)
    if travels:
        layout = replace(layout, travels=True, shared_experts=SINGLE_RANK)
    found = source or locate(
        str(path) if path else None, overrides=overrides, load_format=load_format
    )
    if implementation == "transformers":
        return load_traced(found, traced(found), dtype=dtype)
    facts = read_served_facts(found)
    native = platform or PLATFORM
    return load_model(
        found,
        facts,
        WeightPacker(
            ops=native.ops if native else cpu_ops(),
            dtype=dtype,
            activations=native.activations(dtype) if native else dtype,
            device=CPU,
            blocks=native is not None,
        ),
        UNSEEN,
        positions=positions or facts.context,
        share=ModelShare(
            layout=replace(layout, stage=stage),
            experts=experts,
            rank=group.rank,
            groups=undivided_inputs(found, decoded=native is None or quantization in INT8),
        ),
        requested=RequestedQuantization(method=quantization, int8_activations=int8_activations),
    )


SEQUENCES = 32
"""most of a `PagedModel` whose layers have states"""
UNSEEN = WeightReading(progress=lambda stage, fraction: None)


def plain_packer(dtype: torch.dtype) -> WeightPacker:
    """Of torch's operations"""
    return WeightPacker(ops=cpu_ops(), dtype=dtype, activations=dtype, device=CPU)


def load_traced(
    source: ModelSource, facts: ModelFacts, *, dtype: torch.dtype = torch.float32
) -> CausalLM:
    """What --model-impl transformers runs."""
    return load_model(source, facts, plain_packer(dtype), UNSEEN, positions=facts.context)


def traced(source: ModelSource) -> ModelFacts:
    """As `facts_by_transformers`, in this process."""
    request = trace_request(source)
    return facts_from(source, request, trace_result(request))


class PagedModel:
    """Sequences by name; pages are handed out in a shuffled order, so that none are neighbors."""

    def __init__(
        self,
        model: CausalLM,
        *,
        page_size: int = 4,
        pages: int = 64,
        dtype: torch.dtype | None = None,
        platform: Platform | None = None,
    ) -> None:
        self.model = model
        layers, kind = model.attention_layers, dtype or torch.float32
        self.kv = PagedCache(
            layers, [pages], page_size, kind, torch.device("cpu"), slots=2 * SEQUENCES + 1
        )
        self._has_states = any(layer.cache.state for layer in layers)
        self._states: dict[str, int] = {}
        """the slot of each sequence's state; of two it has, since none is written where it is
        read"""
        native = None if isinstance(model, TransformersModel) else platform or PLATFORM
        self.attention = (
            native.attention_backend(layers, self.kv, torch.float32, pages * page_size)
            if native
            else CpuAttention(layers, self.kv, kind)
        )
        self._free = list(np.random.default_rng(5).permutation(pages))
        self._pages: dict[str, list[int]] = {}
        self._lengths: dict[str, int] = {}

    def step(self, spans: dict[str, Sequence[int]]) -> dict[str, Tensor]:
        """Feed each named sequence some tokens; logits[count, vocabulary] for each of them."""
        with torch.inference_mode():
            logits = self.model.lm_head(self.forward(spans))
        counts = [len(tokens) for tokens in spans.values()]
        return dict(zip(spans, logits.split(counts), strict=True))

    def forward(self, spans: dict[str, Sequence[int]]) -> Tensor:
        """The same, but hidden states."""
        step = self._input(spans)
        with torch.inference_mode():
            self.attention.plan(step)
            return self.model.forward(step)

    def feed(self, name: str, tokens: Sequence[int], chunks: Sequence[int]) -> Tensor:
        """Feed one sequence in chunks; the logits of all its tokens."""
        pieces, at = [], 0
        for count in chunks:
            pieces.append(self.step({name: tokens[at : at + count]})[name])
            at += count
        assert at == len(tokens)
        return torch.cat(pieces)

    def _input(self, spans: dict[str, Sequence[int]]) -> StepInput:
        size = self.kv.page_size
        positions: list[int] = []
        slots: list[int] = []
        lengths, counts = [], [len(tokens) for tokens in spans.values()]
        for name, tokens in spans.items():
            before = self._lengths.get(name, 0)
            length = self._lengths[name] = before + len(tokens)
            pages = self._pages.setdefault(name, [])
            while len(pages) * size < length:
                pages.append(int(self._free.pop()))
            positions += range(before, length)
            slots += [pages[p // size] * size + p % size for p in range(before, length)]
            lengths.append(length)
        widest = max(len(self._pages[name]) for name in spans)
        table = np.full((len(spans), widest), self.kv.empty_pages[0], np.int64)
        for row, name in zip(table, spans, strict=True):
            row[: len(self._pages[name])] = self._pages[name]
        starts = np.concatenate([[0], np.cumsum(counts)])
        states = self._move_states(list(spans)) if self._has_states else None
        return StepInput(
            states=states,
            input_ids=torch.tensor([t for tokens in spans.values() for t in tokens]),
            positions=torch.tensor(positions),
            query_starts=torch.from_numpy(starts),
            context_lens=torch.tensor(lengths),
            groups=(
                StepPages(
                    slot_mapping=torch.tensor(slots),
                    page_table=torch.from_numpy(table),
                ),
            ),
            logits_indices=torch.from_numpy(starts[1:] - 1),
            attention=self.attention,
            shape=None,
            host=HostStep(
                starts=starts,
                context_lens=np.array(lengths),
                decode=all(count == 1 for count in counts),
            ),
        )

    def _move_states(self, names: list[str]) -> StepStates:
        """The last slot is the empty state."""
        read = [self._states.get(name, 2 * SEQUENCES) for name in names]
        for name in names:
            self._states[name] = self._states.get(name, 2 * len(self._states)) ^ 1
        write = [[self._states[name]] for name in names]
        return StepStates(read=torch.tensor(read), write=torch.tensor(write), drafts=None)
