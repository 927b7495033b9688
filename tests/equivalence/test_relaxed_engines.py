"""Relaxed acceptance in engines: ranks and stages draw alike, books are right, greedy answers
stay."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from drafting_engines import PLAIN, SETTINGS, SHAPE, assert_same_tokens, draft_requests
from engine_under_test import Answer, build_config, build_engine
from layout_engines import LayoutEngines
from served_toy import write_byte_tokenizer
from toy_models import make

LAX: dict[str, Any] = {
    "speculative_accept_threshold_single": 0.3,
    "speculative_accept_threshold_acc": 0.015,
}
SAMPLED = {"temperature": 1.0, "seed": 7}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lax") / "model"
    make("Llama", folder, **SHAPE, num_hidden_layers=2)
    write_byte_tokenizer(folder)
    return folder


def flags(model: Path, algorithm: str) -> dict[str, Any]:
    """Drafts that follow from a request's own tokens alone, as many in each step."""
    own = {"speculative_ngram_capacity": 1, "speculative_num_draft_tokens": 4}
    if algorithm == "STANDALONE":
        own = {"speculative_num_steps": 3, "speculative_draft_model_path": str(model)}
    return {"speculative_algorithm": algorithm, "speculative_fixed_width": True, **own}


@cache
def alone(model: Path, algorithm: str, *, lax: bool, greedy: bool) -> tuple[dict[str, Answer], Any]:
    thresholds = LAX if lax else {}
    engine = build_engine(model, PLAIN, **flags(model, algorithm), **thresholds)
    return engine.run(draft_requests(5, **({} if greedy else SAMPLED))), engine.accept_rate()


@pytest.mark.parametrize("algorithm", ["STANDALONE", "NGRAM"])
def test_more_drafts_are_accepted_and_greedy_answers_stay(model: Path, algorithm: str) -> None:
    exact, few = alone(model, algorithm, lax=False, greedy=False)
    found, many = alone(model, algorithm, lax=True, greedy=False)
    assert many > few
    assert {rid: one.tokens for rid, one in found.items()} != {
        rid: one.tokens for rid, one in exact.items()
    }
    greedy, _ = alone(model, algorithm, lax=True, greedy=True)
    assert_same_tokens(greedy, alone(model, algorithm, lax=False, greedy=True)[0])


@pytest.mark.parametrize("name", ["eager", "retracted", "mixed"])
def test_pages_and_books_are_right(model: Path, name: str) -> None:
    engine = build_engine(model, SETTINGS[name], **flags(model, "STANDALONE"), **LAX)
    answers = engine.run(draft_requests(8, **SAMPLED), arrivals=random.Random(1))
    wanted = {one.rid: one.sampling.max_new_tokens for one in draft_requests(8)}
    assert {rid: len(one.tokens) for rid, one in answers.items()} == wanted
    assert not engine.audit()


@pytest.mark.parametrize(
    ("algorithm", "layout"),
    [
        ("STANDALONE", {"tp_size": 2}),
        ("STANDALONE", {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True}),
        ("NGRAM", {"tp_size": 2, "pp_size": 2}),
    ],
)
def test_ranks_and_stages_draw_what_one_does(
    model: Path, algorithm: str, layout: dict[str, Any]
) -> None:
    options = {**layout, **flags(model, algorithm), **LAX}
    engines = LayoutEngines(build_config(model, PLAIN, **options), PLAIN)
    try:
        answers = engines.run(draft_requests(5, **SAMPLED))
    finally:
        engines.close()
    assert_same_tokens(answers, alone(model, algorithm, lax=True, greedy=False)[0])
