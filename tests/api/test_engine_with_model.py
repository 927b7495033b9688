"""The offline API with the embedded model: flags, weights, tokenizer and text, end to end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served_toy import write_toy_llama

import vivace
from vivace.config.errors import ConfigError


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


def test_a_chat_is_the_templates_prompt(engine: Any) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    greedy = {"temperature": 0, "max_new_tokens": 8}
    prompt = engine.get_tokenizer().chat.render(messages)
    ids = engine.get_tokenizer().encode(prompt, add_special_tokens=False)
    expected = engine.generate(input_ids=ids, sampling_params=greedy)["output_ids"]
    answer = engine.chat(messages, greedy)
    assert answer["output_ids"] == expected
    both = engine.chat([messages, messages], greedy)
    assert [one["output_ids"] for one in both] == [expected] * 2
    assert asyncio.run(engine.async_chat(messages, greedy))["output_ids"] == expected
    *_, last = engine.chat(messages, greedy, stream=True)
    assert last["output_ids"] == expected
    begun = [*messages, {"role": "assistant", "content": "The capital of France is"}]
    answer = engine.chat(begun, {**greedy, "max_new_tokens": 3}, continue_final_message=True)
    assert "Paris" in answer["text"]


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ([[]], "messages"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": "nobody", "content": "hi"}], "messages[0].role"),
    ],
)
def test_conversations_that_are_none(engine: Any, messages: Any, field: str) -> None:
    with pytest.raises(vivace.BadRequest) as caught:
        engine.chat(messages)
    assert caught.value.field == field


def test_scores_are_probabilities_of_the_next_token(engine: Any) -> None:
    encode = engine.get_tokenizer().encode
    labels = [encode(" Paris")[0], encode(" London")[0]]
    texts = ["The capital of France is", "The capital of England is"]
    result = engine.score("The capital of", [" France is", " England is"], labels)
    assert result.scores[0][0] > result.scores[0][1]
    assert result.scores[1][1] > result.scores[1][0]
    assert result.prompt_tokens == sum(len(encode(text)) for text in texts)
    normal = engine.score("The capital of", [" France is"], labels, apply_softmax=True).scores[0]
    assert sum(normal) == pytest.approx(1)
    assert normal[0] / normal[1] == pytest.approx(result.scores[0][0] / result.scores[0][1])
    ids = asyncio.run(
        engine.async_score(encode(" France is"), [encode("The")], labels, False, True)
    )
    assert ids.prompt_tokens == len(encode("The")) + len(encode(" France is"))
    for wrong in ({}, {"items": "a"}, {"query": "a", "items": [[1]], "label_token_ids": [1]}):
        with pytest.raises(vivace.BadRequest):
            engine.score(**wrong)


def test_what_it_says_of_itself(engine: Any) -> None:
    info = engine.get_server_info()
    assert info["audit"] == [] and info["context_length"] == 256
    assert info["version"] == vivace.__version__
    assert engine.flush_cache() is True


def test_wrong_flags_are_refused() -> None:
    with pytest.raises(ConfigError, match="context_lenth"):
        vivace.Engine(context_lenth=5)


PROGRAM = """
import sys, threading, time
from pathlib import Path
import vivace

engine = vivace.Engine(Path(sys.argv[1]), cpu_threads=1)
long = {"max_new_tokens": 400, "ignore_eos": True}
half = engine.generate("a", long, stream=True)
next(half)
steps = threading.Event()

def forever():
    while True:
        engine.generate("a", long)
        steps.set()

threading.Thread(target=forever, daemon=True).start()
assert steps.wait(60)
"""


def test_a_program_may_end_while_a_thread_generates(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(write_toy_llama(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
