"""Drafts of n-grams in an engine inside of a program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served_toy import write_toy_llama

import vivace
from vivace.errors import CannotStart
from vivace.platforms.cpu.facts import has_kernels

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


@pytest.fixture(
    params=[
        {"speculative_fixed_width": True},
        {"disable_cpu_kernels": True, "speculative_ngram_match_type": "PROB"},
        pytest.param(
            {"speculative_ngram_max_bfs_breadth": 4, "speculative_fixed_width": True},
            marks=pytest.mark.skipif(not has_kernels(), reason="trees need the kernels"),
        ),
    ]
)
def engine(toy: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    drafts = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 5}
    with vivace.Engine(toy, **FLAGS, **drafts, **request.param) as engine:
        yield engine


def test_answers_are_the_same_and_tell_how_drafts_fared(
    engine: Any, wanted: list[list[int]], request: pytest.FixtureRequest
) -> None:
    answers = engine.generate(input_ids=PROMPTS, sampling_params=SAMPLING)
    assert [one["output_ids"] for one in answers] == wanted
    again = engine.generate(input_ids=PROMPTS[:1], sampling_params=SAMPLING[:1])
    assert again[0]["output_ids"] == wanted[0], "other requests' texts are in the index now"
    meta = again[0]["meta_info"]
    fixed = "speculative_fixed_width" in request.node.callspec.params["engine"]
    if fixed or "spec_verify_ct" in meta:  # on a busy machine drafts may not pay
        assert meta["spec_verify_ct"] < 60 and meta["spec_accept_length"] > 1


def test_drafts_are_right_as_often_as_a_variable_says(
    toy: Path, wanted: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 4}
    for rate, least, most in (("0", 1, 1.1), ("0.6", 1.5, 3), ("1", 3.5, 4)):
        monkeypatch.setenv("VIVACE_TEST_DRAFTS", rate)
        with vivace.Engine(toy, **FLAGS, **drafts, speculative_fixed_width=True) as engine:
            first: Any = engine.generate(input_ids=PROMPTS, sampling_params=SAMPLING)
            again: Any = engine.generate(input_ids=PROMPTS, sampling_params=SAMPLING)
        assert [one["output_ids"] for one in first] == wanted
        assert [one["output_ids"] for one in again] == wanted
        lengths = [one["meta_info"]["spec_accept_length"] for one in again]
        assert least <= sum(lengths) / len(lengths) <= most


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_stopped_at_a_string_tells_how_drafts_fared(toy: Path, stream: bool) -> None:
    flags = {**FLAGS, "skip_tokenizer_init": False, "speculative_algorithm": "NGRAM"}
    with vivace.Engine(toy, **flags, speculative_fixed_width=True) as engine:
        asked: dict[str, Any] = {"temperature": 0, "max_new_tokens": 40, "ignore_eos": True}
        whole: Any = engine.generate("to be, tha", asked)
        asked["stop"] = whole["text"][20:24]
        found: Any = engine.generate("to be, tha", asked, stream=stream)
        metas = [one["meta_info"] for one in (found if stream else [found])]
    assert metas[-1]["finish_reason"] == {"type": "stop", "matched": asked["stop"]}
    assert 0 < metas[-1]["spec_verify_ct"] < 40 and metas[-1]["spec_accept_length"] > 0
    assert not any("spec_verify_ct" in meta for meta in metas[:-1])


def test_drafts_come_from_a_corpus(toy: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "or not to be, that is the question"}) + "\n")
    flags = {**FLAGS, "skip_tokenizer_init": False, "speculative_algorithm": "NGRAM"}
    flags |= {"speculative_fixed_width": True, "speculative_ngram_min_match_window_size": 3}
    flags |= {"speculative_ngram_external_corpus_path": str(path)}
    tried, texts = list[int](), list[str]()
    for budget in (0, 4):
        flags |= {"tp_size": 2 if budget else 1, "speculative_ngram_external_sam_budget": budget}
        with vivace.Engine(toy, **flags) as engine:
            prompt = "to be, tha"
            greedy = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}
            tokenizer: Any = engine.get_tokenizer()
            greedy |= {"logit_bias": {str(tokenizer.encode("t")[0]): 100}}
            answer: Any = engine.generate(prompt, greedy)
        tried.append(answer["meta_info"].get("spec_draft_token_num", 0))
        texts.append(answer["text"])
    assert texts == ["tttt", "tttt"]
    assert tried[0] == 0 and 0 < tried[1] <= 4 * 3


def test_a_corpus_that_is_too_long_is_refused(toy: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x" * 100)
    flags = {**FLAGS, "skip_tokenizer_init": False, "speculative_algorithm": "NGRAM"}
    flags |= {"speculative_ngram_external_corpus_path": str(path)}
    with pytest.raises(CannotStart, match="tokens"):
        vivace.Engine(toy, **flags, speculative_ngram_external_corpus_max_tokens=99)


def test_the_oracle_knows_drafts(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVACE_EXECUTOR", "oracle")
    sampling = {"max_new_tokens": 40, "ignore_eos": True, "sampling_seed": 3}
    found: list[Any] = []
    for algorithm in (None, "NGRAM"):
        with vivace.Engine(toy, **FLAGS, speculative_algorithm=algorithm) as engine:
            found.append(engine.generate(input_ids=[5, 6, 7], sampling_params=sampling))
    assert found[0]["output_ids"] == found[1]["output_ids"]
    assert found[1]["meta_info"]["spec_accept_length"] > 1
