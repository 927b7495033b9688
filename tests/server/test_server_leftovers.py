"""What a request held is free when it is over, without the garbage collector: a body of 16 MiB is
a few objects to it, and may wait for minutes."""

from __future__ import annotations

import gc
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from server_kit import Running, ScriptedEngine, running_server

from vivace.protocol.messages import Finish
from vivace.server.settings import ServerSettings

BODY_LIMIT = 1 << 20
PROMPT = [5] * 200
LOGPROBS = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 5}
LONG = b'{"text":"' + b"a" * 200_000


def generate(**body: Any) -> bytes:
    return json.dumps({"sampling_params": {"max_new_tokens": 9}, **body}).encode()


BODIES = {
    "whole": generate(input_ids=PROMPT, **LOGPROBS),
    "stream": generate(input_ids=PROMPT, stream=True, **LOGPROBS),
    "batch": generate(text=["a", "b"], stream=True),
    "not JSON": LONG,
    "wrong type": LONG + b'","stream":7}',
    "unknown field": LONG + b'","zz":7}',
    "a small unknown field": generate(text="a", zz=[7]),
    "does not fit": LONG + b'"}',
    "too large": b" " * (BODY_LIMIT + 1),
    "too deep": b"[" * 300,
    "two prompts": generate(text="a", input_ids=[1]),
}


def send(server: Running, body: bytes, *, whole: bool = True, path: str = "/generate") -> bytes:
    """The answer, or its beginning: then the connection is closed on the rest."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(20)
        client.sendall(head.encode() + body)
        answer = client.recv(1 << 16)
        while whole and (more := client.recv(1 << 16)):
            answer += more
    return answer


@pytest.fixture
def garbage() -> Iterator[list[Any]]:
    """What only the collector would find, filled by `find`; it looks at what is new only."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield gc.garbage
    gc.set_debug(0)
    gc.garbage.clear()
    gc.unfreeze()
    gc.enable()


def find(server: Running, garbage: list[Any]) -> set[str]:
    """Frames and our own objects among the garbage, and large bytes that others hold."""
    server.until(lambda: not server.frontend._states)
    http = server.runner.server
    assert http is not None
    server.until(lambda: not http.connections)
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found: set[str] = set()
    for one in garbage:
        kind = type(one)
        if kind.__name__ == "frame" and "/vivace/" in one.f_code.co_filename:
            found.add(f"frame of {one.f_code.co_qualname}")
        elif kind.__module__.startswith("vivace"):
            found.add(kind.__name__)
    return found


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_an_answered_request_leaves_nothing(body: bytes, garbage: list[Any]) -> None:
    with running_server(ServerSettings(body_limit=BODY_LIMIT)) as server:
        assert send(server, body).startswith(b"HTTP/1.1 ")
        assert find(server, garbage) == set()


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_of_the_engine_leaves_nothing(stream: bool, garbage: list[Any]) -> None:
    full = ScriptedEngine(refuse=Finish(type="abort", message="the queue is full", status=503))
    with running_server(engine=full) as server:
        assert b"the queue is full" in send(server, generate(text=["a", "b"], stream=stream))
        assert find(server, garbage) == set()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_leaves_nothing(stream: bool, garbage: list[Any]) -> None:
    with running_server(engine=ScriptedEngine(pause=0.05)) as server:
        body = generate(input_ids=PROMPT, stream=stream, **LOGPROBS)
        if stream:
            assert b"200 OK" in send(server, body, whole=False)
        else:
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(
                    b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
                    b"\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
                )
                server.until(lambda: bool(server.frontend._states))
        assert find(server, garbage) == set()
