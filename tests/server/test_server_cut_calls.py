"""Calls that a limit cuts off: every API says as much of them, streamed or not."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_kit import EOS, Running, ScriptedEngine, ask, documents, events, running_server

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import run_now
from vivace.parsers.formats import JSON_CALLS
from vivace.parsers.json_values import LONGEST, MARKS, MOST_MARKS, whole_part
from vivace.parsers.parser import AnswerParser, ParseOptions, TextParserFormat
from vivace.protocol.messages import Request
from vivace.requests.prompts import read_arguments
from vivace.server.settings import ServerSettings

HI: Any = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object"}
CALLS = '[{"name": "look", "parameters": {"city": "Paris", "days": 3}}, {"name": "look", "par'
NAMED: Any = {"type": "function", "function": {"name": "look"}}


def said(request: Request) -> list[int]:
    return [*CALLS.encode(), EOS]


def cut_answers(server: Running, place: int) -> tuple[Any, list[Any]]:
    """(the message of a whole answer, the deltas of a stream)"""
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    body = {"messages": HI, "tools": tools, "tool_choice": "required", "max_tokens": place}
    whole = ask(server, "/v1/chat/completions", body).json["choices"][0]
    assert whole["finish_reason"] == "length"
    text = ask(server, "/v1/chat/completions", {**body, "stream": True}).text
    chunks = [json.loads(event) for event in events(text)[:-1]]
    return whole["message"], [one["delta"] for chunk in chunks for one in chunk["choices"]]


def test_the_frame_of_required_calls_is_no_text() -> None:
    with running_server(engine=ScriptedEngine(script=said)) as server:
        for place in (1, 2, 12, 17, 62, 66, 80, len(CALLS)):
            message, deltas = cut_answers(server, place)
            assert not message["content"], place
            assert not any(delta.get("content") for delta in deltas)
            calls = message["tool_calls"] or []
            assert len(calls) == (place > 31)
            shown = "".join(
                call["function"].get("arguments") or ""
                for delta in deltas
                for call in delta.get("tool_calls") or ()
            )
            assert shown == "".join(call["function"]["arguments"] for call in calls)


@given(st.lists(st.integers(0, len(CALLS))), st.integers(0, len(CALLS)), st.booleans())
def test_however_it_comes_the_frame_is_no_text(
    places: list[int], length: int, cut_off: bool
) -> None:
    options = ParseOptions(tools={"look": SCHEMA}, calls_only=True)
    parser = AnswerParser(TextParserFormat(tools=JSON_CALLS), options)
    edges = [0, *sorted(min(place, length) for place in places), length]
    found = [event for begin, end in pairwise(edges) for event in parser.push(CALLS[begin:end])]
    found += parser.finish(cut=cut_off)
    assert not any(type(event).__name__ == "ContentText" for event in found)


def test_a_cut_call_is_a_call_to_anthropic_streamed_or_not() -> None:
    tools = [{"name": "look", "input_schema": SCHEMA}]
    body = {"tools": tools, "tool_choice": {"type": "any"}, "messages": HI}
    with running_server(engine=ScriptedEngine(script=said)) as server:
        for place, known in ((20, None), (40, {}), (52, {"city": "Paris"})):
            whole = ask(server, "/v1/messages", {**body, "max_tokens": place}).json
            streamed = ask(server, "/v1/messages", {**body, "max_tokens": place, "stream": True})
            sent = [json.loads(line[6:]) for line in streamed.text.splitlines() if "data: " in line]
            begun = [one["content_block"] for one in sent if "content_block" in one]
            found = [(block["type"], block["input"]) for block in whole["content"]]
            assert found == ([] if known is None else [("tool_use", known)]), place
            assert [block["type"] for block in begun] == [kind for kind, _ in found]
            parts = [one["delta"].get("partial_json", "") for one in sent if "delta" in one]
            assert known is None or json.loads(whole_part("".join(parts))) == known
            assert whole["stop_reason"] == "max_tokens"
            assert sent[-2]["delta"]["stop_reason"] == "max_tokens"


def test_a_cut_call_may_be_sent_back() -> None:
    """Agents do, with an error in the place of a result; a stored response has it anyway."""
    tools = [{"type": "function", "name": "look", "parameters": SCHEMA}]
    body = {"tools": tools, "tool_choice": "required", "input": "hi", "max_output_tokens": 52}
    with running_server(engine=ScriptedEngine(script=said)) as server:
        cut = ask(server, "/v1/responses", body).json
        (call,) = cut["output"]
        assert (call["status"], call["arguments"]) == ("incomplete", '{"city": "Paris", "d')
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "cut"}
        for more in (
            {"previous_response_id": cut["id"], "input": [result]},
            {"input": [{"role": "user", "content": "hi"}, call, result]},
        ):
            answer = ask(server, "/v1/responses", {"max_output_tokens": 2, **more})
            assert answer.status == 200, answer.text


@pytest.mark.parametrize("arguments", ['{"a": 1} x', "[1]", "{'a': 1}", "{,}"])
def test_whatever_a_model_has_called_is_followed(arguments: str) -> None:
    """The client cannot change what is stored."""
    call = '<tool_call>{"name": "look", "arguments": ' + arguments + "}</tool_call>"
    tools = [{"type": "function", "name": "look", "parameters": SCHEMA}]
    engine = ScriptedEngine(script=lambda _: [*call.encode(), EOS])
    with running_server(ServerSettings(tool_call_parser="hermes"), engine) as server:
        body = {"tools": tools, "input": "hi", "max_output_tokens": 200}
        first = ask(server, "/v1/responses", body).json
        more: Any = {"previous_response_id": first["id"], "input": "go on"}
        if first["output"][0]["type"] == "function_call":
            named = {"call_id": first["output"][0]["call_id"], "output": "no"}
            more["input"] = [{"type": "function_call_output", **named}]
        answer = ask(server, "/v1/responses", {"max_output_tokens": 2, **more})
        assert answer.status == 200, (first["output"], answer.text)


@pytest.mark.parametrize("rest", ["", ', "text": "' + "a, " * 100, ', "more": [' + "1, " * 9000])
def test_what_is_whole_of_a_cut_call_is_shown_to_the_template(rest: str) -> None:
    given = '{"city": "Paris"' + rest
    arguments, _ = run_now(read_arguments(given, "here"))
    assert arguments["city"] == "Paris" and "text" not in arguments
    more = ('{"a": 1} x', '{"a": 1}, "b', '{"a": 1}{"b": 2')
    for wrong in ("city=Paris", '{"a" 1}', "{'a': 1}", '{"a": 1, x}', *more):
        with pytest.raises(BadRequest, match="JSON"):
            run_now(read_arguments(wrong, "here"))


@pytest.mark.parametrize("given", [None, "", "null", "{}", {}])
def test_a_past_call_without_arguments_has_an_empty_object(given: Any) -> None:
    """Other servers send null where a function has none."""
    assert run_now(read_arguments(given, "here"))[0] == {}


def test_ollama_gets_arguments_as_an_object() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    call = '<tool_call>{"name": "look", "arguments": {"city": "Paris", "days": 3}}</tool_call>'
    limit = {"num_predict": call.index(": 3")}
    body = {"model": "toy", "messages": HI, "tools": tools, "options": limit}
    engine = ScriptedEngine(script=lambda _: [*call.encode(), EOS])
    with running_server(ServerSettings(tool_call_parser="hermes"), engine) as server:
        whole = ask(server, "/api/chat", {**body, "stream": False}).json
        lines = documents(ask(server, "/api/chat", body).text)
        streamed = [line["message"] for line in lines if line["message"].get("tool_calls")]
        for message in (whole["message"], *streamed):
            (one,) = message["tool_calls"]
            assert one["function"]["arguments"] == {"city": "Paris"}
        assert len(streamed) == 1 and lines[-1]["done_reason"] == "length"


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])
def test_a_text_of_stop_cuts_a_call_as_a_limit_does(name: str) -> None:
    """A client that reads tool_calls would make it with half of its arguments."""
    inside = {
        "hermes": '{"name": "look", "arguments": {"city": "Paris", "days": 3}}',
        "qwen3_coder": "<function=look>\n<parameter=city>\nParis\n</parameter>\n</function>",
    }[name]
    call = f"<tool_call>\n{inside}\n</tool_call>"
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    engine = ScriptedEngine(script=lambda _: [*call.encode(), EOS])
    with running_server(ServerSettings(tool_call_parser=name), engine) as server:
        for stop, reason in (("ris", "stop"), ("</tool_call>", "tool_calls"), ("!", "tool_calls")):
            body = {"messages": HI, "tools": tools, "stop": stop, "max_tokens": 200}
            whole = ask(server, "/v1/chat/completions", body).json["choices"][0]
            text = ask(server, "/v1/chat/completions", {**body, "stream": True}).text
            last = [json.loads(event)["choices"] for event in events(text)[:-1]][-1][0]
            assert whole["message"]["tool_calls"] and whole["finish_reason"] == reason
            assert last["finish_reason"] == reason
        own = [{"name": "look", "input_schema": SCHEMA}]
        body = {"messages": HI, "tools": own, "stop_sequences": ["ris"], "max_tokens": 200}
        told = ask(server, "/v1/messages", body).json
        assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", "ris")
        item = {"type": "function", "name": "look", "parameters": SCHEMA}
        for stop, status in (("ris", "incomplete"), ("!", "completed")):
            body = {"input": "hi", "tools": [item], "stop": stop, "max_output_tokens": 200}
            (one,) = ask(server, "/v1/responses", body).json["output"]
            assert (one["type"], one["status"]) == ("function_call", status)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ('{"a": 1, "b": "x', {"a": 1}),
        ('{"a": 12', {}),  # it may have been 123
        ('{"a": "x"', {"a": "x"}),
        ('{"a": [1, "x", "y', {"a": [1, "x"]}),
        ('{"a": {"b": [{"c": null}, {"d"', {"a": {"b": [{"c": None}, {}]}}),
        ('{"a": "\\', {}),
        ('{"a', {}),
        ('{"a": "}],", "b": [', {"a": "}],", "b": []}),
        ('{"a": [1, "b", "c, \\"d, ', {"a": [1, "b"]}),
    ],
)
def test_what_is_whole_of_an_object(text: str, whole: Any) -> None:
    assert json.loads(whole_part(text)) == whole


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.data())
def test_every_beginning_has_a_whole_part(value: Any, data: Any) -> None:
    text = json.dumps(value)
    place = data.draw(st.integers(1, len(text)))
    found = json.loads(whole_part(text[:place]))
    assert list(found) == list(value)[: len(found)]
    if place == len(text):
        assert found == value


def test_no_past_call_holds_up_the_others() -> None:
    """What follows a call that is no JSON is looked at all at once, so not what is longest."""
    for part in ('", "', "x", " ", "{", '": '):
        work, slowest = read_arguments('{"a": "b"' + part * (8 << 20), "here"), 0.0
        with pytest.raises(BadRequest, match="here"):
            while True:
                started = time.process_time()
                try:
                    next(work)
                finally:
                    slowest = max(slowest, time.process_time() - started)
        assert slowest < 0.2


@pytest.mark.parametrize("part", ["[],", '"a",', "1,", '\\"', "{", "[{", "\\n", " ", "\n,"])
def test_a_long_one_takes_no_time(part: str) -> None:
    marks = sum(map(part.count, MARKS)) or 1
    longest = min(LONGEST // len(part), MOST_MARKS // marks) - 20
    for begin in ('{"a": [', '{"a": "', "{", '{"a"', '{"a": "b"', '{"a": "b",'):
        started = time.process_time()
        assert whole_part(begin + part * longest)
        assert time.process_time() - started < 0.3
