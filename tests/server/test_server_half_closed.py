"""Clients that close their side behind a request get their answer; who is gone is aborted."""

from __future__ import annotations

import json
import socket
import struct
import time
from contextlib import closing

import pytest
from server_kit import Running, ScriptedEngine, running_server

from vivace.server.context import CONTEXT

SOON = 1.0
"""seconds; the engine takes five for an answer"""
ROUTES = {
    "/generate": {"text": "x", "sampling_params": {"max_new_tokens": 10}},
    "/v1/completions": {"model": "toy", "prompt": "x", "max_tokens": 10},
    "/v1/chat/completions": {
        "model": "toy",
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 10,
    },
}


def send(
    server: Running,
    path: str,
    *,
    stream: bool,
    version: str = "1.1",
    missing: int = 0,
) -> socket.socket:
    """A connection with a request, whose last `missing` bytes do not come."""
    body = json.dumps({**ROUTES[path], "stream": stream}).encode()
    head = f"POST {path} HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body) + missing}\r\n\r\n"
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    sock.sendall(head.encode() + body)
    return sock


def read_to_the_end(sock: socket.socket) -> bytes:
    with closing(sock):
        return b"".join(iter(lambda: sock.recv(1 << 16), b""))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
def test_who_waits_is_answered(path: str, stream: bool, late: bool) -> None:
    """`late`: the side is closed when the request is with the engine."""
    engine = ScriptedEngine(pause=0.05)
    with running_server(engine=engine) as server:
        sock = send(server, path, stream=stream)
        if late:
            server.until(lambda: bool(engine.requests))
        sock.shutdown(socket.SHUT_WR)
        *interim, answer = read_to_the_end(sock).split(b"HTTP/1.1 ")[1:]
        assert set(interim) <= {b"100 Continue\r\n\r\n"} and len(interim) <= 2
        assert answer.startswith(b"200 OK")
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n" if stream else b"}")
        assert engine.cancelled == []


@pytest.mark.parametrize("count", [2, 5])
def test_each_of_several_requests_is_answered(count: int) -> None:
    engine = ScriptedEngine(pause=0.01)
    with running_server(engine=engine) as server:
        body = json.dumps(ROUTES["/generate"]).encode()
        head = "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        sock.sendall(request * count)
        sock.shutdown(socket.SHUT_WR)
        assert read_to_the_end(sock).count(b"HTTP/1.1 200 OK") == count
        assert engine.cancelled == []


def test_half_a_body_and_the_end_at_once() -> None:
    engine = ScriptedEngine()
    with running_server(engine=engine) as server:
        for _ in range(20):
            sock = send(server, "/generate", stream=False, missing=1)
            sock.shutdown(socket.SHUT_WR)
            assert read_to_the_end(sock) == b""
        assert engine.requests == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("how", ["close", "reset", "close after closing its side"])
def test_who_is_gone_is_aborted(how: str, stream: bool, asked: bool) -> None:
    """Before and after the first token."""
    engine = ScriptedEngine(pause=0.5 if asked else 0.1)
    with running_server(engine=engine) as server:
        sock = send(server, "/generate", stream=stream)
        server.until(lambda: bool(engine.requests))
        if not asked:
            server.until(lambda: server.frontend.last_token_time > 0)
        if how == "close after closing its side":
            sock.shutdown(socket.SHUT_WR)
        if how == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        begun = time.monotonic()
        server.until(lambda: bool(engine.cancelled))
        assert time.monotonic() - begun < SOON


def test_who_goes_later_is_noticed_by_the_next_probe() -> None:
    engine = ScriptedEngine(pause=1.0)
    with running_server(engine=engine) as server:
        sock = send(server, "/generate", stream=False)
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.close()
        server.until(lambda: bool(engine.cancelled))


@pytest.mark.parametrize(("version", "missing"), [("1.0", 0), ("1.1", 5)])
def test_who_cannot_be_told_from_who_is_gone_is_not_awaited(version: str, missing: int) -> None:
    """HTTP/1.0 has no interim answers; half a request never becomes a whole one."""
    engine = ScriptedEngine(silent=True)
    with running_server(engine=engine) as server:
        sock = send(server, "/generate", stream=False, version=version, missing=missing)
        pending = server.app[CONTEXT].pending
        server.until(lambda: bool(pending if missing else engine.requests))
        sock.shutdown(socket.SHUT_WR)
        assert read_to_the_end(sock) == b""
        server.until(lambda: len(engine.cancelled) == len(engine.requests))
