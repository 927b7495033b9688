"""Structured output over HTTP: every API, two ranks, and an engine that dies in between."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from running_server import RunningServer
from served_toy import write_toy_llama

SCHEMA = {
    "type": "object",
    "properties": {
        "words": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 20},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["words", "n"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}
FLAGS = "--dtype float32 --cpu-threads 1 --constrained-json-disable-any-whitespace".split()
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 300}
PAINT = {"type": "function", "function": {"name": "paint", "parameters": SCHEMA}}
CALLED = {**CHAT, "tools": [PAINT], "tool_choice": "required", "parallel_tool_calls": False}
BAD = {"properties": {"a": {"uniqueItems": True}}}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_toy_llama(tmp_path_factory.mktemp("grammars") / "toy"))


def native(**sampling: Any) -> dict[str, Any]:
    return {"text": "a", "sampling_params": {"max_new_tokens": 300, "sampling_seed": 1, **sampling}}


def check(text: str) -> None:
    jsonschema.validate(json.loads(text), SCHEMA)


def check_calls(answer: dict[str, Any]) -> None:
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "tool_calls" and not choice["message"]["content"]
        for call in choice["message"]["tool_calls"]:
            assert call["function"]["name"] == "paint"
            check(call["function"]["arguments"])


def streamed_arguments(server: RunningServer, body: dict[str, Any]) -> str:
    """Of the one call of a stream."""
    found = ""
    for event in server.stream("/v1/chat/completions", {**body, "stream": True}):
        for choice in event["choices"]:
            for call in choice["delta"].get("tool_calls") or ():
                assert call["index"] == 0
                found += call["function"]["arguments"]
    return found


def test_every_api_obeys_and_refuses(toy: str, tmp_path: Path) -> None:
    flags = ("--model-path", toy, *FLAGS, "--grammar-backend", "outlines")
    with RunningServer(*flags, log=tmp_path / "log") as server:
        server.wait_ready()
        assert "llguidance" in server.text()
        check(server.json("/generate", native(json_schema=json.dumps(SCHEMA)))["text"])
        completion = {"prompt": "a", "max_tokens": 300, "seed": 1}
        answer = server.json("/v1/completions", {**completion, "response_format": FORMAT})
        check(answer["choices"][0]["text"])
        answer = server.json("/v1/chat/completions", {**CHAT, "response_format": FORMAT, "n": 2})
        for choice in answer["choices"]:
            assert choice["finish_reason"] == "stop"
            check(choice["message"]["content"])
        check_calls(server.json("/v1/chat/completions", {**CALLED, "n": 2}))
        check(streamed_arguments(server, CALLED))
        short = {**CHAT, "response_format": FORMAT, "max_tokens": 4}
        answer = server.json("/v1/chat/completions", short)
        assert answer["choices"][0]["finish_reason"] == "length"
        answer = server.json("/v1/completions", {**completion, "regex": "[ab]{3}"})
        assert set(answer["choices"][0]["text"]) <= {"a", "b"}
        logprobs = {**CHAT, "logprobs": True, "top_logprobs": 5, "regex": "[ab]"}
        answer = server.json("/v1/chat/completions", logprobs)
        assert len(answer["choices"][0]["logprobs"]["content"]) >= 1
        bad_tool = {"type": "function", "function": {"name": "look", "parameters": BAD}}
        refused = {"type": "json_schema", "json_schema": {"name": "a", "schema": BAD}}
        for route, body, field in (
            ("/generate", native(json_schema=BAD), "sampling_params.json_schema"),
            ("/generate", {**native(json_schema=BAD), "stream": True}, "properties.a.uniqueItems"),
            ("/v1/chat/completions", {**CHAT, "response_format": refused}, "response_format"),
            ("/v1/completions", {**completion, "response_format": refused}, "json_schema.schema"),
            ("/v1/completions", {**completion, "ebnf": "root ::= a"}, "ebnf"),
            ("/v1/chat/completions", {**CALLED, "tools": [bad_tool]}, "tools[0].function.param"),
        ):
            status, told = server.call("POST", route, body)
            assert status == 400 and field in told.decode() and b'"param":null' not in told, told


def test_ranks_and_engines_that_follow_each_other_give_the_same(toy: str, tmp_path: Path) -> None:
    """Two ranks draw alike; an engine that replaces one that died goes on in the same grammar."""
    body = native(json_schema=SCHEMA, logit_bias={"11": 4.0}, temperature=0.8)
    parsers = ("--tool-call-parser", "qwen25", "--reasoning-parser", "kimi")
    flags = ("--model-path", toy, *FLAGS, "--tp-size", "2", *parsers)
    environment = {"VIVACE_COMPARE_RANKS": "1"}
    with RunningServer(*flags, environment=environment, log=tmp_path / "log") as server:
        server.wait_ready()
        wanted = server.json("/generate", body)["text"]
        check(wanted)
        answer = server.json("/v1/chat/completions", {**CALLED, "max_thinking_tokens": 3})
        check_calls(answer)
        named = {"type": "function", "function": {"name": "paint"}}
        check(streamed_arguments(server, {**CALLED, "tool_choice": named, "thinking_budget": 0}))
        thought = {**CHAT, "seed": 1, "max_thinking_tokens": 3, "response_format": FORMAT}
        thought["messages"] = [*CHAT["messages"], {"role": "assistant", "content": "◁think▷a"}]
        answer = server.json("/v1/chat/completions", {**thought, "continue_final_message": True})
        check(answer["choices"][0]["message"]["content"])
        assert 3 < answer["usage"]["reasoning_tokens"] <= 3 + len("◁/think▷".encode())
        engine, event = server.children()["engine"], dict[str, Any]()
        for number, event in enumerate(server.stream("/generate", {**body, "stream": True})):
            assert "error" not in event, event
            if number == 3:
                os.kill(engine, signal.SIGKILL)
        assert number > 10 and event["text"] == wanted
        assert server.children()["engine"] != engine
