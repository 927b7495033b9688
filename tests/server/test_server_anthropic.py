"""Anthropic's Messages API: requests become conversations, answers and streams have its form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_kit import CONTEXT, Running, ScriptedEngine, ask, documents, running_server

from vivace.protocol.messages import Finish, Request
from vivace.server.apis.anthropic import MessageEvents, anthropic_error
from vivace.server.settings import ServerSettings

HI: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server(ServerSettings(cache_report=True)) as running:
        yield running


def prompt(server: Running, **fields: Any) -> str:
    """The text that the engine is given for a body."""
    answer = ask(server, "/v1/messages", {"max_tokens": 1, "messages": HI, **fields})
    assert answer.status == 200, answer.text
    return bytes(server.engine.requests[-1].tokens).decode()


RESPONSE_TOOLS = [{"type": "function", "name": name} for name in "fg"]


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def test_a_whole_answer(server: Running) -> None:
    answer = ask(server, "/v1/messages", {"messages": HI, "max_tokens": 9, "temperature": 0})
    found = answer.json
    assert found["id"].startswith("msg_")
    assert (found["type"], found["role"], found["model"]) == ("message", "assistant", "toy")
    assert [block["type"] for block in found["content"]] == ["text"]
    assert found["stop_reason"] == "max_tokens" and found["stop_sequence"] is None
    usage = found["usage"]
    assert usage["cache_read_input_tokens"] == 3 and usage["output_tokens"] == 9
    assert usage["input_tokens"] == len(server.engine.requests[-1].tokens) - 3


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "look"}])
def test_required_calls_are_demanded(server: Running, choice: Any) -> None:
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    prompt(server, tools=tools, tool_choice=choice)
    constraint = server.engine.requests[-1].sampling.constraint
    assert constraint is not None and "look" in constraint.text
    assert constraint.field == "tools"


def test_the_engine_refuses_in_own_words_too() -> None:
    told = "tools: tools[1].function.parameters.properties.a.format: is not known"
    refuse = Finish(type="abort", status=400, message=told, param="tools")
    with running_server(engine=ScriptedEngine(refuse=refuse)) as server:
        answer = ask(server, "/v1/messages", {"messages": HI, "max_tokens": 1})
        said = answer.json["error"]["message"]
        assert said == "tools: tools[1].input_schema.properties.a.format: is not known"
        answer = ask(server, "/v1/responses", {"input": "hi", "tools": RESPONSE_TOOLS})
        said = answer.json["error"]["message"]
        assert said == "tools: tools[1].parameters.properties.a.format: is not known"


def test_reasons_to_stop() -> None:
    def script(request: Request) -> list[int]:
        return [*b"The end. More", 256]

    with running_server(engine=ScriptedEngine(script=script)) as server:
        body = {"messages": HI, "max_tokens": 50}
        assert ask(server, "/v1/messages", body).json["stop_reason"] == "end_turn"
        answer = ask(server, "/v1/messages", {**body, "stop_sequences": ["end", "none"]}).json
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "end")
        assert answer["content"] == [text("The ")]


def test_turns_become_messages(server: Running) -> None:
    turns = [
        {"role": "user", "content": [text("a"), text("b")]},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "42"}]},
    ]
    said = prompt(server, messages=turns, system=[text("be"), text("brief")])
    assert said.startswith("<system>")
    assert "<tool>42" in said and said.index("<user>") < said.index("<tool>")
    assert said.count("<user>") == 1 and said.endswith("<assistant>")


def test_a_last_turn_of_the_assistant_is_gone_on_with(server: Running) -> None:
    said = prompt(server, messages=[*HI, {"role": "assistant", "content": "Well"}])
    assert said.endswith("<assistant>Well")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_tokens": 1}, "messages"),
        ({"messages": HI}, "max_tokens"),
        ({"messages": [], "max_tokens": 1}, "messages"),
        ({"messages": HI, "max_tokens": -1}, "max_tokens"),
        ({"messages": HI, "max_tokens": 1, "stop_sequences": [""]}, "stop_sequences"),
        ({"messages": HI, "max_tokens": 1, "temperature": -1}, "temperature"),
        ({"messages": [*HI, {"role": "user", "content": [{"type": "document"}]}],
          "max_tokens": 1}, "messages[1].content[0]"),
        ({"messages": HI, "max_tokens": 1, "mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"messages": HI, "max_tokens": 1, "tools": [{"name": "a b", "input_schema": {}}]},
         "tools[0].name"),
        ({"messages": HI, "max_tokens": 1, "tools": [{"name": "a", "input_schema": {}}],
          "tool_choice": {"type": "tool", "name": "b"}}, "tool_choice.name"),
    ],
)  # fmt: skip
def test_refusals_have_anthropics_form(server: Running, body: Any, field: str) -> None:
    answer = ask(server, "/v1/messages", body)
    assert answer.status == 400
    assert set(answer.json) == {"type", "error"} and answer.json["type"] == "error"
    assert answer.json["error"]["type"] == "invalid_request_error"
    assert answer.json["error"]["message"].startswith(field)


def test_threads_are_refused_in_anthropics_words(server: Running) -> None:
    """Its tool runner asks for one, and would send the second turn without the first."""
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        answer = ask(server, "/v1/messages", {"messages": HI, "max_tokens": 1, "thread": thread})
        assert answer.status == 400
        assert answer.json["error"]["details"] == {"error_code": "thread_unsupported_request"}
    assert prompt(server, thread=None) == prompt(server)


def test_a_prompt_that_is_too_long_is_told_in_anthropics_words(server: Running) -> None:
    turns = [{"role": "user", "content": "x" * (CONTEXT + 1)}]
    answer = ask(server, "/v1/messages", {"messages": turns, "max_tokens": 1})
    assert answer.json["error"]["message"].startswith("prompt is too long")


def test_tokens_are_counted_as_the_answer_counts_them(server: Running) -> None:
    body = {"messages": HI, "system": "be brief"}
    counted = ask(server, "/v1/messages/count_tokens", body).json
    usage = ask(server, "/v1/messages", {**body, "max_tokens": 1}).json["usage"]
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_the_key_may_come_as_x_api_key() -> None:
    with running_server(ServerSettings(api_keys=("one", "two"))) as server:
        body = {"messages": HI, "max_tokens": 1}
        for headers, status in [
            ({}, 401),
            ({"X-Api-Key": "three"}, 401),
            ({"X-Api-Key": ""}, 401),
            ({"X-Api-Key": "two"}, 200),
            ({"X-Api-Key": "two", "Authorization": "Bearer three"}, 401),
            ({"X-Api-Key": "three", "Authorization": "Bearer two"}, 200),
        ]:
            answer = ask(server, "/v1/messages", body, headers=headers)
            assert answer.status == status, headers
            if status == 401:
                assert answer.json["error"]["type"] == "authentication_error"


# -- streams ---------------------------------------------------------------------------------------


def named_events(body: str) -> list[tuple[str, Any]]:
    """(name, data) of each event, whose data says the same type."""
    found = []
    for block in body.split("\n\n")[:-1]:
        name, data = block.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        found.append((value["type"], value))
    return found


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
def test_silence_is_filled_with_pings(path: str) -> None:
    settings = ServerSettings(stream_silence=0.01)
    with running_server(settings, ScriptedEngine(lambda _: [*b"ab"], pause=0.3)) as server:
        text = ask(server, path, {"messages": HI, "max_tokens": 2, "stream": True}).text
    if path == "/v1/chat/completions":  # OpenAI's has none
        assert "ping" not in text
        return
    kinds = [kind for kind, _ in named_events(text)]
    assert kinds.count("ping") > 2 and kinds[-1] == "message_stop"
    assert kinds[0] == "ping" and "message_start" in kinds  # also before there is anything
    assert kinds.index("content_block_delta") < len(kinds) - 1 - kinds[::-1].index("ping")


def test_what_fails_behind_a_ping_is_an_event() -> None:
    refuse = Finish(type="abort", status=503, message="full")
    settings = ServerSettings(stream_silence=0.01)
    with running_server(settings, ScriptedEngine(refuse=refuse, pause=0.1)) as server:
        answer = ask(server, "/v1/messages", {"messages": HI, "max_tokens": 2, "stream": True})
    *_, (kind, told) = named_events(answer.text)
    assert (answer.status, kind, told["error"]["message"]) == (200, "error", "full")


def test_a_stream_says_what_the_whole_answer_says(server: Running) -> None:
    body = {"messages": HI, "max_tokens": 40}
    answer = ask(server, "/v1/messages", {**body, "stream": True})
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    found = named_events(answer.text)
    names = [name for name, _ in found]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[3:-3]) == {"content_block_delta"}
    start, end = found[0][1]["message"], found[-2][1]
    assert start["content"] == [] and start["stop_reason"] is None
    assert start["usage"]["input_tokens"] == len(server.engine.requests[-1].tokens) - 3
    assert end["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert end["usage"]["output_tokens"] == 40
    said = "".join(data["delta"]["text"] for name, data in found if name == "content_block_delta")
    assert len(said.encode()) >= 40


def test_a_failure_ends_a_stream_with_an_error() -> None:
    refuse = Finish(type="abort", status=500, message="broken")
    with running_server(engine=ScriptedEngine(refuse=refuse)) as server:
        answer = ask(server, "/v1/messages", {"messages": HI, "max_tokens": 9, "stream": True})
        assert answer.status == 500 and answer.json["error"]["type"] == "api_error"


def test_a_client_that_leaves_cancels_its_request() -> None:
    import asyncio

    import aiohttp

    async def leave(url: str) -> None:
        body = {"messages": HI, "max_tokens": 500, "stream": True}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/v1/messages", json=body) as response,
        ):
            await response.content.readany()
        await asyncio.sleep(0)

    with running_server(engine=ScriptedEngine(pause=0.01)) as server:
        server.run(leave(server.url))
        server.until(lambda: len(server.engine.cancelled) == 1)
        server.until(lambda: server.frontend.live == 0)


Delta = dict[str, Any]
TEXTS = st.text(max_size=6)
DELTAS: st.SearchStrategy[Delta] = st.one_of(
    st.fixed_dictionaries({"content": TEXTS}),
    st.fixed_dictionaries({"reasoning_content": TEXTS}),
    st.fixed_dictionaries({"index": st.integers(0, 3), "new": st.booleans(), "arguments": TEXTS}),
)


def chunk(delta: Delta, **choice: Any) -> bytes:
    value = {"id": "msg_1", "model": "toy", "choices": [{"index": 0, "delta": delta, **choice}]}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def call_deltas(deltas: list[Delta]) -> list[Delta]:
    """Tool calls in the order in which models make them: one after the other, each without text
    in it."""
    found: list[Delta] = []
    number, inside = -1, False
    for delta in deltas:
        if "index" not in delta:
            found.append(delta)
            inside = inside and not any(delta.values())
            continue
        function: Delta = {"arguments": delta["arguments"]}
        call: Delta = {"function": function}
        if not inside or delta["new"]:
            number, inside = number + 1, True
            function["name"], call["id"] = f"f{number}", f"call_{number}"
        found.append({"tool_calls": [{**call, "index": number}]})
    return found


@given(st.lists(DELTAS, max_size=12), st.booleans())
def test_blocks_of_any_stream_are_whole_and_in_order(deltas: list[Delta], apart: bool) -> None:
    """However the chat path cuts its events, blocks open, grow and close one after the other, and
    hold what it said."""
    sent = call_deltas(deltas)
    data = [chunk(delta) for delta in sent]
    data += [chunk({}, finish_reason="stop"), b"data: [DONE]\n\n"]
    events = MessageEvents()
    parts = data if apart else [b"".join(data)]
    found = named_events(b"".join(events.convert(part) for part in parts).decode())
    assert [name for name, _ in found[:2]] == ["message_start", "ping"]
    assert [name for name, _ in found[-2:]] == ["message_delta", "message_stop"]
    said: dict[str, str] = {}
    opened: list[dict[str, Any]] = []
    is_open = False
    for name, event in found[2:-2]:
        assert event["index"] == len(opened) - (name != "content_block_start")
        if name == "content_block_start":
            assert not is_open
            is_open = True
            opened.append(event["content_block"])
        elif name == "content_block_stop":
            is_open = False
        else:
            assert is_open
            (key,) = set(event["delta"]) - {"type"}
            said[key] = said.get(key, "") + event["delta"][key]
    assert not is_open
    for key, of in (("text", "content"), ("thinking", "reasoning_content")):
        assert said.get(key, "") == "".join(delta.get(of, "") for delta in sent)
    calls = [call for delta in sent for call in delta.get("tool_calls", ())]
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert said.get("partial_json", "") == arguments
    names = [call["function"]["name"] for call in calls if "id" in call]
    shown = [block["name"] for block in opened if block["type"] == "tool_use"]
    assert list(dict.fromkeys(shown)) == names


def test_an_error_in_a_stream_is_the_last_event() -> None:
    events = MessageEvents()
    body = json.dumps({"message": "broken", "code": 503, "error": {"message": "broken"}}).encode()
    data = chunk({"content": "a"}) + b"data: " + body + b"\n\ndata: [DONE]\n\n"
    *_, (name, value) = named_events(events.convert(data).decode())
    assert name == "error" and value == anthropic_error(503, "broken")
    assert documents(events.convert(chunk({"content": "b"})).decode()) == []


def test_a_path_that_is_asked_wrongly_answers_in_its_own_form(server: Running) -> None:
    for method, path, status, kind in (
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("PUT", "/v1/messages/count_tokens", 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("GET", "/v1/messages/batches/msgbatch_1/results", 404, "not_found_error"),
    ):
        answer = ask(server, path, method=method)
        assert answer.status == status
        assert (answer.json["type"], answer.json["error"]["type"]) == ("error", kind), path
    for method, path in (("GET", "/api/chat"), ("POST", "/api/tags"), ("HEAD", "/api/blobs/x")):
        answer = ask(server, path, method=method)
        assert answer.status in (404, 405)
        assert method == "HEAD" or isinstance(answer.json["error"], str)
    for path in ("/v1/chat/completions", "/v1/none", "/" * 300):
        assert ask(server, path, method="PUT").json["object"] == "error"


def test_models_in_anthropics_form(server: Running) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    listed = ask(server, "/v1/models", method="GET", headers=headers).json
    (model,) = listed["data"]
    assert (model["type"], model["id"], model["display_name"]) == ("model", "toy", "toy")
    assert datetime.fromisoformat(model["created_at"]).year > 2000
    ends = listed["first_id"], listed["last_id"], listed["has_more"]
    assert ends == ("toy", "toy", False)
    assert ask(server, "/v1/models/toy", method="GET", headers=headers).json == model
    missing = ask(server, "/v1/models/other", method="GET", headers=headers)
    assert missing.status == 404 and missing.json["error"]["type"] == "not_found_error"
    for method, path in (("POST", "/v1/models"), ("GET", "/v1/files"), ("POST", "/v1/complete")):
        answer = ask(server, path, method=method, headers=headers)
        assert answer.status in (404, 405) and answer.json["type"] == "error", path
    assert ask(server, "/v1/models/toy", method="GET").json["object"] == "model"


def test_who_has_no_key_is_told_in_anthropics_form() -> None:
    headers = {"anthropic-version": "2023-06-01"}
    with running_server(ServerSettings(api_keys=("secret",))) as server:
        answer = ask(server, "/v1/models", method="GET", headers=headers)
        assert answer.status == 401 and answer.json["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    ("tool", "place", "word"),
    [
        ({"type": "mcp_toolset", "mcp_server_name": "x"}, "tools[0].type", "MCP"),
        ({"type": "web_search_20250305", "name": "web_search"}, "tools[0].type", "leave"),
        ({"type": "bash_20250124", "name": "bash"}, "tools[0].type", "describe"),
        ({"type": "function", "function": {"name": "f"}}, "tools[0].type", "in the tool itself"),
        ({"input_schema": {}}, "tools[0].name", "required"),
        ({"name": "f"}, "tools[0].input_schema", "required"),
    ],
)
def test_tools_of_anthropics_own_are_told_what_to_do(
    server: Running, tool: Any, place: str, word: str
) -> None:
    answer = ask(server, "/v1/messages", {"messages": HI, "max_tokens": 1, "tools": [tool]})
    message = answer.json["error"]["message"]
    assert answer.status == 400 and message.startswith(f"{place}: ") and word in message


@pytest.mark.parametrize(
    ("block", "word"),
    [
        ({"type": "code_execution_tool_result", "tool_use_id": "1",
          "content": {"type": "code_execution_result", "stdout": "1"}}, "send what came of it"),
        ({"type": "web_search_tool_result", "tool_use_id": "1",
          "content": {"type": "web_search_tool_result_error"}}, "send what came of it"),
        ({"type": "mcp_tool_result", "tool_use_id": "1", "content": [text("a")]}, "what came"),
        ({"type": "tool_result", "tool_use_id": "1", "content": {"a": 1}}, "list of parts"),
    ],
)  # fmt: skip
def test_results_of_anthropics_own_tools_are_told_what_to_do(
    server: Running, block: Any, word: str
) -> None:
    turn = {"role": "user", "content": [block]}
    answer = ask(server, "/v1/messages", {"messages": [turn], "max_tokens": 1})
    message = answer.json["error"]["message"]
    assert answer.status == 400 and message.startswith("messages[0].content[0]")
    assert word in message and "messages[0].content[0]" in message
