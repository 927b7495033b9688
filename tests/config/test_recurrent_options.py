"""Flags of states of recurrent layers, and what does not go with such layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from draft_head_toys import RECURRENT_MODEL, ReferenceNextn
from served_toy import write_byte_tokenizer, write_toy_llama
from toy_models import make

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.source import locate
from vivace.config.config import Config, all_options
from vivace.config.errors import ConfigError
from vivace.config.parsing import from_arguments
from vivace.engine.settings import engine_settings
from vivace.errors import CannotStart
from vivace.launch.configure import configure
from vivace.models.facts import read_facts
from vivace.worker.build import build_worker

STATES = "max_mamba_cache_size"


def silent(stage: str, fraction: float) -> None:
    """Progress that nobody watches."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recurrent")
    ReferenceNextn(make("Qwen3Next", folder, **RECURRENT_MODEL), folder)
    write_byte_tokenizer(folder)
    return folder


def configured(model: Path, **flags: Any) -> Config:
    usual = {"page_size": 16, "max_total_tokens": 2048, "max_running_requests": 4}
    return configure(from_arguments(model_path=str(model), **{**usual, **flags}))


@pytest.mark.parametrize(
    ("flags", "saved", "interval"),
    [
        ({}, 4 + 8, 256),
        ({"mamba_track_interval": 64}, 4 + 32, 64),
        ({"max_mamba_cache_size": 5}, 5, 256),
        ({"max_mamba_cache_size": 5000}, 12, 256),
    ],
)
def test_states_are_saved_as_flags_say(
    model: Path, flags: dict[str, Any], saved: int, interval: int
) -> None:
    config = configured(model, **flags)
    worker = build_worker(config, silent)
    (group,) = worker.capacity.others
    assert (group.pages, group.state) == (saved, True)
    assert engine_settings(config, worker.capacity).state_interval == interval
    told = {one.field: one.after for one in worker.capacity.rewrites}
    assert told.get("max_mamba_cache_size") == (12 if flags.get(STATES) == 5000 else None)


@pytest.mark.parametrize("ratio", [0.0, -1.0, float("nan"), float("inf")])
def test_a_ratio_is_a_positive_number(model: Path, ratio: float) -> None:
    with pytest.raises(ConfigError, match="ratio"):
        configured(model, mamba_full_memory_ratio=ratio)


def test_the_ratio_divides_the_pool(model: Path) -> None:
    config = configured(model, mamba_full_memory_ratio=0.001, max_running_requests=100)
    capacity = build_worker(config, silent, share=600 << 20).capacity
    told = {one.field: one.reason for one in capacity.rewrites}
    assert capacity.rows < 20 and "--mamba-full-memory-ratio" in told["max_running_requests"]


def test_who_lowers_requests_says_what_each_has(model: Path) -> None:
    flags = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 8}
    few = {"mamba_full_memory_ratio": 0.001, "max_running_requests": 100}
    told = list[str]()
    for asked in (few, {**few, **flags}, {**few, "disable_radix_cache": True}):
        worker = build_worker(configured(model, **asked), silent, share=600 << 20)
        reasons = {one.field: one.reason for one in worker.capacity.rewrites}
        told.append(reasons["max_running_requests"])
    plain, drafting, bare = told
    assert "has 3 states of" in plain and "behind" not in plain
    assert "has 10 states of" in drafting and "(7 behind drafts)" in drafting
    assert "has 2 states of" in bare


def test_help_says_what_the_default_is(model: Path) -> None:
    (known,) = (one.help for one in all_options() if one.name == STATES)
    assert "one for each running request and --mamba-track-interval tokens of the pool" in known
    (group,) = build_worker(configured(model, max_total_tokens=512), silent).capacity.others
    assert group.pages == 4 + 512 // 256


def test_without_the_prefix_cache_no_states_are_saved(model: Path) -> None:
    config = configured(model, disable_radix_cache=True, max_mamba_cache_size=5)
    assert [one for one in config.notices if "no state is saved" in one] == [
        "--max-mamba-cache-size has no effect: with --disable-radix-cache no state is saved"
    ]
    worker = build_worker(config, silent)
    assert [group.pages for group in worker.capacity.others] == [0]


def test_states_are_float32(model: Path) -> None:
    told = configured(model, mamba_ssm_dtype="bfloat16").notices
    assert any("kept in float32" in one for one in told)


def test_the_backend_of_the_first_release_with_such_layers_has_no_effect(model: Path) -> None:
    (told,) = configured(model, attention_backend="hybrid_linear_attn").notices
    assert told.startswith("--attention-backend has no effect")


def test_intervals_are_whole_pages(model: Path) -> None:
    told = configured(model, mamba_track_interval=40).notices
    assert any("--mamba-track-interval 40 means 48" in one for one in told)


def test_drafts_have_states_that_are_sized(model: Path) -> None:
    plain, drafting = (
        build_worker(configured(model, **flags), silent).capacity.others[0].kv_bytes
        for flags in ({}, {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 4})
    )
    state = plain // (12 + 4 * 2 + 2)
    assert drafting == state * (12 + 4 * 5 + 2)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"max_mamba_cache_size": 0}, "max-mamba-cache-size"),
        ({"mamba_track_interval": 0}, "mamba-track-interval"),
        (
            {"speculative_algorithm": "NGRAM", "speculative_ngram_min_bfs_breadth": 2},
            "speculative-ngram-min-bfs-breadth 1",
        ),
        (
            {"speculative_algorithm": "NGRAM", "speculative_ngram_max_bfs_breadth": 4},
            "speculative-ngram-max-bfs-breadth 1",
        ),
        (
            {"speculative_algorithm": "NEXTN", "speculative_eagle_topk": 2},
            "speculative-eagle-topk 1",
        ),
    ],
)
def test_what_does_not_go_with_states_is_refused(
    model: Path, flags: dict[str, Any], words: str
) -> None:
    with pytest.raises(CannotStart, match=words):
        configured(model, **flags)


def test_such_a_model_does_not_draft(model: Path, tmp_path: Path) -> None:
    target = write_toy_llama(tmp_path)
    flags = {"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": str(model)}
    with pytest.raises(CannotStart, match="state"):
        configured(target, **flags)


def test_flags_without_such_layers_have_no_effect(tmp_path: Path) -> None:
    told = configured(write_toy_llama(tmp_path), mamba_track_interval=64).notices
    assert any("--mamba-track-interval has no effect" in one for one in told)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"linear_num_value_heads": 3}, "linear_num_value_heads"),
        ({"linear_num_value_heads": 65536, "linear_value_head_dim": 512}, "linear_num_value_heads"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
        ({"linear_key_head_dim": 0}, "linear_key_head_dim"),
        ({"full_attention_interval": 0}, "full_attention_interval"),
        ({"layer_types": ["mamba"] * 4}, "layer_types"),
        ({"layer_types": ["linear_attention"]}, "layer_types"),
    ],
)
def test_nonsense_in_a_configuration_is_named(
    model: Path, keys: dict[str, Any], named: str
) -> None:
    with pytest.raises(SourceError, match=named):
        read_facts(locate(str(model), overrides=keys))
