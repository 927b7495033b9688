"""Before a model of transformers' code is served: the same tokens, computed as the engine does
(several sequences in one step, in pieces), must give what transformers computes for each alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vivace.checkpoint.source import SourceError
from vivace.models.causal_lm import CausalLM
from vivace.platforms.attention import AttentionBackend, HostStep, StepPages, StepStates
from vivace.platforms.host import HOST, upload
from vivace.platforms.ops.attention import ReferenceAttention
from vivace.platforms.ops.paged_cache import PagedCache

LENGTHS = (9, 6)
"""tokens of each probed sequence"""
STEPS = (((0, 5), (0, 4)), ((5, 8), (4, 5)), ((8, 9), (5, 6)))
"""[first, last) token of each sequence in each step"""
TOLERANCE = {torch.float32: 0.01}
TOLERANCE_16_BITS = 0.1
"""largest relative distance of the logits: wrong positions or masks give about 1"""


def probe(vocabulary: int) -> list[list[int]]:
    """Token ids, spread over the vocabulary."""
    return [
        [(7 + 31 * place + 17 * row) * 2654435761 % vocabulary for place in range(length)]
        for row, length in enumerate(LENGTHS)
    ]


@dataclass(frozen=True, kw_only=True)
class ProbeStep:
    """`ModelStep` of a span of every sequence."""

    input_ids: Tensor
    positions: Tensor
    groups: tuple[StepPages, ...]
    context_lens: Tensor
    query_starts: Tensor
    host: HostStep
    attention: AttentionBackend
    states: StepStates | None = None


def check_same(model: CausalLM, wanted: list[Tensor], what: str) -> None:
    """`wanted`: logits[T, vocabulary] of each probed sequence. Raises SourceError."""
    ids = probe(wanted[0].shape[1])
    layers = model.attention_layers
    pages, size = [len(LENGTHS)], max(LENGTHS)
    memory = PagedCache(layers, pages, size, torch.float32, wanted[0].device)
    attention = ReferenceAttention(layers, memory, torch.float32)
    kind = torch.float32
    distances: list[Tensor] = []
    for spans in STEPS:
        hidden = model.forward(build_step(ids, spans, attention, memory.page_size))
        kind = hidden.dtype
        expected = torch.cat([rows[a:b] for rows, (a, b) in zip(wanted, spans, strict=True)])
        distances.append(distance(model.lm_head(hidden), expected))
    found = torch.cat(distances)
    # in 16 bits a token may choose another expert by a hair, so that not every one has to agree
    worst = float(found.max() if kind is torch.float32 else found.median())
    if not worst <= TOLERANCE.get(kind, TOLERANCE_16_BITS):
        raise SourceError(
            f"{what} does not give what transformers itself computes (the logits of "
            f"{len(found)} tokens are {worst:.2g} apart), so it is not served"
        )


def distance(found: Tensor, wanted: Tensor) -> Tensor:
    """[T]: relative to the spread of the logits, which is what decides; NaN fits nothing."""
    spread = (wanted - wanted.mean(-1, keepdim=True)).norm(dim=-1)
    return (found - wanted).norm(dim=-1) / spread.clamp_min(1e-6)


def build_step(
    ids: list[list[int]],
    spans: tuple[tuple[int, int], ...],
    attention: AttentionBackend,
    page_size: int,
) -> ProbeStep:
    starts = np.cumsum([0, *(last - first for first, last in spans)])
    ends = np.array([last for _, last in spans])
    pages = np.arange(len(spans))[:, None]
    positions = [place for first, last in spans for place in range(first, last)]
    rows = [row for row, (first, last) in enumerate(spans) for _ in range(first, last)]
    host = HostStep(starts=starts, context_lens=ends, decode=False)
    return ProbeStep(
        input_ids=torch.tensor(
            [ids[row][place] for row, place in zip(rows, positions, strict=True)]
        ),
        positions=torch.tensor(positions),
        groups=(
            StepPages(
                slot_mapping=torch.tensor(rows) * page_size + torch.tensor(positions),
                page_table=upload(pages, HOST),
            ),
        ),
        context_lens=upload(ends, HOST),
        query_starts=upload(starts, HOST),
        host=host,
        attention=attention,
    )
