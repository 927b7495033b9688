"""Stages of a pipeline: which layers each has, and what the start refuses in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from config_kit import PLATFORM, SOURCE
from hypothesis import given
from hypothesis import strategies as st
from toy_config import LLAMA

from vivace.config.config import Config
from vivace.config.errors import ConfigError
from vivace.config.parallelism import requested_sizes
from vivace.config.parsing import parse
from vivace.config.pipeline_parallel import PARTITION, stage_layers
from vivace.config.resolution import resolve
from vivace.engine.settings import engine_settings
from vivace.models.facts import read_facts
from vivace.protocol.messages import Capacity

MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 16,
    "hidden_size": 128,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
CAPACITY = Capacity(pages=100, page_size=16, rows=64, context=512, vocabulary=300)


def started(*argv: str, partition: str = "", **changes: Any) -> Config:
    source = replace(SOURCE, config={**LLAMA, "num_hidden_layers": 6, **changes})
    environment = {PARTITION: partition} if partition else {}
    return resolve(parse(argv, environment), source, read_facts(source), PLATFORM)


@given(layers=st.integers(1, 100), stages=st.integers(1, 12))
def test_every_layer_is_in_one_stage(layers: int, stages: int) -> None:
    if stages > layers:
        with pytest.raises(ConfigError, match=str(layers)):
            stage_layers(layers, stages, {})
        return
    found = stage_layers(layers, stages, {})
    assert [layer for stage in found for layer in stage] == list(range(layers))
    sizes = [len(stage) for stage in found]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@given(counts=st.lists(st.integers(1, 9), min_size=2, max_size=6))
def test_a_partition_is_followed(counts: list[int]) -> None:
    text = ", ".join(map(str, counts))
    found = stage_layers(sum(counts), len(counts), {PARTITION: text})
    assert [len(stage) for stage in found] == counts
    assert [layer for stage in found for layer in stage] == list(range(sum(counts)))


@pytest.mark.parametrize(
    ("argv", "changes", "words"),
    [
        (["--pp-size", "7"], {}, ["--pipeline-parallel-size 7", "6 layers", "6 or less"]),
        (["--pp-size", "0"], {}, ["--pipeline-parallel-size", "1"]),
        (["--pp-size", "2"], {"partition": "3"}, [PARTITION, "1 numbers", "give 2"]),
        (["--pp-size", "2"], {"partition": "3,4"}, [PARTITION, "7 layers", "the sum 6"]),
        (["--pp-size", "2"], {"partition": "0,6"}, [PARTITION, "12,12"]),
        (["--pp-size", "2"], {"partition": "x"}, [PARTITION, "12,12"]),
        (["--pp-size", "2"], {"partition": "9" * 9000}, [PARTITION, "12,12"]),
        (
            ["--pp-size", "2", "--model-impl", "transformers"],
            {},
            ["--pipeline-parallel-size 2", "one device"],
        ),
        (["--pp-size", "2", "--pp-max-micro-batch-size", "0"], {}, ["1"]),
        (["--pp-size", "2", "--pp-async-batch-depth", "-1"], {}, ["0"]),
        (["--pp-size", "6", "--tp-size", "2", "--dp-size", "6"], {}, ["at most 64"]),
    ],
)
def test_what_stages_cannot_do_is_refused(
    argv: list[str], changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        started(*argv, **changes)
    assert all(word in str(refused.value) for word in words), refused.value


def test_plans_in_flight_are_the_stages_and_more_on_request() -> None:
    assert started().depth == 1
    assert started("--pp-size", "3").depth == 3
    assert started("--pp-size", "3", "--pp-async-batch-depth", "2").depth == 5
    assert started("--pp-async-batch-depth", "2").depth == 1


def test_the_scheduler_knows_numbers() -> None:
    alone = engine_settings(started(), CAPACITY)
    assert (alone.depth, alone.sequence_depth, alone.rows) == (1, None, 64)
    staged = engine_settings(started("--pp-size", "2"), CAPACITY)
    assert (staged.depth, staged.sequence_depth, staged.rows) == (2, 1, 64)
    assert not engine_settings(started("--enable-dynamic-chunking"), CAPACITY).dynamic_chunks
    dynamic = ("--pp-size", "2", "--enable-dynamic-chunking")
    assert engine_settings(started(*dynamic), CAPACITY).dynamic_chunks
    flags = ("--pp-size", "3", "--pp-max-micro-batch-size", "4")
    capped = engine_settings(started(*flags), CAPACITY)
    assert (capped.rows, capped.micro_batch_size) == (12, 4)


def test_results_are_the_last_stages() -> None:
    sizes = requested_sizes(started("--pp-size", "3", "--tp-size", "2", "--dp-size", "2"))
    assert (sizes.engine_ranks, sizes.reporting_rank) == (6, 4)
    assert requested_sizes(started("--tp-size", "2", **MOE)).reporting_rank == 0


@pytest.mark.parametrize("flags", ["", "--enable-dp-attention"])
def test_an_engine_has_ranks_of_every_stage(flags: str) -> None:
    """As SGLang counts them: with dp attention through the engines, in each stage anew."""
    wide = {**MOE, "moe_intermediate_size": 16}
    sizes = requested_sizes(
        started(*"--pp-size 3 --tp-size 4 --dp-size 2".split(), *flags.split(), **wide)
    )
    wanted = [tuple(range(12))]
    if flags:
        wanted = [(0, 1, 4, 5, 8, 9), (2, 3, 6, 7, 10, 11)]
    for index, members in enumerate(wanted):
        assert sizes.engine_members(index) == members
        assert [sizes.place_in_engine(rank) for rank in members] == list(range(len(members)))
        leaders = [rank for rank in members if sizes.leads_stage(rank)]
        assert leaders == list(members[:: len(members) // 3])
        assert members[sizes.reporting_rank] == leaders[-1]


def test_experts_of_stages_are_spread() -> None:
    flags = ("--pp-size", "2", "--tp-size", "2", "--ep-size", "2")
    more = ("--ep-num-redundant-experts", "2")
    assert started(*flags, *more, **MOE).notices == started(*flags, **MOE).notices


@pytest.mark.parametrize(
    ("argv", "partition", "word"),
    [
        (["--pp-max-micro-batch-size", "3"], "", "--pp-max-micro-batch-size"),
        (["--pp-async-batch-depth", "1"], "", "--pp-async-batch-depth"),
        ([], "3,3", PARTITION),
        (["--enable-dynamic-chunking"], "", "--enable-dynamic-chunking"),
        (
            ["--pp-size", "2", "--enable-dynamic-chunking", "--chunked-prefill-size", "-1"],
            "",
            "whole",
        ),
        (
            ["--pp-size", "2", "--pp-max-micro-batch-size", "3", "--max-running-requests", "9"],
            "",
            "2 micro-batches",
        ),
    ],
)
def test_what_has_no_effect_is_said(argv: list[str], partition: str, word: str) -> None:
    notices = started(*argv, partition=partition).notices
    assert any(word in notice for notice in notices), notices
