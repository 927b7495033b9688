"""Drafts of n-grams in an engine inside of a program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served_toy import write_toy_llama

import vivace

FLAGS: dict[str, Any] = {
    "cpu_threads": 1,
    "max_total_tokens": 1024,
    "context_length": 256,
    "skip_tokenizer_init": True,
}
PROMPTS = [[5, 6, 7, 8, 9], [11, 12], [30, 31, 30, 31]]
SAMPLING = [
    {"temperature": temperature, "max_new_tokens": 60, "ignore_eos": True, "sampling_seed": 3}
    for temperature in (0, 0.5, 0)
]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_llama(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def wanted(toy: Path) -> list[list[int]]:
    with vivace.Engine(toy, **FLAGS) as engine:
        answers: Any = engine.generate(input_ids=PROMPTS, sampling_params=SAMPLING)
    return [one["output_ids"] for one in answers]


@pytest.fixture(params=[{}, {"disable_cpu_kernels": True, "speculative_ngram_match_type": "PROB"}])
def engine(toy: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    drafts = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 5}
    with vivace.Engine(toy, **FLAGS, **drafts, **request.param) as engine:
        yield engine


def test_answers_are_the_same_and_tell_how_drafts_fared(
    engine: Any, wanted: list[list[int]]
) -> None:
    answers = engine.generate(input_ids=PROMPTS, sampling_params=SAMPLING)
    assert [one["output_ids"] for one in answers] == wanted
    again = engine.generate(input_ids=PROMPTS[:1], sampling_params=SAMPLING[:1])
    assert again[0]["output_ids"] == wanted[0], "other requests' texts are in the index now"
    meta = again[0]["meta_info"]
    assert meta["spec_verify_ct"] < 60 and meta["spec_accept_length"] > 1
