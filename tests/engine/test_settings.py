"""Engine settings from a resolved configuration."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from vivace.config.mamba import MambaOptions
from vivace.config.memory import MemoryOptions
from vivace.config.observability import LoggingOptions
from vivace.config.parallel import ParallelOptions
from vivace.config.runtime import RuntimeOptions
from vivace.config.schedule import ScheduleOptions
from vivace.config.speculative import SpeculativeOptions
from vivace.engine.settings import EngineSettings, engine_settings
from vivace.protocol.messages import Capacity

CAPACITY = Capacity(pages=100, page_size=4, rows=32, context=128, vocabulary=50)


def config(environment: dict[str, str] | None = None, **changes: Any) -> Any:
    """What engine_settings reads of a Config; every option at its default but `changes`."""
    slices = {
        "schedule": ScheduleOptions(),
        "memory": MemoryOptions(),
        "runtime": RuntimeOptions(),
        "logging": LoggingOptions(),
        "parallel": ParallelOptions(),
        "mamba": MambaOptions(),
        "speculative": SpeculativeOptions(),
    }
    for name, value in changes.items():
        (owner,) = [part for part, options in slices.items() if hasattr(options, name)]
        slices[owner] = replace(slices[owner], **{name: value})
    facts = SimpleNamespace(eos_ids=(2, 7))
    return SimpleNamespace(
        **slices,
        facts=facts,
        depth=2,
        draft_width=0,
        draft_tree=None,
        draft=None,
        environment=environment or {},
    )


def test_flags_arrive() -> None:
    settings = engine_settings(
        config(
            chunked_prefill_size=512,
            schedule_policy="lpm",
            enable_mixed_chunk=True,
            disable_radix_cache=True,
            max_queued_requests=9,
            bucket_inter_token_latency=(0.5, 1.0),
        ),
        CAPACITY,
    )
    assert (settings.chunk, settings.policy, settings.mixed) == (512, "lpm", True)
    assert (settings.prefix_cache, settings.max_queued) == (False, 9)
    assert (settings.eos_ids, settings.depth, settings.rows) == ((2, 7), 2, 32)
    assert settings.inter_token_latency_buckets == (0.5, 1.0)


def test_rows_are_limited_by_the_device() -> None:
    assert engine_settings(config(max_running_requests=8), CAPACITY).rows == 8
    assert engine_settings(config(max_running_requests=800), CAPACITY).rows == 32


def test_minus_one_turns_chunking_off() -> None:
    assert engine_settings(config(chunked_prefill_size=-1), CAPACITY).chunk is None


def test_recognized_variables_change_the_estimate_and_the_timeouts() -> None:
    settings = engine_settings(
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
    assert engine_settings(config(), CAPACITY).retract_every == 0


def test_smoothing_may_be_nothing() -> None:
    name = "SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR"
    assert engine_settings(config({name: "0"}), CAPACITY).chunk_smoothing == 0.0
    assert engine_settings(config({name: "0.5"}), CAPACITY).chunk_smoothing == 0.5
    assert engine_settings(config(), CAPACITY).chunk_smoothing == 0.75


def test_a_variable_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match="SGLANG_RETRACT_DECODE_STEPS='many'"):
        engine_settings(config({"SGLANG_RETRACT_DECODE_STEPS": "many"}), CAPACITY)


def test_defaults_are_sglangs() -> None:
    settings = EngineSettings()
    assert (settings.initial_ratio, settings.final_ratio_factor) == (0.7, 0.14)
    assert (settings.ratio_decay_steps, settings.clip_new_tokens) == (600, 4096)
    assert settings.max_prefill_tokens == 16384
