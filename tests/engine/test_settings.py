"""Engine settings from a resolved configuration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vivace.engine.settings import EngineSettings, settings_of
from vivace.protocol.control import Capacity

CAPACITY = Capacity(pages=100, page_size=4, rows=32, context=128, vocabulary=50)


def config(environment: dict[str, str] | None = None, **changes: Any) -> Any:
    """What settings_of reads of a Config, with every flag at its default."""
    schedule = {
        "max_running_requests": None,
        "max_queued_requests": None,
        "prefill_max_requests": None,
        "chunked_prefill_size": 2048,
        "max_prefill_tokens": 16384,
        "schedule_policy": "fcfs",
        "enable_priority_scheduling": False,
        "schedule_low_priority_values_first": False,
        "priority_scheduling_preemption_threshold": 10,
        "abort_on_priority_when_disabled": False,
        "schedule_conservativeness": 1.0,
        "enable_mixed_chunk": False,
        "num_continuous_decode_steps": 1,
        "scheduler_recv_interval": 1,
    }
    memory = {"disable_radix_cache": False, "radix_eviction_policy": "lru"}
    runtime = {"random_seed": 5, "stream_interval": 1}
    logging = {
        "decode_log_interval": 40,
        "bucket_time_to_first_token": None,
        "bucket_inter_token_latency": [0.5, 1.0],
        "bucket_e2e_request_latency": None,
    }
    for part in (schedule, memory, runtime, logging):
        part.update({name: value for name, value in changes.items() if name in part})
    return SimpleNamespace(
        schedule=SimpleNamespace(**schedule),
        memory=SimpleNamespace(**memory),
        runtime=SimpleNamespace(**runtime),
        logging=SimpleNamespace(**logging),
        facts=SimpleNamespace(eos_ids=(2, 7)),
        depth=2,
        environment=environment or {},
    )


def test_flags_arrive() -> None:
    settings = settings_of(
        config(
            chunked_prefill_size=512,
            schedule_policy="lpm",
            enable_mixed_chunk=True,
            disable_radix_cache=True,
            max_queued_requests=9,
        ),
        CAPACITY,
    )
    assert (settings.chunk, settings.policy, settings.mixed) == (512, "lpm", True)
    assert (settings.prefix_cache, settings.max_queued) == (False, 9)
    assert (settings.eos_ids, settings.depth, settings.rows) == ((2, 7), 2, 32)
    assert settings.inter_token_latency_buckets == (0.5, 1.0)


def test_rows_are_limited_by_the_device() -> None:
    assert settings_of(config(max_running_requests=8), CAPACITY).rows == 8
    assert settings_of(config(max_running_requests=800), CAPACITY).rows == 32


def test_minus_one_turns_chunking_off() -> None:
    assert settings_of(config(chunked_prefill_size=-1), CAPACITY).chunk is None


def test_recognised_variables_change_the_estimate_and_the_timeouts() -> None:
    settings = settings_of(
        config(
            {
                "SGLANG_INIT_NEW_TOKEN_RATIO": "0.5",
                "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "100",
                "SGLANG_REQ_WAITING_TIMEOUT": "30",
                "SGLANG_REQ_RUNNING_TIMEOUT": "-1",
                "SGLANG_TEST_RETRACT": "true",
            }
        ),
        CAPACITY,
    )
    assert (settings.initial_ratio, settings.clip_new_tokens) == (0.5, 100)
    assert (settings.waiting_timeout, settings.running_timeout) == (30.0, None)
    assert settings.retract_every == 3
    assert settings_of(config(), CAPACITY).retract_every == 0


def test_a_variable_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match="SGLANG_RETRACT_DECODE_STEPS='many'"):
        settings_of(config({"SGLANG_RETRACT_DECODE_STEPS": "many"}), CAPACITY)


def test_defaults_are_sglangs() -> None:
    settings = EngineSettings()
    assert (settings.initial_ratio, settings.final_ratio_factor) == (0.7, 0.14)
    assert (settings.ratio_decay_steps, settings.clip_new_tokens) == (600, 4096)
    assert settings.max_prefill_tokens == 16384
