"""The offline API with the embedded model: flags, weights, tokenizer and text, end to end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import vivace
from vivace.config import ConfigError


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    flags: dict[str, Any] = {"max_total_tokens": 512, "max_running_requests": 4, "cpu_threads": 1}
    with vivace.Engine(context_length=256, **flags) as engine:
        yield engine


def test_it_knows_the_capital_of_france(engine: Any) -> None:
    greedy = {"temperature": 0, "max_new_tokens": 3}
    answer, same = engine.generate(["The capital of France is"] * 2, greedy)
    assert "Paris" in answer["text"] and same["text"] == answer["text"]
    assert answer["output_ids"] == engine.tokenizer.encode(answer["text"])
    ids = engine.tokenizer.encode("The capital of France is")
    events = list(engine.generate(input_ids=ids, sampling_params=greedy, stream=True))
    assert events[-1]["text"] == answer["text"]


def test_stop_strings_with_a_model(engine: Any) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 8, "stop": ["aris"]}
    answer = engine.generate("The capital of France is", sampling)
    assert answer["text"] == " P"
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "aris"}


def test_what_it_says_of_itself(engine: Any) -> None:
    info = engine.get_server_info()
    assert info["audit"] == [] and info["context_length"] == 256
    assert info["version"] == vivace.__version__
    assert engine.flush_cache() is True


def test_wrong_flags_are_refused() -> None:
    with pytest.raises(ConfigError, match="context_lenth"):
        vivace.Engine(context_lenth=5)
