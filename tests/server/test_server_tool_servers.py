"""Responses whose calls tool servers make: items, events, approvals, limits, failures."""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import fake_tools
import pytest
from fake_tool_sites import FakeSite
from fake_tools import RESULT, TOOLS
from hypothesis import given
from hypothesis import strategies as st
from scripted_model import SPECIAL
from server_kit import EOS, Running, ScriptedEngine, ask, make_tokenizer, running_server

from vivace.config.http import ToolServerSpec
from vivace.protocol.messages import Request
from vivace.server.apis.item_events import encode_events
from vivace.server.apis.responses_events import ResponseEvents
from vivace.server.apis.responses_request import begin_response
from vivace.server.apis.responses_schema import ResponsesRequest
from vivace.server.apis.server_tools import ServerList, ServerTool, ToolOffer
from vivace.server.context import CONTEXT
from vivace.server.settings import ServerSettings
from vivace.tool_servers.servers import ToolServers
from vivace.tool_servers.transport import ToolLimits

PATH = "/v1/responses"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TOKENIZER = make_tokenizer(TEMPLATE, special=SPECIAL)
FREE: dict[str, Any] = {"type": "mcp", "server_label": "weather", "require_approval": "never"}
ASKED = {**FREE, "require_approval": "always"}


def speak(request: Request) -> list[int]:
    """Calls each tool that the last message names, with the same argument, once; then says what
    was found."""
    prompt = bytes(token for token in request.tokens if token < 256).decode()
    last = prompt.removesuffix("<assistant>").rstrip("\n").rpartition("\n")[2]
    if last.startswith("<user>call "):
        calls = [{"name": n, "arguments": {"city": "Paris"}} for n in last.split()[1:]]
        said = "".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>\n" for call in calls)
    elif "<user>again" in prompt:
        said = '<tool_call>\n{"name": "look", "arguments": {"city": "Rome"}}\n</tool_call>'
    else:
        said = f"Found {last.partition('>')[2]}"
    return [*TOKENIZER.encode(said, add_special_tokens=False), EOS]


Served = tuple[Running, FakeSite]


@contextmanager
def serving(call_seconds: float = 5) -> Iterator[Served]:
    """A server that knows the fake one at a site and as a command, and one that is not there."""
    site = FakeSite()
    command = (sys.executable, fake_tools.__file__)
    servers = ToolServers(
        [
            ToolServerSpec(label="weather", transport="sse", url=f"{site.url}/sse"),
            ToolServerSpec(label="local", transport="stdio", command=command),
            ToolServerSpec(label="gone", transport="sse", url="http://127.0.0.1:1/sse"),
        ],
        ToolLimits(connect=5, call=call_seconds, stop=0.2, retry=0),
    )
    with running_server(
        ServerSettings(tool_call_parser="hermes", stream_silence=call_seconds / 4),
        ScriptedEngine(speak),
        tokenizer=TOKENIZER,
        tool_servers=servers,
        context=4096,
        vocabulary=258 + len(SPECIAL),
    ) as server:
        on_loop(server, site.start())
        try:
            yield server, site
        finally:
            on_loop(server, servers.close())
            on_loop(server, site.stop())


def on_loop(server: Running, work: Any) -> None:
    asyncio.run_coroutine_threadsafe(work, server.loop).result(10)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as found:
        yield found


@pytest.fixture
def server(served: Served) -> Running:
    return served[0]


def create(server: Running, text: Any, *tools: dict[str, Any], **fields: Any) -> Any:
    body = {"input": text, "tools": list(tools or (FREE,)), "temperature": 0, **fields}
    answer = ask(server, PATH, body)
    assert answer.status == 200, answer.text
    return answer.json if not fields.get("stream") else read_events(answer.text)


def read_events(body: str) -> list[Any]:
    found = []
    blocks = [block for block in body.split("\n\n")[:-1] if not block.startswith(":")]
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}" and value["sequence_number"] == number
        found.append(value)
    return found


def kinds(response: Any) -> list[str]:
    return [item["type"] for item in response["output"]]


def text(response: Any) -> str:
    return response["output"][-1]["content"][0]["text"]


def prompts(server: Running, count: int) -> list[str]:
    """What the engine was given last."""
    asked = server.engine.requests[-count:]
    return [bytes(t for t in one.tokens if t < 256).decode() for one in asked]


def test_calls_are_made_and_the_model_goes_on(server: Running) -> None:
    found = create(server, "call look")
    assert kinds(found) == ["mcp_list_tools", "mcp_call", "message"]
    listed, call, _ = found["output"]
    assert listed["server_label"] == "weather"
    assert [tool["name"] for tool in listed["tools"]] == [tool["name"] for tool in TOOLS]
    assert listed["tools"][0]["input_schema"] == TOOLS[0]["inputSchema"]
    assert (call["name"], call["server_label"], call["status"]) == ("look", "weather", "completed")
    assert json.loads(call["arguments"]) == {"city": "Paris"}
    assert call["output"] == f"{RESULT} in Paris" and call.get("error") is None
    assert text(found) == f"Found {RESULT} in Paris"
    first, second = prompts(server, 2)
    assert second.startswith(first) and second.endswith(
        f"[look]\n<tool>{RESULT} in Paris\n<assistant>"
    )
    tokens = sum(len(request.tokens) for request in server.engine.requests[-2:])
    assert found["usage"]["input_tokens"] == tokens
    assert found["status"] == "completed" and found["tools"] == [FREE]


def test_several_calls_of_a_turn_are_made_together(server: Running) -> None:
    """Also calls of two servers whose tools have the same names, and of one on standard streams."""
    local = {**FREE, "server_label": "local"}
    found = create(server, "call look local__look", FREE, local, stream=False)
    calls = [item for item in found["output"] if item["type"] == "mcp_call"]
    assert [(call["server_label"], call["name"]) for call in calls] == [
        ("weather", "look"),
        ("local", "look"),
    ]
    assert "[look][local__look]\n<tool>sun in Paris\n<tool>sun in Paris\n" in prompts(server, 1)[0]


@pytest.mark.parametrize("tool", ["fail", "huge", "garbage"])
def test_a_call_that_fails_is_told_to_the_model(server: Running, tool: str) -> None:
    found = create(server, f"call {tool}")
    call = found["output"][1]
    assert (call["status"], call.get("output")) == ("failed", None) and call["error"]
    assert text(found).startswith("Found The call failed: ")
    assert create(server, "call look")["output"][1]["status"] == "completed"


def test_a_stream_says_what_the_whole_response_says(server: Running) -> None:
    found = create(server, "call look", stream=True)
    names = [event["type"].removeprefix("response.") for event in found]
    order = [name for place, name in enumerate(names) if names[place - 1] != name]
    assert order == [
        *("created", "in_progress"),
        *("output_item.added", "mcp_list_tools.in_progress", "mcp_list_tools.completed"),
        *("output_item.done", "output_item.added", "mcp_call.in_progress"),
        *("mcp_call_arguments.delta", "mcp_call_arguments.done", "mcp_call.completed"),
        *("output_item.done", "output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    output = found[-1]["response"]["output"]
    done = [event for event in found if event["type"].endswith("item.done")]
    assert [event["item"] for event in done] == output
    assert [event["output_index"] for event in done] == [0, 1, 2]
    deltas = [event["delta"] for event in found if event["type"].endswith("arguments.delta")]
    assert "".join(deltas) == output[1]["arguments"]
    whole = create(server, "call look")
    for mine, other in zip(output, whole["output"], strict=True):
        assert {**mine, "id": 0, "call_id": 0} == {**other, "id": 0, "call_id": 0}


@pytest.mark.parametrize("stream", [False, True])
def test_calls_beyond_the_limit_are_ignored(server: Running, stream: bool) -> None:
    found = create(server, "again", max_tool_calls=3, stream=stream)
    whole = found[-1]["response"] if stream else found
    assert kinds(whole).count("mcp_call") == 3 and whole["status"] == "completed"
    assert kinds(whole)[-1] == "message"
    assert create(server, "call look", max_tool_calls=0)["output"][-1]["type"] == "message"


def test_tools_of_one_name_are_told_apart(server: Running) -> None:
    own = [{"type": "function", "name": name} for name in ("look", "weather__look")]
    found = create(server, "call weather__look_2", *own, FREE)
    assert found["output"][1]["name"] == "look" and text(found) == "Found sun in Paris"


def test_tokens_are_limited_over_all_turns(server: Running) -> None:
    length = len(TOKENIZER.encode('<tool_call>\n{"name": "look", "arguments": {"city": "Rome"}}'))
    found = create(server, "again", max_output_tokens=3 * length)
    assert found["status"] == "incomplete" and found["usage"]["output_tokens"] <= 3 * length


def test_functions_of_the_client_end_the_response(server: Running) -> None:
    own = {"type": "function", "name": "mine", "parameters": {"type": "object"}}
    found = create(server, "call look mine", FREE, own)
    assert kinds(found) == ["mcp_list_tools", "mcp_call", "function_call"]
    result = {"type": "function_call_output", "call_id": found["output"][2]["call_id"]}
    again = create(
        server, [{**result, "output": "42"}], FREE, own, previous_response_id=found["id"]
    )
    assert "[look][mine]\n<tool>sun in Paris\n<tool>42" in prompts(server, 1)[0]
    assert kinds(again) == ["message"]  # the conversation has the tools
    assert text(again) == "Found 42"


NAMES = ("mine", "look", "ask")
OFFER = ToolOffer(
    served={
        "look": ServerTool("weather", "look", asks=False),
        "ask": ServerTool("weather", "ask", asks=True),
    },
    lists=[ServerList("weather", [])],
)
NEWS = st.one_of(
    st.tuples(st.sampled_from(["content", "reasoning_content"]), st.text(min_size=1, max_size=5)),
    st.tuples(st.sampled_from(NAMES), st.text(max_size=5)),
)
TURN = st.tuples(st.lists(NEWS, max_size=6), st.sampled_from(["stop", "length", "abort"]))


@given(st.lists(TURN, min_size=1, max_size=4), st.integers(0, 3))
def test_events_of_any_turns_make_the_response(turns: list[Any], most: int) -> None:
    """Each item is told once, in its place, and as it stands in the response at the end."""
    begun = begin_response(ResponsesRequest(input="hi"), "resp_1", "toy", store=False)
    events = ResponseEvents(begun, OFFER, most)
    told = b""
    for news, reason in turns:
        told += events.convert(b"".join(chunks(news, reason)))
        if events.over:
            break
        told += b"".join(events.settle(call, "found", None) for call in events.calls)
        told += encode_events(events.next_turn())
    told += events.fail() + events.end_event()
    found = read_events(told.decode())
    whole = found[-1]["response"]
    assert events.over and found[-1]["type"] == f"response.{whole['status']}"
    for kind in ("added", "done"):
        items = [e for e in found if e["type"] == f"response.output_item.{kind}"]
        assert sorted(e["output_index"] for e in items) == list(range(len(whole["output"])))
        if kind == "done":
            output = {e["output_index"]: e["item"] for e in items}
            assert [output[index] for index in sorted(output)] == whole["output"]
    assert (
        sum(item["type"] in ("mcp_call", "mcp_approval_request") for item in whole["output"])
        <= most
    )
    assert not any(item.get("status") == "in_progress" for item in whole["output"])


def test_what_fails_behind_a_turn_tells_what_the_turn_took() -> None:
    for turns, total in ((0, None), (1, 7)):
        begun = begin_response(ResponsesRequest(input="hi"), "resp_1", "toy", store=False)
        events = ResponseEvents(begun, OFFER, 1)
        for _ in range(turns):
            usage = {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}
            events.convert(b"data: " + json.dumps({"choices": [], "usage": usage}).encode())
            events.convert(b"".join(chunks([("look", "{}")], "stop")))
            encode_events(events.next_turn())
        events.fail()
        assert (begun.usage and begun.usage.total_tokens) == total


def chunks(news: list[tuple[str, str]], reason: str) -> Iterator[bytes]:
    """What the chat path says of one turn."""
    for number, (kind, text) in enumerate(news):
        delta: Any = {kind: text}
        if kind in NAMES:
            call = {"index": number, "id": f"c{number}", "function": {"name": kind}}
            yield chunk({"tool_calls": [call]})
            delta = {"tool_calls": [{"index": number, "function": {"arguments": text}}]}
        yield chunk(delta)
    yield chunk({}, finish_reason=reason)
    yield b"data: [DONE]\n\n"


def chunk(delta: Any, **choice: Any) -> bytes:
    value = {"choices": [{"index": 0, "delta": delta, **choice}]}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


# -- approvals -------------------------------------------------------------------------------------


def test_a_call_waits_for_approval(server: Running) -> None:
    for stream in (False, True):
        asked = create(server, "call look", ASKED)
        assert kinds(asked) == ["mcp_list_tools", "mcp_approval_request"]
        request = asked["output"][1]
        assert (request["name"], request["server_label"]) == ("look", "weather")
        yes = {"type": "mcp_approval_response", "approval_request_id": request["id"]}
        found = create(
            server,
            [{**yes, "approve": True}],
            ASKED,
            previous_response_id=asked["id"],
            stream=stream,
        )
        whole = found[-1]["response"] if stream else found
        call = next(item for item in whole["output"] if item["type"] == "mcp_call")
        assert call["approval_request_id"] == request["id"] and call["output"] == "sun in Paris"
        assert text(whole) == "Found sun in Paris"
        assert "<user>call look\n<assistant>[look]\n<tool>sun" in prompts(server, 1)[0]


def test_behind_an_approved_call_the_model_may_be_kept_from_others(server: Running) -> None:
    asked = create(server, "again", ASKED)
    yes = {"type": "mcp_approval_response", "approval_request_id": asked["output"][1]["id"]}
    found = create(
        server,
        [{**yes, "approve": True}],
        ASKED,
        previous_response_id=asked["id"],
        tool_choice="none",
    )
    assert kinds(found) == ["mcp_call", "message"]


def test_a_call_that_is_not_approved_is_not_made(served: Served) -> None:
    server, site = served
    asked = create(server, "call look", ASKED, store=False)
    made = site.methods().count("tools/call")
    no = {
        "type": "mcp_approval_response",
        "approval_request_id": asked["output"][1]["id"],
        "approve": False,
        "reason": "too far",
    }
    items = [{"role": "user", "content": "call look"}, *asked["output"], no]
    found = create(server, items, ASKED)
    assert kinds(found) == ["message"]  # the client knows the tools
    assert text(found).endswith("did not approve this call. too far")
    assert site.methods().count("tools/call") == made


@pytest.mark.parametrize("stream", [False, True])
def test_an_approved_call_is_made_once(served: Served, stream: bool) -> None:
    """Also when the whole conversation is sent again, with the call that was made."""
    server, site = served
    asked = create(server, "call look", ASKED)
    request = asked["output"][1]
    made = site.methods().count("tools/call")
    yes = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
    again = {"input": [yes], "previous_response_id": asked["id"], "tools": [ASKED]}
    found = ask(server, PATH, again).json
    answer = ask(server, PATH, {**again, "stream": stream})
    assert (answer.status, answer.json["param"]) == (400, "input")
    before = [{"role": "user", "content": "call look"}, *asked["output"], yes]
    items = [*before, *found["output"], {"role": "user", "content": "and?"}]
    for sent in (items, [{"type": "item_reference", "id": one["id"]} if "id" in one else one
                         for one in items]):  # fmt: skip
        assert kinds(create(server, sent, ASKED)) == ["message"]
    said = "<user>call look\n<assistant>[look]\n<tool>sun in Paris\n<assistant>Found sun in Paris\n"
    assert prompts(server, 1) == [f"{said}<user>and?\n<assistant>"]
    assert site.methods().count("tools/call") == made + 1


def test_what_goes_wrong_behind_a_call_tells_of_the_call(server: Running) -> None:
    """It was made, so the client has to have its outcome; no approval makes it again."""

    def approve(identity: str) -> Any:
        request = {"type": "mcp_approval_request", "name": "look", "server_label": "weather"}
        yes = {"type": "mcp_approval_response", "approval_request_id": identity, "approve": True}
        items = [{"role": "user", "content": "x" * 4090}, {**request, "id": identity}, yes]
        return {"input": items, "tools": [ASKED]}

    answer = ask(server, PATH, approve("a"))
    last = read_events(ask(server, PATH, {**approve("b"), "stream": True}).text)[-1]
    assert (answer.status, last["type"]) == (200, "response.failed")
    for found in (answer.json, last["response"]):
        assert (found["status"], found["error"]["code"]) == ("failed", "invalid_prompt")
        assert found["error"]["message"].startswith("input: ")
        assert found["output"][-1]["output"] == "sun in None"
    kept = http.client.HTTPConnection("127.0.0.1", server.port)
    kept.request("GET", f"{PATH}/{answer.json['id']}")
    assert json.load(kept.getresponse())["status"] == "failed"
    kept.close()
    assert ask(server, PATH, approve("a")).status == 400  # it was made already


def test_filters_say_what_is_asked_about(server: Running) -> None:
    reading = {**FREE, "require_approval": {"never": {"read_only": True}}}
    assert "mcp_call" in kinds(create(server, "call look", reading))
    assert "mcp_approval_request" in kinds(create(server, "call fail", reading))
    some = {**FREE, "allowed_tools": ["look"]}
    assert len(create(server, "call look", some)["output"][0]["tools"]) == 1


def test_items_of_past_calls_become_messages(server: Running) -> None:
    found = create(server, "call look", store=False)
    items = [{"role": "user", "content": "call look"}, *found["output"]]
    create(server, [*items, {"role": "user", "content": "and?"}])
    said = "<user>call look\n<assistant>[look]\n<tool>sun in Paris\n<assistant>Found sun in Paris\n"
    assert prompts(server, 1) == [f"{said}<user>and?\n<assistant>"]


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"server_url": "http://elsewhere/sse"}, "tools[0].server_url"),
        ({"headers": {"a": "b"}}, "tools[0].headers"),
        ({"authorization": "x"}, "tools[0].authorization"),
        ({"connector_id": "connector_gmail"}, "tools[0].connector_id"),
        ({"server_label": "other"}, "tools[0].server_label"),
        ({"server_label": None}, "tools[0].server_label"),
        ({"allowed_tools": ["nothing"]}, "tools[0].allowed_tools"),
        ({"require_approval": "perhaps"}, "tools[0].require_approval"),
    ],
)
def test_requests_choose_nobody_to_speak_with(server: Running, tool: Any, param: str) -> None:
    answer = ask(server, PATH, {"input": "hi", "tools": [{**FREE, **tool}]})
    assert (answer.status, answer.json["error"]["param"]) == (400, param), answer.text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [FREE, FREE]}, "tools[1].server_label"),
        ({"tools": [{**FREE, "allowed_tools": []}] * 2}, "tools[1].server_label"),
        ({"tool_choice": {"type": "mcp", "server_label": "weather", "name": "x"}}, "tool_choice"),
        ({"max_tool_calls": -1}, "max_tool_calls"),
        ({"max_tool_calls": 0, "input": [
            {"type": "mcp_approval_request", "id": "a", "name": "look", "server_label": "weather"},
            {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True}]},
         "input"),
        ({"input": [{"type": "mcp_approval_response", "approve": True}]},
         "input[0].approval_request_id"),
        ({"input": [{"type": "mcp_approval_response", "approval_request_id": "mcpr_1",
                     "approve": True}]}, "input[0].approval_request_id"),
        ({"input": [{"type": "mcp_call", "id": "x"}]}, "input[0].name"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(server: Running, fields: Any, param: str) -> None:
    answer = ask(server, PATH, {"input": "hi", "tools": [FREE], **fields})
    assert (answer.status, answer.json["error"]["param"]) == (400, param), answer.text


def test_a_choice_of_one_tool_is_for_the_first_turn(server: Running) -> None:
    choice = {"type": "mcp", "server_label": "weather", "name": "look"}
    found = create(server, "call look", tool_choice=choice)
    first, second = server.engine.requests[-2:]
    assert first.sampling.constraint is not None and second.sampling.constraint is None
    assert found["tool_choice"] == choice


def test_tools_of_a_server_may_be_all_that_are_allowed(server: Running) -> None:
    choice = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "mcp", "server_label": "weather"}],
    }
    own = {"type": "function", "name": "own"}
    create(server, "call look", tool_choice=choice, tools=[FREE, own])
    first, second = (request.sampling.constraint for request in server.engine.requests[-2:])
    assert first is not None and "look" in first.text and "own" not in first.text
    assert second is not None and "own" not in second.text and second.field == "tools"


def test_a_server_that_is_not_there_fails_its_requests_only(server: Running) -> None:
    answer = ask(server, PATH, {"input": "hi", "tools": [{**FREE, "server_label": "gone"}]})
    assert answer.status == 424 and "gone" in answer.json["error"]["message"]
    assert create(server, "call look")["status"] == "completed"


# -- in the midst of a call ------------------------------------------------------------------------


def test_a_client_that_leaves_ends_its_call() -> None:
    with serving() as (server, site):

        async def leave() -> None:
            body = {"input": "call slow", "tools": [FREE], "stream": True}
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            data = json.dumps(body).encode()
            head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            await reader.readuntil(b"mcp_call_arguments.done")
            server.until(lambda: "tools/call" in site.methods())
            writer.close()

        server.run(leave())
        server.until(lambda: "notifications/cancelled" in site.methods())


def test_a_response_in_the_background_is_cancelled_in_a_call() -> None:
    with serving() as (server, site):
        found = create(server, "call slow", background=True)
        server.until(lambda: "tools/call" in site.methods())
        ended = ask(server, f"{PATH}/{found['id']}/cancel").json
        assert ended["status"] == "cancelled" and ended["output"][-1]["status"] == "incomplete"
        other = create(server, "call look", background=True)
        server.until(lambda: server.frontend.accepted == 0)
        assert ask(server, f"{PATH}/{other['id']}", method="GET").json["status"] == "completed"


def test_a_slow_call_fails_in_time_and_is_counted() -> None:
    with serving(call_seconds=0.2) as (server, _):
        body = {"input": "call slow", "tools": [FREE], "stream": True}
        told = ask(server, PATH, body).text
        assert "\n\n: " in told  # so that nobody takes the connection for dead
        found = read_events(told)
        assert found[-1]["response"]["output"][1]["status"] == "failed"
        assert "response.mcp_call.failed" in [event["type"] for event in found]
        totals = server.app[CONTEXT].http_metrics.totals()
        assert totals["tool_calls", "weather", "failed"] == 1


def test_openais_client(server: Running) -> None:
    openai: Any = pytest.importorskip("openai", reason="pip install openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)
    asked: dict[str, Any] = {"model": "toy", "tools": [FREE]}
    with client.responses.stream(input="call look", **asked) as stream:
        seen = [event.type for event in stream]
        final = stream.get_final_response()
    assert {"response.mcp_list_tools.completed", "response.mcp_call.completed"} <= set(seen)
    listed, call, _ = final.output
    assert listed.tools[0].input_schema == TOOLS[0]["inputSchema"]
    assert (call.type, call.output) == ("mcp_call", "sun in Paris")
    assert final.output_text == "Found sun in Paris"
    asked["tools"] = [ASKED]
    for way in ("stored", "sent"):
        waiting = client.responses.create(input="call look", **asked)
        request = waiting.output[-1]
        assert request.type == "mcp_approval_request" and json.loads(request.arguments)
        yes = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
        fields: Any = {"input": [{"role": "user", "content": "call look"}, *waiting.output, yes]}
        if way == "stored":
            fields = {"input": [yes], "previous_response_id": waiting.id}
        assert client.responses.create(**fields, **asked).output_text == "Found sun in Paris"
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(input="hi", tools=[{**FREE, "server_url": "http://x/"}], model="m")
    assert caught.value.param == "tools[0].server_url"


@pytest.mark.parametrize("stream", [False, True])
def test_a_drain_ends_calls_with_a_word(stream: bool) -> None:
    with serving() as (server, site), ThreadPoolExecutor() as pool:
        body = {"input": "call slow", "tools": [FREE], "stream": stream}
        asked = pool.submit(ask, server, PATH, body)
        server.until(lambda: "tools/call" in site.methods())
        server.call(server.frontend.drain)
        answer = asked.result(5)
        assert "shutting down" in answer.text
        if stream:
            last = read_events(answer.text)[-1]
            assert last["type"] == "response.failed"
            assert last["response"]["output"][-1]["status"] == "incomplete"
        else:
            assert answer.status == 503


@pytest.mark.parametrize("tool", [FREE, ASKED], ids=["free", "asked"])
def test_openais_agents(server: Running, tool: dict[str, Any]) -> None:
    agents: Any = pytest.importorskip("agents", reason="pip install openai-agents")
    openai: Any = pytest.importorskip("openai", reason="pip install openai")
    agents.set_tracing_disabled(True)
    approve = None if tool is FREE else lambda request: {"approve": True}

    async def run() -> None:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)
        hosted = agents.HostedMCPTool(tool_config=tool, on_approval_request=approve)
        model = agents.OpenAIResponsesModel("toy", client)
        agent = agents.Agent(name="a", model=model, tools=[hosted])
        whole = await agents.Runner.run(agent, "call look")
        streamed = agents.Runner.run_streamed(agent, "call look")
        async for _ in streamed.stream_events():
            pass
        assert whole.final_output == streamed.final_output == "Found sun in Paris"

    server.run(run())
