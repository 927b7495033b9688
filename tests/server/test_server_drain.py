"""A drain answers at once whatever no engine has heard of, and lets go on what one has."""

from __future__ import annotations

import asyncio
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from threading import Event
from typing import Any

import pytest
from server_kit import Answer, Running, ScriptedEngine, ask, events, make_tokenizer, running_server

from vivace.frontend.tokenizer import Tokenizer
from vivace.server.app import stop_site
from vivace.server.context import CONTEXT

SLOW = """{% set ns = namespace(n=0) %}{% for _ in range(1000) %}{% for _ in range(100) %}
{%- set ns.n = ns.n + 1 %}{% endfor %}{% endfor %}x"""
CHAT = {"model": "toy", "messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
AT_ONCE = 1.0
"""seconds; the slow template takes a tenth of one, and forty wait"""


def refused(answer: Answer) -> bool:
    retry = int(answer.headers.get("Retry-After", 0))
    return answer.status == 503 and retry >= 1 and "shutting down" in answer.json["message"]


def drain(server: Running, asked: list[Future[Answer]]) -> list[Answer]:
    """The answers that were not there before the drain; they are there soon after."""
    assert any(not one.done() for one in asked), "nothing waits"
    waiting = [one for one in asked if not one.done()]
    begun = time.monotonic()
    server.call(server.frontend.drain)
    answers = [one.result(20) for one in waiting]
    assert time.monotonic() - begun < AT_ONCE
    return answers


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", {**CHAT, "stream": True}),
        ("/tokenize", {"messages": CHAT["messages"]}),
    ],
)
def test_conversations_in_and_before_the_template_process(path: str, body: dict) -> None:
    with (
        running_server(tokenizer=make_tokenizer(SLOW)) as server,
        ThreadPoolExecutor(40) as pool,
    ):
        asked = [pool.submit(ask, server, path, body) for _ in range(40)]
        server.until(lambda: len(server.app[CONTEXT].pending) > 20)
        before = len(server.engine.requests)
        answers = drain(server, asked)
        assert len(answers) > 20 and all(refused(answer) for answer in answers)
        assert len(server.engine.requests) <= before + 1
        assert {one.result(20).status for one in asked} <= {200, 503}
        assert refused(ask(server, path, body)), "who comes later"


class SlowTokenizer(Tokenizer):
    """Takes its time for long texts, in the pool's threads."""

    go_on: Event

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        if len(text) > 1000:
            assert self.go_on.wait(30)
        return super().encode(text, add_special_tokens)


@pytest.mark.parametrize("prompts", ["x" * 2000, ["x" * 2000] * 3])
def test_texts_in_the_tokenizers_threads(prompts: Any) -> None:
    tokenizer = make_tokenizer()
    tokenizer.__class__ = SlowTokenizer
    tokenizer.go_on = Event()  # type: ignore[attr-defined]
    paths = {"/generate": "text", "/v1/completions": "prompt", "/tokenize": "prompt"}
    with running_server(tokenizer=tokenizer) as server, ThreadPoolExecutor(9) as pool:
        asked = [
            pool.submit(ask, server, path, {field: prompts})
            for path, field in paths.items()
            for _ in range(3)
        ]
        server.until(lambda: len(server.app[CONTEXT].pending) == len(asked))
        try:
            answers = drain(server, asked)
        finally:
            tokenizer.go_on.set()  # type: ignore[attr-defined]
        assert len(answers) == len(asked) and all(refused(answer) for answer in answers)
        assert server.engine.requests == []


HEAD = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def connect(server: Running, *parts: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    sock.sendall(b"".join(parts))
    return sock


def status(sock: socket.socket) -> int:
    """Of the answer; -1 when the connection ends without one."""
    with closing(sock):
        line = sock.makefile("rb").readline().split()
        return int(line[1]) if len(line) > 1 else -1


@pytest.mark.parametrize("path", [b"/generate", b"/v1/chat/completions", b"/tokenize"])
@pytest.mark.parametrize(
    "rest", [b"Content-Length: 1000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n400\r\n"]
)
def test_bodies_that_arrive(path: bytes, rest: bytes) -> None:
    with running_server() as server:
        arriving = connect(server, HEAD % path, rest, b'{"text": ')
        server.until(lambda: len(server.app[CONTEXT].pending) > 0)
        begun = time.monotonic()
        server.call(server.frontend.drain)
        with closing(arriving):
            data = arriving.recv(4096)
        assert data.startswith(b"HTTP/1.1 503") and b"\r\nRetry-After: " in data
        assert b"\r\nConnection: close\r\n" in data
        assert status(connect(server, HEAD % path, rest, b'{"text": ')) == 503
        assert time.monotonic() - begun < AT_ONCE


def test_what_an_engine_has_heard_of_goes_on() -> None:
    engine = ScriptedEngine(pause=0.05)
    body = {"text": "x", "sampling_params": {"max_new_tokens": 10}}
    with running_server(engine=engine) as server, ThreadPoolExecutor(2) as pool:
        whole = pool.submit(ask, server, "/generate", body)
        stream = pool.submit(ask, server, "/generate", {**body, "stream": True})
        server.until(lambda: len(engine.requests) == 2)
        server.call(server.frontend.drain)
        assert refused(ask(server, "/generate", body))
        assert ask(server, "/abort_request", {"rid": "nobody"}).status == 200
        assert ask(server, "/model_info", method="GET").status == 200
        assert whole.result(20).json["meta_info"]["completion_tokens"] == 10
        assert events(stream.result(20).text)[-1] == "[DONE]"


@pytest.mark.parametrize("sent", [0, 20])
def test_a_connection_made_before_the_end_gets_its_answer(sent: int) -> None:
    """Its request comes when the server no longer listens."""
    request = HEAD % b"/generate" + b"Content-Length: 2\r\n\r\n{}"
    with running_server() as server:
        sock = connect(server, request[:sent])
        http = server.runner.server
        assert http is not None
        server.until(lambda: bool(http.connections))
        server.call(server.frontend.drain)
        stopped = asyncio.run_coroutine_threadsafe(stop_site(server.runner), server.loop)
        server.until(lambda: not server.runner.sites)
        with pytest.raises(ConnectionRefusedError):
            connect(server)
        assert not stopped.done()
        sock.sendall(request[sent:])
        assert status(sock) == 503
        stopped.result(10)
