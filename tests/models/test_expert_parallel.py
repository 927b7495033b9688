"""Whole experts on different ranks: the tokens of one rank, whatever ranks have of them and however
they are moved while a sequence goes on."""

from __future__ import annotations

import json
import random
import shutil
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paged_model import load
from thread_ranks import ThreadRanks
from torch import Tensor
from toy_models import make, tokens

from vivace.checkpoint.open import open_weights
from vivace.checkpoint.source import locate
from vivace.checkpoint.weights import CheckpointError
from vivace.config.parallelism import ranks_along
from vivace.layers.expert_location import PERIOD, ExpertLocations, dispatch_table
from vivace.layers.layout import share_all_layers
from vivace.models.facts import read_facts

EXPERTS = 8
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 64,
    "mlp_only_layers": [1],
}
IDS, CHUNKS, STEPS = tokens(17), [9, 1, 7], 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("experts")
    make("Qwen3Moe", path, **SIZES)
    return path


def generate(ranks: ThreadRanks, before_step: dict[int, Any] | None = None) -> Iterator[Tensor]:
    """Logits of the prompt's end and of STEPS tokens, each the best or the second best one."""
    logits = ranks.feed(IDS, CHUNKS)[-1]
    for step in range(STEPS):
        yield logits
        if before_step and step in before_step:
            before_step[step]()
        token = int(logits.topk(2).indices[int(step % 3 == 2)])
        logits = ranks.feed([token], [1])[-1]


def same(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert [int(one.argmax()) for one in found] == [int(one.argmax()) for one in wanted]
    torch.testing.assert_close(torch.stack(found), torch.stack(wanted), rtol=1e-3, atol=1e-3)


LAYOUTS = [
    (tp, ep, redundant, algorithm)
    for tp in (2, 4)
    for ep in (2, 4)
    for redundant, algorithm in ((0, "static"), (ep, "static"), (2 * ep, "dynamic"))
    if tp % ep == 0
]


@pytest.mark.parametrize(("tp", "ep", "redundant", "algorithm"), LAYOUTS)
def test_the_tokens_of_one_rank(
    tp: int, ep: int, redundant: int, algorithm: Any, folder: Path, operations: None
) -> None:
    wanted = list(generate(ThreadRanks(folder, 1)))
    experts = ExpertLocations(redundant=redundant, algorithm=algorithm, counted=tp == 2)
    same(list(generate(ThreadRanks(folder, tp, ep=ep, experts=experts))), wanted)


@pytest.mark.parametrize(
    ("ranks", "redundant", "algorithm"), [(2, 0, "static"), (4, 4, "dynamic"), (4, 8, "static")]
)
def test_tokens_that_travel_to_their_experts_have_the_same_bits(
    ranks: int, redundant: int, algorithm: Any, folder: Path, operations: None
) -> None:
    """What ranks make of a token is added in the same order as by a sum over all of them."""
    experts = ExpertLocations(redundant=redundant, algorithm=algorithm, counted=True)
    stay, travel = (
        ThreadRanks(folder, ranks, ep=ranks, experts=experts, travels=travels)
        for travels in (False, True)
    )
    wanted, found = list(generate(stay)), list(generate(travel))
    assert torch.equal(torch.stack(found), torch.stack(wanted))
    for layer, other in zip(stay.experts(0), travel.experts(ranks - 1), strict=True):
        assert layer.slots and other.slots
        assert layer.slots.counts is not None and other.slots.counts is not None
        assert torch.equal(layer.slots.counts, other.slots.counts)


def test_a_shared_expert_is_whole_where_tokens_travel(tmp_path: Path, operations: None) -> None:
    make("Qwen2Moe", tmp_path, **SIZES, shared_expert_intermediate_size=64)
    wanted = list(generate(ThreadRanks(tmp_path, 1)))
    same(list(generate(ThreadRanks(tmp_path, 4, ep=4, travels=True))), wanted)


@pytest.mark.parametrize(("tp", "ep", "redundant"), [(2, 2, 0), (4, 2, 4), (4, 4, 8)])
def test_experts_that_move_in_the_middle_of_a_stream(
    tp: int, ep: int, redundant: int, folder: Path, operations: None
) -> None:
    wanted = list(generate(ThreadRanks(folder, 1)))
    ranks = ThreadRanks(
        folder, tp, ep=ep, experts=ExpertLocations(redundant=redundant, counted=True)
    )
    source = locate(str(folder))

    def move(seed: int) -> None:
        draw = random.Random(seed)
        for layer in range(len(ranks.experts(0))):
            placed = [*range(EXPERTS), *draw.choices(range(EXPERTS), k=redundant)]
            draw.shuffle(placed)
            for rank in range(tp):
                weights = open_weights(
                    source, read_facts(source), seed=0, progress=lambda stage, fraction: None
                )
                with torch.inference_mode():
                    ranks.experts(rank)[layer].move(placed, weights)()
                assert list(ranks.experts(rank)[layer].located) == placed

    same(list(generate(ranks, {n: lambda n=n: move(n) for n in (5, 6, 20)})), wanted)


def test_a_rank_reads_its_own_experts_only(folder: Path, operations: None) -> None:
    layers, matrices = 2, 3 * SIZES["hidden_size"] * SIZES["moe_intermediate_size"] * 4
    alone = ThreadRanks(folder, 1).read[0]
    whole = layers * EXPERTS * matrices
    for ep, redundant in ((2, 0), (4, 0), (4, 4)):
        ranks = ThreadRanks(folder, 4, ep=ep, experts=ExpertLocations(redundant=redundant))
        own = layers * (EXPERTS + redundant) // ep * matrices // (4 // ep)
        rest = ThreadRanks(folder, 4).read[0] - whole // 4
        assert [read - rest for read in ranks.read] == [own] * 4
        assert own < whole < alone


def test_every_rank_counts_the_same_pairs(folder: Path, operations: None) -> None:
    ranks = ThreadRanks(folder, 2, ep=2, experts=ExpertLocations(redundant=2, counted=True))
    ranks.feed(IDS, CHUNKS)
    for layer, other in zip(ranks.experts(0), ranks.experts(1), strict=True):
        assert layer.slots and other.slots
        assert layer.slots.counts is not None and other.slots.counts is not None
        assert torch.equal(layer.slots.counts, other.slots.counts)
        assert int(layer.slots.counts.sum()) == len(IDS) * SIZES["num_experts_per_tok"]


def test_fake_dispatch_spreads_tokens_evenly(folder: Path, operations: None) -> None:
    fake = ExpertLocations(algorithm="fake", counted=True)
    ranks = ThreadRanks(folder, 2, ep=2, experts=fake)
    ranks.feed(tokens(96), [96])
    for layer in ranks.experts(0):
        assert layer.slots is not None and layer.slots.counts is not None
        counts = layer.slots.counts.tolist()
        assert sum(counts) == 96 * 3 and min(counts) > 15, counts


@st.composite
def placements(draw: st.DrawFn) -> tuple[int, list[int]]:
    experts = draw(st.integers(1, 12))
    more = draw(st.lists(st.integers(0, experts - 1), max_size=12))
    return experts, draw(st.permutations([*range(experts), *more]))


@given(placements(), st.sampled_from(["static", "dynamic", "fake"]))
def test_a_table_leads_to_copies_and_uses_all(made: tuple[int, list[int]], algorithm: Any) -> None:
    experts, located = made
    table = dispatch_table(located, experts, algorithm)
    period = len(table[0])
    assert period == (PERIOD if len(located) > experts or algorithm == "fake" else 1)
    for at in range(period):
        reached = [located[table[expert][at]] for expert in range(experts)]
        assert sorted(reached) == list(range(experts)), "a token's experts stay different ones"
        assert algorithm == "fake" or reached == list(range(experts))
    if algorithm == "static" and period > 1:
        for expert, row in enumerate(table):
            copies = Counter(row)
            assert set(copies) == {slot for slot, one in enumerate(located) if one == expert}
            assert max(copies.values()) - min(copies.values()) <= 1


@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (4, 1), (4, 2), (4, 4), (8, 2)])
def test_ranks_divide_experts_as_the_groups_say(tp: int, ep: int) -> None:
    class Place:
        def __init__(self, rank: int) -> None:
            self.rank, self.size = rank, tp

    inside = ranks_along((ep, tp // ep), 1)
    for rank in range(tp):
        layout = share_all_layers(Place(rank), ep)  # pyright: ignore[reportArgumentType]
        group = next(group for group in inside if rank in group)
        assert layout.moe_tp.rank == group.index(rank) and layout.moe_tp.size == len(group)
        assert layout.moe_ep.rank == inside.index(group) and layout.moe_ep.size == ep


def test_experts_that_a_file_does_not_have_take_no_memory(folder: Path, tmp_path: Path) -> None:
    """A few words of a configuration may tell of millions."""
    config = json.loads((folder / "config.json").read_text())
    config.pop("num_local_experts", None)
    config |= {"num_hidden_layers": 16, "num_experts": 1 << 14}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(folder / "model.safetensors", tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="gate"):
            load(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
