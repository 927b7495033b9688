"""Experts on several devices: what the start refuses in one line, and what it makes of the rest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from config_kit import PLATFORM, SOURCE
from hypothesis import given
from hypothesis import strategies as st
from toy_config import LLAMA

from vivace.config.config import Config
from vivace.config.errors import ConfigError
from vivace.config.expert_balance import (
    ExpertDevices,
    pack,
    place_experts,
    replicate,
    utilization,
)
from vivace.config.expert_location import find_experts, read_locations
from vivace.config.parsing import parse
from vivace.config.resolution import resolve
from vivace.models.facts import read_facts
from vivace.worker.captures import choose_captures

MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 16,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [0],
    "norm_topk_prob": True,
}
LIMIT = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
KERNELS = replace(PLATFORM, features=frozenset({"kernels"}), cpu_kernels=True)
LAYERS = LLAMA["num_hidden_layers"]
TRIVIAL = [[*range(8)]] * LAYERS
EP = ("--tp-size", "4", "--ep-size", "4")
A2A = ("--tp-size", "4", "--moe-a2a-backend", "deepep")
DP = ("--dp-size", "2", "--enable-dp-attention")


def started(*argv: str, limit: str = "", **changes: Any) -> Config:
    source = replace(SOURCE, config={**LLAMA, **MOE, **changes})
    environ = {LIMIT: limit} if limit else {}
    return resolve(parse(argv, environ), source, read_facts(source), KERNELS)


def placed(config: Config) -> Any:
    experts = find_experts(config.facts)
    assert experts is not None
    return read_locations(config, experts)


def test_whole_experts_need_not_be_divided() -> None:
    """12 numbers inside of an expert do not go into 8 ranks; 2 of 8 ranks share them."""
    assert started("--tp-size", "8", "--ep-size", "4").experts.ep_size == 4
    with pytest.raises(ConfigError, match="12"):
        started("--tp-size", "8")


def test_dense_layers_may_be_whole() -> None:
    argv, sizes = ["--tp-size", "4"], {"intermediate_size": 98, "moe_intermediate_size": 16}
    assert started(*argv, "--moe-dense-tp-size", "1", **sizes).experts.moe_dense_tp_size == 1
    with pytest.raises(ConfigError, match="98"):
        started(*argv, **sizes)


def test_tokens_travel_to_whole_experts_of_all_ranks() -> None:
    config = started(*A2A)
    assert config.experts.ep_size == 4 and not config.runtime.disable_cuda_graph
    assert any(one.field == "ep_size" and "deepep" in one.reason for one in config.rewrites)
    assert started(*A2A, "--deepep-mode", "normal").runtime.disable_cuda_graph
    eight = started("--tp-size", "8", "--moe-a2a-backend", "ascend_fuseep")
    assert eight.experts.ep_size == 8, "12 numbers inside of an expert do not go into 8 ranks"
    assert any("no effect" in one for one in started("--moe-a2a-backend", "deepep").notices)
    assert any("no effect" in one for one in started("--deepep-mode", "normal").notices)


def test_a_rank_sends_so_many_tokens_with_low_latency() -> None:
    low = (*A2A, "--deepep-mode", "low_latency", "--max-running-requests", "8")
    assert started(*low, "--chunked-prefill-size", "64", limit="18")
    assert started(*low, *DP, "--chunked-prefill-size", "128", limit="34"), "half for each engine"
    for argv, limit, said in (
        ([*low, "--chunked-prefill-size", "64"], "17", "at most 68"),
        ([*low, *DP, "--chunked-prefill-size", "128"], "33", "at most 66"),
        ([*low, "--chunked-prefill-size", "-1"], "1024", "whole prompts"),
        (A2A, "0", "1 to 1024"),
        (A2A, "1025", "1 to 1024"),
        (A2A, "many", LIMIT),
    ):
        with pytest.raises(ConfigError) as raised:
            started(*argv, limit=limit)
        assert said in str(raised.value)


def test_captures_have_no_more_rows_than_ranks_send() -> None:
    captures = choose_captures(started(*A2A, "--cuda-graph-bs", "8", "64", limit="4"), 48)
    assert captures.sizes == (8,) and LIMIT in captures.rewrites[0].reason
    assert choose_captures(started(*A2A, *DP, limit="4"), 48).sizes == (8,), (
        "two ranks of an engine"
    )
    assert choose_captures(started(*A2A, "--deepep-mode", "normal"), 48).sizes == ()
    assert choose_captures(started(*EP, *DP), 48).sizes == (48,)


REFUSED = [
    (["--tp-size", "4", "--ep-size", "3"], ["--expert-parallel-size", "tp 4", "ep 3"]),
    (["--ep-size", "2"], ["--expert-parallel-size", "tp 1", "ep 2"]),
    (["--tp-size", "8", "--moe-dense-tp-size", "2"], ["--moe-dense-tp-size", "got 2"]),
    (["--ep-num-redundant-experts", "2"], ["--ep-num-redundant-experts 2", "expert-parallel-size"]),
    (["--enable-eplb"], ["--enable-eplb", "--expert-parallel-size"]),
    ([*EP, "--ep-num-redundant-experts", "3"], ["8 experts", "3 copies", "0 or 4"]),
    ([*EP, "--ep-num-redundant-experts", "28"], ["28", "24", "all 8 experts"]),
    ([*EP, "--ep-num-redundant-experts", "-1"], ["--ep-num-redundant-experts", "-1"]),
    ([*EP, "--expert-distribution-recorder-mode", "per_token"], ["per_token", "per_pass"]),
    ([*EP, "--moe-a2a-backend", "mooncake"], ["--moe-a2a-backend mooncake", "deepep", "fuseep"]),
    ([*EP, "--deepep-config", "a.json"], ["--deepep-config", "processors"]),
    ([*A2A, "--deepep-mode", "low_latency"], ["1024 tokens", "at most 512", "=128", "auto"]),
    ([*A2A, "--ep-num-redundant-experts", "3"], ["8 experts", "3 copies", "0 or 4"]),
    ([*EP, "--eplb-algorithm", "elasticity_aware"], ["--eplb-algorithm elasticity_aware"]),
    ([*EP, "--init-expert-location", "gone.pt"], ["gone.pt", "run code", ".json"]),
    ([*EP, "--init-expert-location", "gone.json"], ["gone.json"]),
    ([*EP, "--init-expert-location", "nonsense"], ["'nonsense'"]),
    ([*EP, "--init-expert-location", "[1]"], ["physical_to_logical_map", "logical_count"]),
    ([*EP, "--init-expert-location", '{"a": 1}'], ["physical_to_logical_map", "found a"]),
]


@pytest.mark.parametrize(("argv", "values"), REFUSED)
def test_impossible_layouts_are_refused(argv: list[str], values: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        started(*argv)
    text = str(raised.value)
    assert all(value in text for value in values), text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"physical_to_logical_map": TRIVIAL[1:]}, f"{LAYERS} layers"),
        ({"physical_to_logical_map": 7}, f"{LAYERS} layers"),
        ({"physical_to_logical_map": [[]] * LAYERS}, "layer 1 has 0 slots"),
        ({"physical_to_logical_map": [[*range(7), 8]] * LAYERS}, "expert 8 of 8"),
        ({"physical_to_logical_map": [[*range(7), 0]] * LAYERS}, "no slot for expert 7"),
        ({"physical_to_logical_map": [[*range(7), -1]] * LAYERS}, "-1"),
        ({"physical_to_logical_map": [[*range(7), True]] * LAYERS}, "true"),
        ({"physical_to_logical_map": [[*range(7), 1e3]] * LAYERS}, "1000.0"),
        ({"physical_to_logical_map": [[*range(7), [1]]] * LAYERS}, "[1]"),
        ({"logical_count": [[1] * 7] * LAYERS}, "7 counts of 8"),
        ({"logical_count": [[[1] * 8] * LAYERS, [[1] * 8]]}, f"{LAYERS} layers"),
        ({"logical_count": [[1 << 60] * 8] * LAYERS}, str(1 << 60)),
    ],
)
def test_bad_placements_are_refused(value: Any, said: str, tmp_path: Path) -> None:
    file = tmp_path / "place.json"
    file.write_text(json.dumps(value))
    for text in (str(file), json.dumps(value)):
        with pytest.raises(ConfigError) as raised:
            started(*EP, "--init-expert-location", text)
        assert said in str(raised.value) and "--init-expert-location" in str(raised.value)


def test_experts_are_asked_of_models_that_have_some() -> None:
    dense = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    for argv in (EP, ("--ep-dispatch-algorithm", "static")):
        with pytest.raises(ConfigError, match="experts"):
            started(*argv, **dense)
    assert started("--moe-a2a-backend", "none", **dense)


def test_a_placement_is_read_from_a_file_or_the_flag(tmp_path: Path) -> None:
    order = [[7, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0, 0]] * LAYERS
    file = tmp_path / "place.json"
    file.write_text(json.dumps({"physical_to_logical_map": order}))
    for text in (str(file), file.read_text()):
        config = started(*EP, "--ep-num-redundant-experts", "4", "--init-expert-location", text)
        assert placed(config) == tuple(map(tuple, order))
        assert config.experts.ep_dispatch_algorithm == "static"
    assert placed(started(*EP)) is None


def test_a_placement_is_made_of_counts() -> None:
    table = [[100, 1, 1, 1, 1, 1, 1, 1]] * LAYERS
    for counts in (table, [table, table]):
        text = json.dumps({"logical_count": counts})
        found = placed(
            started(*EP, "--ep-num-redundant-experts", "4", "--init-expert-location", text)
        )
        assert len(found) == LAYERS and all(row.count(0) == 5 for row in found)
        assert all({0} <= set(row[at : at + 3]) for row in found for at in range(0, 12, 3))


def test_what_follows_from_what_was_given() -> None:
    config = started(*EP, "--enable-eplb", "--eplb-rebalance-num-iterations", "7")
    assert config.experts.expert_distribution_recorder_mode == "stat"
    assert config.experts.ep_dispatch_algorithm == "static"
    assert config.experts.expert_distribution_recorder_buffer_size == 7
    config = started(*EP, "--expert-distribution-recorder-mode", "stat_approx")
    assert config.experts.expert_distribution_recorder_mode == "stat"
    assert config.experts.expert_distribution_recorder_buffer_size == 1000
    assert not any("dispatch" in notice for notice in started(*EP, "--enable-eplb").notices)
    fake = started(*EP, "--ep-dispatch-algorithm", "fake")
    assert any("fake" in notice for notice in fake.notices)
    unheard = (["--eplb-algorithm", "deepseek"], ["--ep-dispatch-algorithm", "dynamic"])
    for flag in unheard:
        assert any(flag[0] in notice for notice in started(*EP, *flag).notices), flag


LOADS = st.lists(st.integers(0, 1000), min_size=1, max_size=24)


@given(st.data())
def test_a_balanced_placement_is_one(data: st.DataObject) -> None:
    nodes, devices = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 12))
    groups = data.draw(st.sampled_from([1, nodes, 2 * nodes]))
    experts = groups * data.draw(st.integers(1, 4))
    slots = -(-experts // devices) * devices + devices * data.draw(st.integers(0, 3))
    loads = data.draw(st.lists(st.integers(0, 999), min_size=experts, max_size=experts))
    room = ExpertDevices(slots=slots, devices=devices, nodes=nodes, groups=groups)
    for algorithm in ("auto", "deepseek", "deepseek_hierarchical"):
        found = place_experts(loads, room, algorithm)
        assert found == place_experts(loads, room, algorithm)
        assert len(found) == slots and set(found) == set(range(experts))
        if algorithm != "deepseek" and groups % nodes == devices % nodes == 0:
            of_node = {
                expert // (experts // groups): slot // (slots // nodes)
                for slot, expert in enumerate(found)
            }
            for slot, expert in enumerate(found):
                assert of_node[expert // (experts // groups)] == slot // (slots // nodes)


@given(LOADS, st.integers(0, 20))
def test_copies_go_where_one_has_most_to_do(loads: list[int], more: int) -> None:
    found = replicate(loads, len(loads) + more)
    copies = [found.count(at) for at in range(len(loads))]
    assert len(found) == len(loads) + more and min(copies) >= 1
    worst = max(load / count for load, count in zip(loads, copies, strict=True))
    for load, count in zip(loads, copies, strict=True):
        assert count == 1 or load / (count - 1) >= worst - 1e-9


@given(st.integers(1, 6), st.data())
def test_packs_have_as_many_items_and_are_near_the_mean(packs: int, data: st.DataObject) -> None:
    each = data.draw(st.integers(1, 5))
    loads = data.draw(st.lists(st.integers(0, 100), min_size=packs * each, max_size=packs * each))
    found = pack(loads, packs)
    assert sorted(item for one in found for item in one) == list(range(len(loads)))
    assert {len(one) for one in found} == {each}
    sums = [sum(loads[item] for item in one) for one in found]
    assert max(sums) - min(sums) <= max(loads) * each


def test_the_published_example() -> None:
    """Of DeepSeek's repository: 2 layers, 12 experts in 4 groups, 16 slots, 2 nodes, 8 devices."""
    loads = [
        [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
        [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
    ]
    room = ExpertDevices(slots=16, devices=8, nodes=2, groups=4)
    assert [list(place_experts(one, room)) for one in loads] == [
        [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
        [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
    ]


def test_balance_is_measured() -> None:
    assert utilization([1, 2, 3, 4], 2) == pytest.approx(5 / 7)
    assert utilization([0, 0], 2) == 1.0
