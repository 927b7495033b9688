"""Availability, checks and rewrites: nothing is silent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from config_kit import PLATFORM, SOURCE, resolved
from toy_config import LLAMA

from vivace.config.checks import NEEDED
from vivace.config.config import Config, all_options
from vivace.config.errors import ConfigError
from vivace.config.option import PLATFORMS, Support
from vivace.config.parsing import parse
from vivace.config.resolution import resolve
from vivace.config.serialize import decode, encode, public
from vivace.models.config_fields import TABLE
from vivace.models.facts import read_facts

DP = ("--tp", "2", "--dp", "2", "--enable-dp-attention")
WORKING = """
model_path tokenizer_path tokenizer_worker_num skip_tokenizer_init dtype context_length
chat_template served_model_name json_model_override_args host port api_key fastapi_root_path
mem_fraction_static
max_running_requests max_queued_requests max_total_tokens chunked_prefill_size
max_prefill_tokens schedule_policy enable_priority_scheduling schedule_conservativeness
page_size enable_mixed_chunk
radix_eviction_policy device random_seed stream_interval watchdog_timeout soft_watchdog_timeout
log_level log_requests log_requests_level log_requests_format decode_log_interval enable_metrics
crash_dump_folder disable_radix_cache disable_overlap_schedule
enable_deterministic_inference load_format tokenizer_mode
""".split()


def test_every_option_has_a_state_everywhere_and_help() -> None:
    for option in all_options():
        assert set(option.states) == set(PLATFORMS), option.name
        assert option.help, option.name
        for state in option.states.values():
            assert state.kind is Support.WORKS or state.why, option.name


def test_what_this_version_promises_works() -> None:
    states = {option.name: option.states["cpu"].kind for option in all_options()}
    assert {name: states[name] for name in WORKING} == dict.fromkeys(WORKING, Support.WORKS)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--tp", "7"], ["--tensor-parallel-size 7", "devices only"]),
        (["--tp", "65"], ["--tensor-parallel-size", "64"]),
        (["--enable-lora"], ["--enable-lora is not available", "merge the adapter"]),
        (["--disaggregation-mode", "decode"], ["--disaggregation-mode decode", "not available"]),
        (["--load-format", "pt"], ["--load-format pt", "pickled"]),
        (["--radix-eviction-policy", "slru"], ["use lru or lfu"]),
        (["--kv-cache-dtype", "fp8_e4m3"], ["--kv-cache-dtype fp8_e4m3", "use int8"]),
        (
            ["--kv-cache-dtype", "int8", "--disable-cpu-kernels"],
            ["--kv-cache-dtype int8", "float32"],
        ),
        (["--host", "0.0.0.0"], ["--api-key", "--insecure"]),
        (["--host", "127.0.0.1:8000"], ["--host 127.0.0.1 --port 8000"]),
        (["--host", "0.0.0.0:80", "--api-key", "k"], ["--host 0.0.0.0 --port 80"]),
        (["--context-length", "1000"], ["512", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"]),
        (["--page-size", "16", "--chunked-prefill-size", "100"], ["multiple", "96"]),
        ([*DP, "--page-size", "16", "--chunked-prefill-size", "48"], ["2 engines", "use 32"]),
        (["--served-model-name", "a:b"], ["':'"]),
        (["--enable-priority-scheduling", "--schedule-policy", "lpm"], ["fcfs"]),
        (["--mem-fraction-static", "1.5"], ["0.99"]),
        (["--chunked-prefill-size", "0"], ["-1"]),
        (["--port", "70000"], ["65535"]),
        (["--log-level", "loud"], ["warning"]),
        (["--constrained-json-whitespace-pattern", "a"], ["whitespace", "blanks"]),
        (["--constrained-json-whitespace-pattern", "[^a]"], ["whitespace", "blanks"]),
        (["--model-path", "a\udcfc"], ["--model-path", "PYTHONUTF8"]),
        (["--preferred-sampling-params", "[1]"], ["object"]),
        (["--quantization", "gguf"], ["safetensors"]),
        (["--bucket-time-to-first-token", "2", "1"], ["--bucket-time-to-first-token"]),
    ],
)
def test_what_cannot_be_stops_with_the_reason(argv: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(*argv)
    assert all(word in str(caught.value) for word in words), caught.value


def test_values_that_ask_for_nothing_pass() -> None:
    argv = "--tp 1 --dp 1 --ep 1 --pp-size 1 --nnodes 1 --node-rank 0 --disaggregation-mode null"
    assert resolved(*argv.split()).notices == ()


def test_no_effect_is_told() -> None:
    notices = resolved("--trust-remote-code", "--attention-backend", "ascend").notices
    assert any("--trust-remote-code" in n and "never run" in n for n in notices)
    assert any("--attention-backend" in n for n in notices)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--grammar-backend outlines", "outlines has no effect"),
        (
            "--constrained-json-whitespace-pattern \\n* --constrained-json-disable-any-whitespace",
            "with --constrained-json-disable-any-whitespace",
        ),
        ("--priority-scheduling-preemption-threshold 3", "without --enable-priority-scheduling"),
        ("--schedule-low-priority-values-first", "without --enable-priority-scheduling"),
        ("--log-requests-level 3", "without --log-requests"),
        ("--bucket-inter-token-latency 1 2", "without --enable-metrics"),
        ("--watchdog-timeout 5 --soft-watchdog-timeout 9", "after 5 seconds"),
        ("--enable-priority-scheduling --abort-on-priority-when-disabled", "priorities are on"),
    ],
)
def test_flags_that_the_others_leave_nothing_to_do(argv: str, words: str) -> None:
    (notice,) = resolved(*argv.split()).notices
    assert "has no effect" in notice and words in notice


def test_more_threads_than_cores_are_lowered() -> None:
    cores = resolved().platform.cores
    config = resolved("--cpu-threads", str(cores + 97))
    (rewrite,) = [one for one in config.rewrites if one.field == "cpu_threads"]
    assert (rewrite.before, rewrite.after) == (cores + 97, cores)
    assert config.runtime.cpu_threads == cores
    assert resolved("--cpu-threads", str(cores)).runtime.cpu_threads == cores


def test_a_watchdog_that_a_step_would_wake_is_raised() -> None:
    runtime = resolved("--watchdog-timeout", "0.001", "--soft-watchdog-timeout", "1e-3").runtime
    assert (runtime.watchdog_timeout, runtime.soft_watchdog_timeout) == (2.0, 1.0)
    runtime = resolved("--watchdog-timeout", "0", "--soft-watchdog-timeout", "0").runtime
    assert (runtime.watchdog_timeout, runtime.soft_watchdog_timeout) == (0, 0)


@pytest.mark.parametrize(
    ("argv", "today"),
    [
        ("--oltp-traces-endpoint h:1", "--otlp-traces-endpoint h:1"),
    ],
)
def test_the_refusal_of_a_retired_spelling_names_what_was_typed(argv: str, today: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(*argv.split())
    assert today in str(caught.value) and f"given as {argv.split()[0]}," in str(caught.value)


def test_flags_that_are_needed_are_switches() -> None:
    known = {option.name: option for option in all_options()}
    switches = [known[name] for name in NEEDED.values()]
    assert all(one.shape == "bool" or one.default is None for one in switches)
    assert (
        resolved("--schedule-policy", "priority", "--schedule-low-priority-values-first").notices
        == ()
    )


def test_rewrites_are_recorded_with_their_reason() -> None:
    config = resolved("--schedule-policy", "lpm", "--disable-radix-cache")
    by_field = {rewrite.field: rewrite for rewrite in config.rewrites}
    assert config.schedule.schedule_policy == "fcfs"
    assert by_field["schedule_policy"].before == "lpm"
    assert "prefix" in by_field["schedule_policy"].reason
    assert config.model.dtype == "float32" and by_field["dtype"].before == "auto"
    assert all(rewrite.reason and rewrite.before != rewrite.after for rewrite in config.rewrites)


def test_numbers_are_settled() -> None:
    config = resolved()
    assert config.memory.page_size == 16
    assert config.model.context_length == 512
    assert config.schedule.chunked_prefill_size == 1024
    assert config.runtime.random_seed is not None
    assert config.logging.log_level_http == "info"
    for chunk, each in (("256", 128), ("-1", -1)):
        config = resolved(*DP, "--chunked-prefill-size", chunk)
        assert config.schedule.chunked_prefill_size == each
    assert resolved(*DP).schedule.chunked_prefill_size == 512


def test_items_of_a_query_share_it_to_its_last_token() -> None:
    assert resolved("--enable-mis").memory.page_size == 1
    assert resolved("--enable-mis", "--page-size", "16").memory.page_size == 16
    assert resolved("--enable-mis", "--is-embedding").memory.page_size == 16


def test_own_choices_are_kept() -> None:
    argv = "--page-size 1 --dtype bfloat16 --context-length 64 --random-seed 9 --cpu-threads 1"
    config = resolved(*argv.split())
    assert (config.memory.page_size, config.model.dtype) == (1, "bfloat16")
    assert {r.field for r in config.rewrites}.isdisjoint(
        {"page_size", "dtype", "context_length", "random_seed", "cpu_threads"}
    )


def test_environment_has_three_states() -> None:
    config = resolved(
        environ={
            "SGLANG_REQ_WAITING_TIMEOUT": "5",
            "SGLANG_ENABLE_SPEC_V2": "1",
            "SGLANG_REQ_WAITNG_TIMEOUT": "5",
            "HOME": "/root",
        }
    )
    assert config.environment == {"SGLANG_REQ_WAITING_TIMEOUT": "5"}
    assert any("SGLANG_ENABLE_SPEC_V2=1 has no effect" in n for n in config.notices)
    assert any("did you mean SGLANG_REQ_WAITING_TIMEOUT" in n for n in config.notices)


def test_longer_context_on_request() -> None:
    config = resolved(
        "--context-length", "1000", environ={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    )
    assert config.model.context_length == 1000
    assert any("degrade" in notice for notice in config.notices)


def stretched(changes: dict[str, Any], *argv: str) -> Config:
    source = replace(SOURCE, config={**LLAMA, **changes})
    return resolve(parse(argv, {}), source, read_facts(source), PLATFORM)


ORIGINAL = {"original_max_position_embeddings": 128}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL}


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        ({"type": "linear", "factor": 4.0}, 2048),
        ({"rope_type": "linear", "factor": 2}, 1024),
        ({"type": "dynamic", "factor": 2.5}, 1280),
        ({"type": "linear", "factor": 4.0, **ORIGINAL}, 512),
        ({"type": "linear", "factor": 1.0}, 512),
        ({"rope_type": "yarn", "factor": 4.0}, 512),
        ({"rope_type": "llama3", "factor": 4.0, **LLAMA3}, 512),
    ],
)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_a_scaling_that_may_be_for_more_is_said(
    key: str, scaling: dict[str, Any], longest: int
) -> None:
    """`longest` is what SGLang 0.5.10 takes for the context (`get_context_length`): here it is
    served to who asks for it, and nobody else."""
    config = stretched({key: scaling})
    assert config.model.context_length == 512
    said = [line for line in config.notices if f"--context-length {longest}" in line]
    assert len(said) == (longest > 512) and all(f"{key}.factor" in line for line in said)
    asked = stretched({key: scaling}, "--context-length", str(longest))
    assert asked.model.context_length == asked.facts.context == longest
    assert not any("--context-length" in line for line in asked.notices)
    with pytest.raises(ConfigError, match="--context-length"):
        stretched({key: scaling}, "--context-length", str(longest + 1))


def test_gemma3s_context_is_behind_its_scaling() -> None:
    changes = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}
    scaling = {"rope_type": "linear", "factor": 8.0}
    config = stretched({**changes, "rope_scaling": scaling})
    assert config.facts.stretch is None and config.model.context_length == 512


def test_a_context_has_room_for_a_prompt_and_a_token() -> None:
    """The warm-up is the first to need both."""
    with pytest.raises(ConfigError, match="--context-length"):
        resolved("--context-length", "1")
    assert resolved("--context-length", "2").model.context_length == 2
    with pytest.raises(ValueError):
        TABLE["max_position_embeddings"].read(1)


def test_config_travels_and_secrets_stay_inside() -> None:
    config = resolved("--api-key", "sesame-1", "--admin-api-key", "sesame-2", "--random-seed", "1")
    assert decode(encode(config)) == config
    shown = repr(config) + repr(public(config))
    assert "sesame" not in shown
    assert public(config)["page_size"] == 16


def test_items_share_the_query_although_the_prefix_cache_is_off() -> None:
    config = resolved("--enable-mis", "--disable-radix-cache")
    (rewrite,) = [one for one in config.rewrites if one.field == "disable_radix_cache"]
    assert config.memory.disable_radix_cache is False and "--enable-mis" in rewrite.reason
    assert resolved("--disable-radix-cache").memory.disable_radix_cache
    assert resolved(
        "--enable-mis", "--disable-radix-cache", "--is-embedding"
    ).memory.disable_radix_cache
