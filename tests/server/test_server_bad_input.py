"""Hostile and mistaken requests: refused with a reason, and nobody else notices."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from server_kit import CONTEXT, PROSE, Running, ScriptedEngine, ask, events, fetch, running_server

from vivace.server.settings import ServerSettings

JSON = {"Content-Type": "application/json"}
LIMIT = 1 << 20
DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server(ServerSettings(body_limit=LIMIT)) as running:
        yield running


def sampling(text: str) -> bytes:
    return b'{"text": "x", "sampling_params": {%b}}' % text.encode()


def ids(text: str) -> bytes:
    return b'{"input_ids": %b, "sampling_params": {"max_new_tokens": 1}}' % text.encode()


GENERATE: list[tuple[bytes, int, str]] = [
    (b"", 400, "body"),
    (b"null", 400, "body"),
    (b"[]", 400, "body"),
    (b'"text"', 400, "body"),
    (b"{", 400, "body"),
    (b'{"text": "x"} trailing', 400, "body"),
    (b"{'text': 'x'}", 400, "body"),
    (b"\xff\xfe\x00", 400, "body"),
    (b'{"text": "\xff\xfe"}', 400, "body"),
    (b'{"text": "\\ud800"}', 400, "body"),
    (b'{"text": "\\udc00 x"}', 400, "body"),
    (DEEP, 400, "body"),
    (b'{"text": ' + DEEP + b"}", 400, "body"),
    (b'{"sampling_params": {"x": ' + DEEP + b"}}", 400, "body"),
    (b'{"unknown": ' + DEEP + b"}", 400, "body"),
    (b'{"text": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}", 400, "body"),
    (b"{}", 400, "text"),
    (b'{"text": null}', 400, "text"),
    (b'{"text": 5}', 400, "text"),
    (b'{"text": []}', 400, "text"),
    (b'{"text": ["x", 5]}', 400, "text[1]"),
    (b'{"text": ""}', 400, "text"),
    (b'{"text": "x", "input_ids": [1]}', 400, "text"),
    (b'{"text": "x", "stream": "yes"}', 400, "stream"),
    (b'{"text": "x", "rid": 7}', 400, "rid"),
    (b'{"text": "x", "rid": ""}', 400, "rid"),
    (b'{"text": ["x", "y"], "rid": ["a"]}', 400, "rid"),
    (b'{"text": ["x", "y"], "rid": ["a", "a"]}', 400, "rid"),
    (b'{"text": "x", "priority": 1.5}', 400, "priority"),
    (b'{"text": "x", "priority": 99999999999}', 400, "priority"),
    (b'{"text": "x", "sampling_params": []}', 400, "sampling_params"),
    (b'{"text": "x", "sampling_params": 3}', 400, "sampling_params"),
    (sampling('"temperature": NaN'), 400, "body"),
    (sampling('"temperature": Infinity'), 400, "body"),
    (sampling('"temperature": 1e999'), 400, "sampling_params[...]"),
    (sampling('"temperature": -1'), 400, "sampling_params.temperature"),
    (sampling('"temperature": "hot"'), 400, "sampling_params.temperature"),
    (sampling('"temperature": true'), 400, "sampling_params.temperature"),
    (sampling('"top_p": 0'), 400, "sampling_params.top_p"),
    (sampling('"top_k": 0'), 400, "sampling_params.top_k"),
    (sampling('"n": 0'), 400, "sampling_params.n"),
    (sampling('"n": 1000000000'), 400, "sampling_params.n"),
    (sampling('"n": 1' + "0" * 5000), 400, "sampling_params[...]"),
    (sampling('"max_new_tokens": -1'), 400, "sampling_params.max_new_tokens"),
    (sampling('"max_new_tokens": 1e100'), 400, "sampling_params.max_new_tokens"),
    (sampling('"max_new_tokens": 99999999999999999999'), 400, "sampling_params.max_new_tokens"),
    (sampling('"stop": [1]'), 400, "sampling_params.stop"),
    (sampling('"logit_bias": {"999999": 1}'), 400, "sampling_params.logit_bias"),
    (sampling('"logit_bias": {"x": 1}'), 400, "sampling_params.logit_bias"),
    (sampling('"regex": ["a*"]'), 400, "sampling_params.regex"),
    (sampling('"regex": "a*", "ebnf": "root ::= x"'), 400, "sampling_params.ebnf"),
    (sampling('"constraint": {"kind": "regex", "text": "a"}'), 400, "sampling_params"),
    (sampling('"tempereture": 1'), 400, "sampling_params"),
    (ids("[]"), 400, "input_ids"),
    (ids("[[]]"), 400, "input_ids[0]"),
    (ids("[1, -1]"), 400, "input_ids"),
    (ids("[258]"), 400, "input_ids"),
    (ids("[99999999999999999999999]"), 400, "input_ids"),
    (ids("[1.5]"), 400, "input_ids[0]"),
    (ids("[true]"), 400, "input_ids[0]"),
    (ids('["a"]'), 400, "input_ids[0]"),
    (ids("[[1], 2]"), 400, "input_ids"),
    (ids("[[1], [2, 999]]"), 400, "input_ids[1]"),
    (ids(json.dumps([1] * CONTEXT)), 400, "input_ids"),
    (ids(json.dumps([1] * 100_000)), 400, "input_ids"),
    (b'{"text": "' + b"x" * CONTEXT + b'"}', 400, "text"),
    (b'{"text": "' + b"x" * 900_000 + b'"}', 400, "text"),
    (json.dumps({"text": ["x"] * 3000}).encode(), 400, "text"),
    (b'{"text": "x", "return_logprob": true, "top_logprobs_num": 100000}', 400, "top_logprobs_num"),
    (b'{"text": "x", "return_logprob": true, "logprob_start_len": 9}', 400, "logprob_start_len"),
    (b'{"text": "x", "token_ids_logprob": [999]}', 400, "token_ids_logprob"),
    (b'{"text": "' + b"x" * (LIMIT + 1) + b'"}', 413, ""),
]


@pytest.mark.parametrize(
    ("body", "status", "field"), GENERATE, ids=[str(body[:40]) for body, _, _ in GENERATE]
)
def test_generate_refuses(server: Running, body: bytes, status: int, field: str) -> None:
    answer = ask(server, "/generate", body)
    assert answer.status == status, answer.text
    assert answer.json["error"]["message"]
    if field:
        assert answer.json["param"] == field


def calls(arguments: list[Any], **more: Any) -> list[dict[str, Any]]:
    return [{"function": {"name": "f", "arguments": one}, **more} for one in arguments]


TEXT = {"type": "text", "text": "x"}
MESSAGES: dict[str, dict[str, Any]] = {
    "content": {"role": "user"},
    "content[1].text": {"role": "user", "content": [TEXT, {"type": "text"}]},
    "content[2].text": {"role": "user", "content": [TEXT, TEXT, {"type": "text", "text": 5}]},
    "content[1].type": {"role": "user", "content": [TEXT, {"text": "x"}]},
    "content[0]": {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
    "role": {"role": "narrator", "content": "x"},
    "tool_calls[0].function": {"role": "assistant", "tool_calls": [{"id": "1"}]},
    "tool_calls[0].function.name": {"role": "assistant", "tool_calls": [{"function": {}}]},
    "tool_calls[1].function.arguments": {"role": "assistant", "tool_calls": calls(["{}", 5])},
    "tool_calls[2].function.arguments": {
        "role": "assistant",
        "tool_calls": calls(["{}", {}, "[1]"]),
    },
    "tool_calls[0].function.arguments": {"role": "assistant", "tool_calls": calls(["x"])},
    "tool_calls[0].type": {"role": "assistant", "tool_calls": calls(["{}"], type="x")},
    "tool_calls[0].custom": {"role": "assistant", "tool_calls": calls(["{}"], type="custom")},
    "tool_calls[0].id": {"role": "assistant", "tool_calls": calls(["{}"], id=7)},
    "tool_calls": {"role": "assistant", "tool_calls": {"function": {"name": "f"}}},
}
"""What is wrong with a message, by its place."""


@pytest.mark.parametrize("place", MESSAGES)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_what_is_wrong_with_a_message_has_its_place(server: Running, path: str, place: str) -> None:
    messages = [{"role": "user", "content": "x"}, MESSAGES[place]]
    answer = ask(server, path, {"messages": messages})
    assert answer.status == 400 and answer.json["param"] == f"messages[1].{place}", answer.text


def test_a_huge_limit_is_cut_to_the_context(server: Running) -> None:
    body = {"text": "xy", "sampling_params": {"max_new_tokens": (1 << 31) - 1, "stop": "The"}}
    assert ask(server, "/generate", body).status == 200
    assert server.engine.requests[-1].sampling.max_new_tokens == CONTEXT - 2


def test_other_content_types_are_refused(server: Running) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "image/png"):
        answer = ask(server, "/tokenize", b'{"prompt": "a"}', headers={"Content-Type": kind})
        assert answer.status == 415 and "Content-Type: application/json" in answer.text
    own = {"Content-Type": "application/octet-stream"}  # of aiohttp, where a program names none
    assert ask(server, "/tokenize", b'{"prompt": "a"}', headers=own).json["tokens"] == [97]


def test_duplicate_keys_take_the_last(server: Running) -> None:
    assert ask(server, "/tokenize", b'{"prompt": "a", "prompt": "b"}').json["tokens"] == [98]


def test_compressed_bodies_are_refused(server: Running) -> None:
    bomb = gzip.compress(b"x" * 10_000_000)
    answer = ask(server, "/generate", bomb, headers={"Content-Encoding": "gzip"})
    assert answer.status == 415


def test_a_body_without_length_stops_at_the_limit(server: Running) -> None:
    async def endless() -> Any:
        for _ in range(100):
            yield b"x" * (LIMIT // 10)

    assert (
        server.run(fetch(server.url, "POST", "/generate", data=endless(), headers=JSON)).status
        == 413
    )


def test_a_body_announced_too_large_is_refused_unread(server: Running) -> None:
    answer = raw(
        server,
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n{",
    )
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_bodies_of_routes_that_take_none_are_refused(server: Running) -> None:
    assert ask(server, "/health", b"x" * 100, method="GET").status == 413


def test_slow_bodies_and_slow_headers_have_deadlines() -> None:
    settings = ServerSettings(body_timeout=0.3, header_timeout=0.3)
    with running_server(settings) as server:
        head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
        assert raw(server, head).startswith(b"HTTP/1.1 408 ")
        started = time.monotonic()
        assert raw(server, b"POST /generate HT") == b""
        assert raw(server, b"") == b""
        assert time.monotonic() - started < 10


def test_the_head_that_came_while_another_was_answered_has_a_deadline() -> None:
    settings = ServerSettings(header_timeout=0.3)
    body = b'{"text": "x", "sampling_params": {"max_new_tokens": 8}}'
    head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with (
        running_server(settings, ScriptedEngine(pause=0.05)) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection,
    ):
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(0.1)
        connection.sendall(b"GET /health HT")
        answers = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answers.startswith(b"HTTP/1.1 200 ")
    assert answers.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "head",
    [
        b"BREW / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -3\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n folded: y\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_a_json_400(server: Running, head: bytes) -> None:
    answer = raw(server, head + b"\r\n\r\n")
    assert answer.startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 400 ")), answer[:200]
    assert b"aiohttp" not in answer
    body = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert body["error"]["type"] == "BadRequestError"
    assert b"Traceback" not in answer


def test_a_malformed_chunked_body_is_400(server: Running) -> None:
    head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    assert b" 400 Bad Request" in raw(server, head)[:30]


def test_a_chunked_body_that_turns_bad_later_meets_the_deadline() -> None:
    with running_server(ServerSettings(body_timeout=0.3)) as server:
        head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert raw(server, head, b"zz\r\n").startswith(b"HTTP/1.1 408 ")


def test_a_bug_in_a_handler_is_a_500_without_details(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("the secret is 42")

    monkeypatch.setattr(server.frontend, "start", broken)
    answer = ask(server, "/generate", {"text": "x"})
    assert answer.status == 500
    assert "42" not in answer.text
    assert "Traceback" not in answer.text


def raw(server: Running, *parts: bytes) -> bytes:
    """Send bytes in parts, read until the server closes or has answered."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(0.05)
        connection.settimeout(5)
        answer = b""
        while b"\r\n\r\n" not in answer or not complete(answer):
            try:
                part = connection.recv(65536)
            except ConnectionResetError:
                break
            if not part:
                break
            answer += part
        return answer


def complete(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return len(body) >= int(line.split(b":")[1])
    return False


def test_bad_input_does_not_disturb_a_parallel_stream() -> None:
    """A canary stream stays byte for byte what it is alone while the whole table is fired."""
    engine = ScriptedEngine(pause=0.004)
    with running_server(ServerSettings(body_limit=LIMIT), engine) as server:
        body = {
            "text": "canary",
            "rid": "canary",
            "stream": True,
            "sampling_params": {"max_new_tokens": 300, "sampling_seed": 0},
        }

        async def run() -> str:
            async with aiohttp.ClientSession() as session:
                canary = asyncio.create_task(fetch(server.url, "POST", "/generate", json=body))
                for data, status, _ in GENERATE:
                    async with session.post(
                        server.url + "/generate", data=data, headers=JSON
                    ) as answer:
                        assert answer.status == status
                assert not canary.done() or len(GENERATE) > 0
                return (await canary).text

        *found, done = events(server.run(run()))
        assert done == "[DONE]"
        texts = [json.loads(data) for data in found]
        assert [item["meta_info"]["completion_tokens"] for item in texts] == list(range(1, 301))
        whole = (PROSE * 5).encode()[:300].decode("utf-8", "replace")
        assert texts[-1]["text"] == whole
        assert len(engine.requests) == 1
        assert engine.cancelled == []
        assert server.frontend.live == 0


@pytest.mark.parametrize(("rid", "said"), [("r" * 513, "513"), ("", "0")])
def test_a_rid_that_cannot_be_one(server: Running, rid: Any, said: str) -> None:
    answer = ask(server, "/generate", {"text": "x", "rid": rid})
    assert answer.status == 400
    assert said in answer.json["error"]["message"].split()
