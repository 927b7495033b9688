"""OpenAI's Responses API: items, events, and what is kept of them."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_kit import CONTEXT, EOS, Running, ScriptedEngine, ask, running_server

from vivace.protocol.messages import Finish, Request
from vivace.server.apis.responses_events import ResponseEvents
from vivace.server.apis.responses_request import begin_response
from vivace.server.apis.responses_schema import ResponsesRequest
from vivace.server.response_store import ResponseStore
from vivace.server.settings import ServerSettings

PATH = "/v1/responses"
SHORT: dict[str, Any] = {"max_output_tokens": 9, "temperature": 0}


def word(_: Request) -> list[int]:
    return [*b"Well", EOS]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server(ServerSettings(cache_report=True), ScriptedEngine(word)) as running:
        yield running


def create(server: Running, **fields: Any) -> Any:
    answer = ask(server, PATH, {"input": "hi", **SHORT, **fields})
    assert answer.status == 200, answer.text
    return answer.json


def prompt(server: Running) -> str:
    """The text that the engine was given last."""
    return bytes(server.engine.requests[-1].tokens).decode()


def test_a_whole_response(server: Running) -> None:
    found = create(server, instructions="be brief", metadata={"a": "b"})
    assert prompt(server) == "<system>be brief\n<user>hi\n<assistant>"
    assert found["object"] == "response" and found["id"].startswith("resp_")
    assert (found["status"], found["error"], found["incomplete_details"]) == (
        "completed",
        None,
        None,
    )
    (item,) = found["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert [(part["type"], part["text"]) for part in item["content"]] == [("output_text", "Well")]
    tokens = len(server.engine.requests[-1].tokens)
    usage = found["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (tokens, 5)
    assert usage["input_tokens_details"]["cached_tokens"] == 3
    assert (found["instructions"], found["metadata"]) == ("be brief", {"a": "b"})


def test_tokens_of_an_input_are_counted(server: Running) -> None:
    first = create(server)
    for fields in ({"input": "hi", "instructions": "be brief"},
                   {"input": "and?", "previous_response_id": first["id"]}):  # fmt: skip
        counted = ask(server, f"{PATH}/input_tokens", fields).json
        wanted = create(server, **fields)["usage"]["input_tokens"]
        assert counted == {"object": "response.input_tokens", "input_tokens": wanted}


def test_a_limit_makes_a_response_incomplete(server: Running) -> None:
    found = create(server, max_output_tokens=2)
    assert found["status"] == "incomplete"
    assert found["incomplete_details"] == {"reason": "max_output_tokens"}
    assert found["output"][0]["status"] == "incomplete"


def test_items_become_messages(server: Running) -> None:
    items = [
        {"role": "developer", "content": "be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "42"},
    ]
    create(server, input=items)
    said = prompt(server)
    assert said.startswith("<developer>be brief\n<user>hi\n<assistant>")
    assert said.endswith("<tool>42\n<assistant>")


F = {"type": "function", "name": "f"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "narrator", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input[0].content[0]"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "name": "f", "call_id": "1", "arguments": "["}]},
         "input[0].arguments"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id"),
        ({"input": [{"type": "computer_call", "id": "x"}]}, "input[0].type"),
        ({"input": "x" * CONTEXT}, "messages"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_logprobs": 99}, "top_logprobs"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice"),
        ({"tools": [F, {**F, "name": "a b"}]}, "tools[1].name"),
        ({"tools": [F], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        ({"tools": [F], "tool_choice": {"type": "allowed_tools", "mode": "x", "tools": [F]}},
         "tool_choice.mode"),
        ({"truncation": "never"}, "truncation"),
        ({"truncation": "auto", "input": "x" * CONTEXT}, "input"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"previous_response_id": "resp_0"}, "previous_response_id"),
        ({"background": True, "store": False}, "background"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(server: Running, fields: Any, param: str) -> None:
    answer = ask(server, PATH, {"input": "hi", **fields})
    assert answer.status == 400
    assert answer.json["error"]["param"] in (param, "input"), answer.text


def test_a_conversation_that_is_too_long_loses_its_oldest_turns(server: Running) -> None:
    """As few as it takes, however many there are; and what is left is what the next response goes
    on with."""
    turns = [f"<user>{number:040}\n<assistant>Well\n" for number in range(3000)]
    items: list[Any] = [{"role": "system", "content": "be brief"}]
    for number in range(3000):
        items.append({"role": "user", "content": f"{number:040}"})
        items.append({"role": "assistant", "content": "Well"})
    items.append({"role": "user", "content": "and?"})
    found = create(server, input=items, truncation="auto")
    assert found["truncation"] == "auto"
    front, end = "<system>be brief\n", "<user>and?\n<assistant>"
    left = len(prompt(server)[len(front) : -len(end)]) // len(turns[0])
    assert prompt(server) == front + "".join(turns[-left:]) + end
    room = CONTEXT - SHORT["max_output_tokens"]
    assert len(prompt(server)) <= room < len(prompt(server)) + len(turns[0])
    create(server, input="so?", previous_response_id=found["id"], truncation="auto")
    said = prompt(server)
    assert said.startswith(front) and said.endswith(
        "<user>and?\n<assistant>Well\n<user>so?\n<assistant>"
    )
    create(server, truncation="auto")
    assert prompt(server) == "<user>hi\n<assistant>"


# -- streams ---------------------------------------------------------------------------------------


def named_events(body: str, first: int = 0) -> list[Any]:
    """The events, in order by their numbers."""
    found = []
    for number, block in enumerate(body.split("\n\n")[:-1], first):
        name, data = block.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}" and value["sequence_number"] == number
        found.append(value)
    return found


def test_a_stream_says_what_the_whole_response_says(server: Running) -> None:
    answer = ask(server, PATH, {"input": "hi", **SHORT, "stream": True})
    found = named_events(answer.text)
    assert [event["type"].removeprefix("response.") for event in found] == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * (len(found) - 8),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert "".join(event.get("delta", "") for event in found) == "Well"
    whole = found[-1]["response"]
    assert whole["output"][0] == found[-2]["item"]
    assert whole["output"][0]["content"] == [found[-3]["part"]]
    assert whole["usage"]["output_tokens"] == 5
    stored = ask(server, f"{PATH}/{whole['id']}", method="GET").json
    assert stored == whole


def test_a_failure_ends_a_stream() -> None:
    refuse = Finish(type="abort", status=503, message="full")
    with running_server(engine=ScriptedEngine(refuse=refuse)) as server:
        answer = ask(server, PATH, {"input": "hi", "stream": True})
        assert answer.status == 503 and answer.json["error"]["message"] == "full"


CUSTOM = {
    "type": "custom",
    "name": "note",
    "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z ]+"},
}


def test_a_custom_tool_is_called_and_answers() -> None:
    said = '<tool_call>\n{"name": "note", "arguments": {"input": "buy milk"}}\n</tool_call>'
    engine = ScriptedEngine(lambda _: [*said.encode(), EOS])
    with running_server(ServerSettings(tool_call_parser="hermes"), engine) as server:
        body = {"input": "hi", "tools": [CUSTOM], "stream": True}
        found = named_events(ask(server, PATH, body).text)
        constraint = server.engine.requests[-1].sampling.constraint
        assert constraint is not None and "[a-z ]+" in constraint.text
        (item,) = found[-1]["response"]["output"]
        assert (item["type"], item["name"], item["input"]) == (
            *("custom_tool_call", "note", "buy milk"),
        )
        told = [event for event in found if "custom_tool_call_input" in event["type"]]
        assert "".join(event.get("delta", "") for event in told) == told[-1]["input"] == "buy milk"
        assert {event["item_id"] for event in told} == {item["id"]}
        result = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "done"}
        identity = found[-1]["response"]["id"]
        for more in (
            {"previous_response_id": identity, "input": [result]},
            {"input": [{"role": "user", "content": "hi"}, item, result]},
            {"input": [{"role": "user", "content": "hi"},
                       {"type": "item_reference", "id": item["id"]}, result]},
        ):  # fmt: skip
            assert ask(server, PATH, {"tools": [CUSTOM], **more}).status == 200
            assert prompt(server).endswith("<tool>done\n<assistant>")
        named = {"type": "custom", "name": "note"}
        assert ask(server, PATH, {**body, "tool_choice": named}).status == 200
        for change, param in (
            ({"format": {"type": "grammar", "syntax": "lark"}}, "tools[0].format.definition"),
            ({"format": {"type": "grammar", "syntax": "x", "definition": ""}},
             "tools[0].format.syntax"),
            ({"format": {"type": "xml"}}, "tools[0].format.type"),
        ):  # fmt: skip
            answer = ask(server, PATH, {"input": "hi", "tools": [{**CUSTOM, **change}]})
            assert (answer.status, answer.json["error"]["param"]) == (400, param)


TEXTS = st.text(max_size=5)
NEWS = st.one_of(
    st.tuples(st.just("content"), TEXTS),
    st.tuples(st.just("reasoning_content"), TEXTS),
    st.tuples(st.sampled_from(["call", "more"]), TEXTS),
)


def chunk(delta: Any, **choice: Any) -> bytes:
    value = {"id": "x", "model": "toy", "choices": [{"index": 0, "delta": delta, **choice}]}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def deltas(news: list[tuple[str, str]]) -> list[Any]:
    """Deltas of the chat path; calls come one after the other, without text in them."""
    found: list[Any] = []
    number, inside = -1, False
    for kind, text in news:
        if kind in ("content", "reasoning_content"):
            found.append({kind: text})
            inside = inside and not text
            continue
        call: Any = {"function": {"arguments": text}}
        if kind == "call" or not inside:
            number, inside = number + 1, True
            call["id"], call["function"]["name"] = f"call_{number}", f"f{number}"
        found.append({"tool_calls": [{**call, "index": number}]})
    return found


@given(st.lists(NEWS, max_size=12), st.booleans())
def test_items_of_any_stream_are_whole_and_in_order(
    news: list[tuple[str, str]], apart: bool
) -> None:
    sent = deltas(news)
    data = [chunk(delta) for delta in sent]
    reason = "tool_calls" if any("tool_calls" in delta for delta in sent) else "stop"
    data += [chunk({}, finish_reason=reason), b"data: [DONE]\n\n"]
    params = ResponsesRequest(input="hi")
    converter = ResponseEvents(begin_response(params, "resp_1", "toy", store=False))
    parts = data if apart else [b"".join(data)]
    told = b"".join(converter.convert(part) for part in parts)
    assert converter.over
    found = named_events((told + converter.end_event()).decode())
    output = found[-1]["response"]["output"]
    assert [event["item"] for event in found if event["type"].endswith("item.done")] == output
    said: dict[int, str] = {}
    for event in found:
        if event["type"].endswith(".delta"):
            index = event["output_index"]
            said[index] = said.get(index, "") + event["delta"]
            assert event["item_id"] == output[index]["id"]
    for index, item in enumerate(output):
        shown = item.get("arguments") if item["type"] == "function_call" else None
        text = item["content"][0]["text"] if shown is None else shown
        assert text == said.get(index, "") and item["status"] == "completed"
    for kind, field in (("message", "content"), ("reasoning", "reasoning_content")):
        texts = [item["content"][0]["text"] for item in output if item["type"] == kind]
        assert "".join(texts) == "".join(delta.get(field, "") for delta in sent)
    calls = [item for item in output if item["type"] == "function_call"]
    made = [call for delta in sent for call in delta.get("tool_calls", ()) if "id" in call]
    assert [(item["name"], item["call_id"]) for item in calls] == [
        (call["function"]["name"], call["id"]) for call in made
    ]


# -- what is kept ----------------------------------------------------------------------------------


def test_a_response_goes_on_with_an_earlier_one(server: Running) -> None:
    first = create(server, instructions="be brief")
    second = create(server, input="and?", previous_response_id=first["id"])
    assert prompt(server) == "<user>hi\n<assistant>Well\n<user>and?\n<assistant>"
    assert second["previous_response_id"] == first["id"]
    create(server, input="so?", previous_response_id=second["id"], instructions="be loud")
    said = "<system>be loud\n<user>hi\n<assistant>Well\n<user>and?\n<assistant>Well\n<user>so?\n"
    assert prompt(server) == said + "<assistant>"


def test_items_of_stored_responses_may_be_referred_to(server: Running) -> None:
    found = create(server)
    reference = {"type": "item_reference", "id": found["output"][0]["id"]}
    asked = [{"role": "user", "content": "hi"}, reference, {"role": "user", "content": "and?"}]
    create(server, input=asked)
    assert prompt(server) == "<user>hi\n<assistant>Well\n<user>and?\n<assistant>"
    ask(server, f"{PATH}/{found['id']}", method="DELETE")
    for items, field in (([reference] * 2, "input[0].id"), ([{**reference, "id": None}], "id")):
        answer = ask(server, PATH, {"input": items})
        assert answer.status == 400 and field in answer.json["param"]
    reference["id"] = create(server)["output"][0]["id"]
    answer = ask(server, PATH, {"input": [reference] * 2})
    assert (answer.status, answer.json["param"]) == (400, "input[1].id")


def test_a_stored_response_is_there_until_it_is_deleted(server: Running) -> None:
    found = create(server)
    place = f"{PATH}/{found['id']}"
    assert ask(server, place, method="GET").json == found
    assert ask(server, f"{place}/cancel").status == 400
    deleted = ask(server, place, method="DELETE").json
    assert deleted == {"id": found["id"], "object": "response", "deleted": True}
    for path, method in ((place, "GET"), (place, "DELETE"), (f"{place}/cancel", "POST")):
        assert ask(server, path, method=method).status == 404
    answer = ask(server, PATH, {"input": "x", "previous_response_id": found["id"]})
    assert (answer.status, answer.json["param"]) == (400, "previous_response_id")


def test_what_a_response_was_asked_with_is_listed(server: Running) -> None:
    call = {"type": "function_call", "id": "fc_1", "call_id": "1", "name": "f", "arguments": "{}"}
    items = [{"role": "user", "content": "hi"}, call, {**call, "id": None, "call_id": "2"}]
    place = f"{PATH}/{create(server, input=items)['id']}/input_items"
    found = ask(server, f"{place}?order=asc", method="GET").json
    assert [item["type"] for item in found["data"]] == ["message", *["function_call"] * 2]
    first, second, third = found["data"]
    assert first["content"] == [{"type": "input_text", "text": "hi"}] and second == call
    assert (first["id"][:4], third["id"][:3]) == ("msg_", "fc_")
    assert (found["first_id"], found["last_id"]) == (first["id"], third["id"])
    pages: list[Any] = []
    after = ""
    while not pages or pages[-1]["has_more"]:
        pages.append(ask(server, f"{place}?limit=2{after}", method="GET").json)
        after = f"&after={pages[-1]['last_id']}"
    assert [page["data"] for page in pages] == [[third, second], [first]]
    for query in ("limit=0", "limit=x", "order=up", "after=msg_0"):
        assert ask(server, f"{place}?{query}", method="GET").status == 400
    text = create(server, background=True)["id"]
    (only,) = ask(server, f"{PATH}/{text}/input_items", method="GET").json["data"]
    assert only["content"] == [{"type": "input_text", "text": "hi"}] and only["role"] == "user"
    assert ask(server, f"{PATH}/resp_0/input_items", method="GET").status == 404


def test_what_is_not_to_be_stored_is_not(server: Running) -> None:
    found = create(server, store=False)
    assert found["store"] is False
    assert ask(server, f"{PATH}/{found['id']}", method="GET").status == 404


def test_another_keys_responses_are_not_there() -> None:
    with running_server(
        ServerSettings(api_keys=("one", "two"), admin_api_keys=("root",)), ScriptedEngine(word)
    ) as server:

        def ask_as(key: str, path: str, body: Any = None, method: str = "POST") -> Any:
            headers = {"Authorization": f"Bearer {key}"}
            return ask(server, path, body, method=method, headers=headers)

        found = ask_as("one", PATH, {"input": "hi"}).json
        place = f"{PATH}/{found['id']}"
        for key in ("two", "root"):
            assert ask_as(key, place, method="GET").status == 404
            assert ask_as(key, place, method="DELETE").status == 404
            assert ask_as(key, f"{place}/cancel").status == 404
            body = {"input": "x", "previous_response_id": found["id"]}
            assert ask_as(key, PATH, body).status == 400
        assert ask_as("one", place, method="GET").json == found


# -- in the background -----------------------------------------------------------------------------


def status(server: Running, identity: str) -> str:
    return ask(server, f"{PATH}/{identity}", method="GET").json["status"]


def test_a_response_in_the_background(server: Running) -> None:
    found = create(server, background=True)
    assert found["status"] == "in_progress" and found["output"] == []
    server.until(lambda: server.frontend.live == 0)
    server.until(lambda: server.frontend.accepted == 0)
    whole = ask(server, f"{PATH}/{found['id']}", method="GET").json
    assert whole["status"] == "completed" and whole["background"] is True
    assert whole["output"][0]["content"][0]["text"] == "Well"
    assert ask(server, f"{PATH}/{found['id']}/cancel").json == whole
    create(server, input="and?", previous_response_id=found["id"])
    assert "<assistant>Well" in prompt(server)


def test_a_client_may_leave_while_its_response_is_begun(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, begun, go = ResponseStore.begin, list[str](), threading.Event()

    async def begin_slowly(store: ResponseStore, client: int, identity: str, *args: Any, **kw: Any):
        begun.append(identity)
        while not go.is_set():
            await asyncio.sleep(0.01)
        await begin(store, client, identity, *args, **kw)
        begun.append(identity)

    monkeypatch.setattr(ResponseStore, "begin", begin_slowly)
    body = json.dumps({"model": "m", "input": "hi", "background": True}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        server.until(lambda: bool(begun))
    http = server.runner.server
    assert http is not None
    server.until(lambda: not http.connections)
    go.set()
    server.until(lambda: len(begun) == 2)
    server.until(lambda: server.frontend.accepted == 0)
    assert status(server, begun[0]) == "completed"


def test_what_goes_wrong_in_the_background_stands_in_the_response(server: Running) -> None:
    found = create(server, input="x" * CONTEXT, background=True)
    server.until(lambda: server.frontend.accepted == 0)
    whole = ask(server, f"{PATH}/{found['id']}", method="GET").json
    assert whole["status"] == "failed" and whole["error"]["code"] == "invalid_prompt"
    answer = ask(server, PATH, {"input": "x", "previous_response_id": found["id"]})
    assert answer.status == 400


def test_log_probabilities_are_those_of_the_chat(server: Running) -> None:
    fields = {"max_tokens": 3, "logprobs": True, "top_logprobs": 2}
    chat = {"messages": [{"role": "user", "content": "hi"}], **fields}
    wanted = ask(server, "/v1/chat/completions", chat).json["choices"][0]["logprobs"]["content"]
    found = create(server, max_output_tokens=3, top_logprobs=2)
    assert wanted and found["output"][0]["content"][0]["logprobs"] == wanted
    assert ask(server, f"{PATH}/{found['id']}", method="GET").json == found


@pytest.mark.parametrize("way", ["cancel", "delete"])
def test_a_response_in_the_background_can_be_ended(way: str) -> None:
    with running_server(engine=ScriptedEngine(pause=0.01)) as server:
        found = create(server, background=True, max_output_tokens=400)
        place = f"{PATH}/{found['id']}"
        server.until(lambda: server.frontend.live == 1)
        answer = ask(server, PATH, {"input": "x", "previous_response_id": found["id"]})
        assert answer.status == 400
        if way == "cancel":
            assert ask(server, f"{place}/cancel").json["status"] == "cancelled"
            assert status(server, found["id"]) == "cancelled"
        else:
            assert ask(server, place, method="DELETE").json["deleted"] is True
            assert ask(server, place, method="GET").status == 404
        server.until(lambda: server.frontend.live == 0)
        server.until(lambda: server.frontend.accepted == 0)
        assert len(server.engine.cancelled) == 1


# -- streams in the background ---------------------------------------------------------------------


def follow(server: Running, identity: str, after: int | None = None) -> list[Any]:
    query = "" if after is None else f"&starting_after={after}"
    answer = ask(server, f"{PATH}/{identity}?stream=true{query}", method="GET")
    assert answer.status == 200, answer.text
    return named_events(answer.text, 0 if after is None else after + 1)


def test_events_of_the_background_can_be_read_again(server: Running) -> None:
    body = {"input": "hi", **SHORT, "stream": True, "background": True}
    found = named_events(ask(server, PATH, body).text)
    kinds = [event["type"].removeprefix("response.") for event in found]
    assert kinds[:2] == ["created", "in_progress"] and kinds[-2:] == [
        "output_item.done",
        "completed",
    ]
    assert "".join(event.get("delta", "") for event in found) == "Well"
    whole = found[-1]["response"]
    identity = whole["id"]
    assert ask(server, f"{PATH}/{identity}", method="GET").json == whole
    assert follow(server, identity) == found
    for after in (0, 3, len(found) - 2, len(found) - 1, len(found) + 9):
        assert follow(server, identity, after) == found[after + 1 :]
    create(server, input="and?", previous_response_id=identity)
    assert prompt(server) == "<user>hi\n<assistant>Well\n<user>and?\n<assistant>"
    after, many = "stream=true&starting_after=", "0" * 4400
    for query in (
        f"{after}x",
        f"{after}-2",
        f"{after}{'0' * 20}{'9' * 20}",
        after + many,
        "stream=1",
    ):
        assert ask(server, f"{PATH}/{identity}?{query}", method="GET").status == 400
    plain = create(server, background=True)["id"]
    answer = ask(server, f"{PATH}/{plain}?stream=true", method="GET")
    assert (answer.status, answer.json["param"]) == (400, "stream")


def test_what_goes_wrong_in_the_background_ends_its_stream(server: Running) -> None:
    body = {"input": "x" * CONTEXT, "stream": True, "background": True}
    found = named_events(ask(server, PATH, body).text)
    assert [event["type"].removeprefix("response.") for event in found] == [
        *("created", "in_progress", "failed")
    ]
    assert found[-1]["response"]["error"]["code"] == "invalid_prompt"


def test_a_client_that_leaves_comes_back_to_its_stream() -> None:
    with running_server(engine=ScriptedEngine(pause=0.01)) as server:
        body = {"input": "hi", "stream": True, "background": True, "max_output_tokens": 100}

        async def leave() -> str:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            data = json.dumps(body).encode()
            head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            seen = await reader.readuntil(b"output_text.delta")
            writer.close()
            return re.findall(r"resp_\w+", seen.decode())[0]

        identity = server.run(leave())
        assert status(server, identity) == "in_progress"
        found = follow(server, identity, 3)
        assert found[-1]["type"] == "response.incomplete" and not server.engine.cancelled
        text = "".join(event.get("delta", "") for event in follow(server, identity))
        assert text == found[-1]["response"]["output"][0]["content"][0]["text"]
        assert ask(server, f"{PATH}/{identity}", method="GET").json == found[-1]["response"]
        long = {**body, "max_output_tokens": 400}
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(ask, server, PATH, long)
            server.until(lambda: server.frontend.live == 1)
            identity = server.engine.requests[-1].rid
            ended = ask(server, f"{PATH}/{identity}/cancel").json
            last = named_events(asked.result(10).text)[-1]
        assert (last["type"], last["response"]) == ("response.cancelled", ended)


def test_a_format_beside_a_required_call_is_of_text_that_there_is_not(server: Running) -> None:
    """As instructor (Mode.RESPONSES_TOOLS) sends it."""
    form = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
    tool = {"type": "function", "name": "f", "parameters": {}}
    for choice in ({"type": "function", "name": "f"}, "required"):
        body = {"input": "hi", "text": {"format": form}, "tools": [tool], "tool_choice": choice}
        assert ask(server, PATH, body).status == 200
        constraint = server.engine.requests[-1].sampling.constraint
        assert constraint is not None and constraint.field == "tools"


def test_a_past_call_is_named_where_it_stands(server: Running) -> None:
    calls = [
        {"type": "function_call", "call_id": str(one), "name": "f", "arguments": text}
        for one, text in enumerate(("{}", "x"))
    ]
    items = [{"role": "assistant", "content": "a"}, *calls]
    error = ask(server, PATH, {"input": items}).json["error"]
    assert error["param"] == "input[2].arguments"


def test_a_custom_tool_is_named_that_nobody_would_find(server: Running) -> None:
    tools = [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]
    error = ask(server, PATH, {"input": "hi", "tools": tools}).json["error"]
    assert error["param"] == "tools[1]" and "--tool-call-parser" in error["message"]
