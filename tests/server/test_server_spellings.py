"""Numbers as other languages spell them: 5 as 5.0 or "5". SGLang and servers built on pydantic take
them, so clients send them; what is meant is the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from server_kit import Running, ask, running_server

SAMPLING = {
    "max_new_tokens": 3, "min_new_tokens": 2, "top_k": 5, "n": 1, "sampling_seed": 7,
    "temperature": 0.5, "top_p": 0.75, "stop_token_ids": [65, 66], "stream_interval": 2,
    "logit_bias": {"65": -1.5}, "repetition_penalty": 1.25, "ignore_eos": True,
}  # fmt: skip
GENERATE = {
    "input_ids": [72, 101], "sampling_params": SAMPLING, "priority": 0, "return_logprob": True,
    "logprob_start_len": 1, "top_logprobs_num": 2, "token_ids_logprob": [65, 66],
}  # fmt: skip
OPENAI = {
    "max_tokens": 3, "min_tokens": 2, "top_k": 5, "n": 1, "seed": 7, "temperature": 0.5,
    "top_p": 0.75, "stop_token_ids": [65, 66], "logit_bias": {"65": -1.5}, "priority": 0,
    "repetition_penalty": 1.25, "presence_penalty": 0.5, "ignore_eos": True, "stream": False,
}  # fmt: skip
BODIES: dict[str, dict[str, Any]] = {
    "/generate": GENERATE,
    "/v1/completions": {**OPENAI, "prompt": [72, 101], "logprobs": 2, "echo": True},
    "/v1/chat/completions": {
        **OPENAI,
        "messages": [{"role": "user", "content": "x"}],
        "logprobs": True,
        "top_logprobs": 2,
        "max_completion_tokens": 3,
    },
}
SPELLINGS: dict[str, Callable[[Any], Any]] = {
    "floats": lambda value: float(value) if type(value) is int else value,
    "exponents": lambda value: float(value) if type(value) is int else value,
    "strings": lambda value: json.dumps(value) if type(value) in (int, float, bool) else value,
    "numbers for truth": lambda value: int(value) if type(value) is bool else value,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server() as running:
        yield running


def spelled(value: Any, spell: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: spelled(one, spell) for key, one in value.items()}
    if isinstance(value, list):
        return [spelled(one, spell) for one in value]
    return spell(value)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("path", BODIES)
def test_what_is_meant_is_the_same(server: Running, path: str, spelling: str) -> None:
    body = BODIES[path]
    texts = {"prompt": body["prompt"]} if spelling == "strings" and "prompt" in body else {}
    other = json.dumps({**spelled(body, SPELLINGS[spelling]), **texts})
    if spelling == "exponents":
        other = other.replace(".0", "e0")
    assert json.loads(other) != body or spelling in ("floats", "exponents", "numbers for truth")
    asked = []
    for text in (json.dumps(body), other):
        answer = ask(server, path, text.encode())
        assert answer.status == 200, answer.text
        asked.append(server.engine.requests[-1])
    first, second = (
        msgspec.structs.replace(one, key=0, rid="", arrival=0.0, begin=0.0) for one in asked
    )
    assert first == second
    assert all(type(token) is int for token in second.tokens)


def test_ids_of_a_long_list(server: Running) -> None:
    """Which is decoded in pieces."""
    ids = [65 + place % 26 for place in range(40_000)]
    wanted = ask(server, "/detokenize", {"tokens": ids}).json["text"]
    assert ask(server, "/detokenize", {"tokens": list(map(float, ids))}).json["text"] == wanted


@pytest.mark.parametrize("wrong", ["5.5", 5.5, "five", "", "٥", "5_0", " 5", "0x5", [5], {}, True])
@pytest.mark.parametrize("name", ["max_new_tokens", "top_k", "n", "sampling_seed"])
def test_what_is_no_whole_number_is_refused_by_name(server: Running, name: str, wrong: Any) -> None:
    answer = ask(server, "/generate", {"text": "x", "sampling_params": {name: wrong}})
    assert answer.status == 400 and answer.json["param"] == f"sampling_params.{name}"
    field = {"max_new_tokens": "max_tokens", "sampling_seed": "seed"}.get(name, name)
    answer = ask(server, "/v1/completions", {"prompt": "x", field: wrong})
    assert answer.status == 400 and answer.json["param"] == field


@pytest.mark.parametrize("null", ["null", "NULL"])
@pytest.mark.parametrize("path", BODIES)
def test_the_text_null_is_no_null(server: Running, path: str, null: str) -> None:
    """Except where a text is meant."""
    for name in BODIES[path]:
        if name == "sampling_params":
            for inner in SAMPLING:
                answer = ask(server, path, {**GENERATE, name: {**SAMPLING, inner: null}})
                assert answer.status == 400 and inner in answer.text, inner
        elif name not in ("prompt", "messages"):
            answer = ask(server, path, {**BODIES[path], name: null})
            assert answer.status == 400 and name in answer.text, name
    text = {"messages": [{"role": "user", "content": null}]} if "chat" in path else {"prompt": null}
    body = {"text": null} if path == "/generate" else {**text, "max_tokens": 3, "stop": null}
    assert ask(server, path, body).status == 200


@pytest.mark.parametrize("null", [b'"null"', b'"\\u006eull"', b'"nu\\u004C\\u006c"'])
@pytest.mark.parametrize("blanks", [0, 70_000])
def test_null_is_no_text_however_it_is_written(server: Running, null: bytes, blanks: int) -> None:
    entry = b'{"role": "user", "content": "x", "tool_calls": %b}' % null
    messages = b"[" + b" " * blanks + b",".join([entry] * 3) + b"]"
    answer = ask(server, "/v1/chat/completions", b'{"messages": %b, "max_tokens": 2}' % messages)
    assert answer.status == 400 and "messages[0].tool_calls" in answer.text


@pytest.mark.parametrize("wrong", ["nan", "inf", "1e999", "", "half", [0.5], True])
def test_what_is_no_number_is_refused_by_name(server: Running, wrong: Any) -> None:
    answer = ask(server, "/generate", {"text": "x", "sampling_params": {"top_p": wrong}})
    assert answer.status == 400 and answer.json["param"] == "sampling_params.top_p"
    answer = ask(server, "/v1/completions", {"prompt": "x", "top_p": wrong})
    assert answer.status == 400 and answer.json["param"] == "top_p"
