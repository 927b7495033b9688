"""Several engines and ranks: what the start says of their number, their cores and their shares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from config_kit import PLATFORM, SOURCE, resolved
from toy_config import LLAMA

from vivace.config.config import Config
from vivace.config.errors import ConfigError
from vivace.config.parallelism import engine_rows
from vivace.config.parsing import parse
from vivace.config.resolution import resolve
from vivace.models.pooling.facts import read_served_facts

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
DIVISIBLE = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "hidden_size": 64,
    "intermediate_size": 128,
}


def started(changes: dict[str, Any], *argv: str) -> Config:
    source = replace(SOURCE, config={**LLAMA, **changes})
    platform = replace(PLATFORM, features=PLATFORM.features | {"kernels"})
    return resolve(parse(argv, {}), source, read_served_facts(source), platform)


def said(config: Config, text: str) -> bool:
    return any(text in line for line in config.notices)


@pytest.mark.parametrize(
    ("argv", "crowded"),
    [
        ([], ""),
        (["--dp-size", "4"], ""),
        (["--tp-size", "2", "--dp-size", "2"], ""),
        (["--dp-size", "5"], "(--dp-size)"),
        (["--tp-size", "2", "--dp-size", "4"], "(--dp-size times --tp-size)"),
    ],
)
def test_more_workers_than_cores_are_said(argv: list[str], crowded: str) -> None:
    config = started(DIVISIBLE, *argv)
    assert said(config, f"{crowded} share {PLATFORM.cores} cores") is bool(crowded)
    assert said(config, "--tp-size 2") is ("--tp-size" in argv and argv[1] == "2")


def test_one_engine_needs_no_balance() -> None:
    balance = ["--load-balance-method", "total_tokens"]
    assert said(resolved(*balance), "--load-balance-method has no effect")
    assert not said(resolved(*balance, "--dp-size", "2"), "--load-balance-method")
    assert not said(resolved(), "--load-balance-method")


def test_attention_groups_of_one_size_and_for_several_engines() -> None:
    together = ["--enable-dp-attention", "--tp-size", "4"]
    assert started(DIVISIBLE, *together, "--dp-size", "2").parallel.dp_size == 2
    assert said(started(DIVISIBLE, *together), "--enable-dp-attention has no effect")
    with pytest.raises(ConfigError, match=r"--enable-dp-attention: .* dp 3"):
        started(DIVISIBLE, *together, "--dp-size", "3")
    apart = started(DIVISIBLE, "--dp-size", "4", "--tp-size", "4", "--enable-dp-attention")
    assert not said(apart, "16 workers") and not said(apart, "share")


def test_an_encoder_is_divided_by_heads_and_layers_only() -> None:
    """Not by requests: it keeps nothing that engines could divide."""
    encoder = {**DIVISIBLE, "architectures": ["BertModel"], "model_type": "bert"}
    config = started(encoder, "--tp-size", "4", "--pp-size", "2")
    assert config.schedule.chunked_prefill_size == -1
    with pytest.raises(ConfigError, match="heads"):
        started(encoder, "--tp-size", "3")
    with pytest.raises(ConfigError, match="--enable-dp-attention"):
        started(encoder, "--tp-size", "4", "--dp-size", "2", "--enable-dp-attention")


@pytest.mark.parametrize(
    ("argv", "rows"),
    [
        ([], 9),
        (["--dp-size", "2"], 9),
        (["--tp-size", "4", "--dp-size", "2", "--enable-dp-attention"], 4),
        (["--tp-size", "4", "--dp-size", "4", "--enable-dp-attention"], 2),
    ],
)
def test_engines_with_dp_attention_divide_the_running_requests(argv: list[str], rows: int) -> None:
    config = started(DIVISIBLE, "--max-running-requests", "9", *argv)
    assert engine_rows(config) == rows
    assert said(config, f"each runs {rows}") is (rows < 9)
    assert not said(started(DIVISIBLE, "--max-running-requests", "8", *argv), "each runs")


def test_every_engine_runs_a_request() -> None:
    flags = ["--tp-size", "4", "--dp-size", "4", "--enable-dp-attention"]
    assert engine_rows(started(DIVISIBLE, *flags)) == PLATFORM.max_running_requests // 4
    with pytest.raises(ConfigError, match=r"--max-running-requests 3: .* 4$"):
        started(DIVISIBLE, *flags, "--max-running-requests", "3")


def test_heads_are_divided_in_an_attention_group_and_widths_among_all() -> None:
    flags = ["--enable-dp-attention", "--tp-size", "8", "--dp-size"]
    assert started(DIVISIBLE, *flags, "2").parallel.tp_size == 8, "4 heads, 8 ranks"
    with pytest.raises(ConfigError, match="--tensor-parallel-size 8"):
        started({**DIVISIBLE, "intermediate_size": 132}, *flags, "2")


def test_a_rank_gets_an_even_number_of_inputs() -> None:
    assert started({**DIVISIBLE, "intermediate_size": 136}, "--tp-size", "4").parallel.tp_size == 4
    with pytest.raises(ConfigError, match=r"--tensor-parallel-size 4: .* 132 .* 1, 2 devices"):
        started({**DIVISIBLE, "intermediate_size": 132}, "--tp-size", "4")


def test_no_number_of_devices_is_said() -> None:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    kind = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
    with pytest.raises(ConfigError, match="4 heads, "):
        started({**DIVISIBLE, **kind, **experts}, "--tp-size", "8", "--ep-size", "8")


def test_vectors_come_without_hidden_states() -> None:
    hidden = ["--enable-return-hidden-states"]
    assert said(resolved("--is-embedding", *hidden), "no effect with --is-embedding")
    assert not said(resolved(*hidden), "--is-embedding")


@pytest.mark.parametrize("form", [AWQ, GPTQ])
def test_groups_that_devices_would_cut_are_refused_before_any_starts(form: dict[str, Any]) -> None:
    changes = {**DIVISIBLE, "quantization_config": form}
    assert started(changes, "--tp-size", "2").parallel.tp_size == 2
    with pytest.raises(ConfigError, match=r"--tensor-parallel-size 4: 64 .* 32"):
        started(changes, "--tp-size", "4")
    with pytest.raises(ConfigError, match=r"--tensor-parallel-size 2: 96 .* 32"):
        started({**changes, "intermediate_size": 96}, "--tp-size", "2")


def test_blocks_of_fp8_stay_whole_and_one_scale_is_every_devices() -> None:
    fp8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    blocks = {**fp8, "weight_block_size": [128, 128]}
    wide = {**DIVISIBLE, "intermediate_size": 512, "head_dim": 64, "quantization_config": blocks}
    assert started(wide, "--tp-size", "2").parallel.tp_size == 2
    with pytest.raises(ConfigError, match=r"--tensor-parallel-size 4: 256 .* 128 .* 1, 2"):
        started(wide, "--tp-size", "4")
    whole = {**DIVISIBLE, "quantization_config": fp8}
    assert started(whole, "--tp-size", "4").parallel.tp_size == 4


@pytest.mark.parametrize("more", [{"group_size": -1}, {"desc_act": True}])
def test_one_group_and_ordered_inputs_are_every_devices(more: dict[str, Any]) -> None:
    changes = {**DIVISIBLE, "quantization_config": {**GPTQ, **more}}
    assert started(changes, "--tp-size", "4").parallel.tp_size == 4


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        (["--attn-cp-size", "2"], "yet"),
        (["--ep-size", "2"], "tp 1"),
    ],
)
def test_what_is_not_divided_yet_says_what_is(flags: list[str], remedy: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolved(*flags)
    assert remedy in str(refused.value)


FIXED = "--enable-deterministic-inference"
WIDE = {**DIVISIBLE, "num_attention_heads": 16, "num_key_value_heads": 16, "hidden_size": 256}
WIDE["intermediate_size"] = 256


def test_sums_in_one_order_need_ranks_with_whole_segments() -> None:
    """24 at most, of 16 heads 8."""
    assert started(WIDE, "--tp-size", "16").parallel.tp_size == 16
    assert started(WIDE, "--tp-size", "8", FIXED).parallel.tp_size == 8
    with pytest.raises(ConfigError, match=FIXED):
        started(WIDE, "--tp-size", "16", FIXED)


def test_torch_adds_in_one_order_on_one_device_only() -> None:
    slow = ["--disable-cpu-kernels", "--tp-size", "2"]
    assert said(started(WIDE, *slow, FIXED), FIXED)
    assert said(started(WIDE, "--disable-cpu-kernels", FIXED), FIXED)
    assert not said(started(WIDE, *slow), FIXED)
    assert started(WIDE, "--disable-cpu-kernels", "--tp-size", "16", FIXED).parallel.tp_size == 16
