"""Requests that come while the engine starts wait and are answered; probes do not wait."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import aiohttp
import pytest
import route_bodies
from server_kit import CONTEXT, Answer, Running, ask, capacity, events, refusal, running_server

from vivace.protocol.messages import EngineDown, Ready
from vivace.server.context import CONTEXT as CONTEXT_KEY
from vivace.server.context import StartQueue
from vivace.server.routes import ROUTES
from vivace.server.settings import ServerSettings

BODIES = {route.path: route_bodies.BODIES[route.path] for route in ROUTES if route.task is not None}
"""of all routes that wait"""
AT_ONCE = {
    *("/tokenize", "/v1/tokenize", "/detokenize", "/v1/detokenize", "/v1/messages/count_tokens"),
    *("/v1/responses/input_tokens", "/api/show", "/parse_function_call", "/separate_reasoning"),
    *("/abort_request", "/add_external_corpus", "/remove_external_corpus", "/configure_logging"),
}
"""those that need no engine, or do not wait for it"""


def get_ready(server: Running, epoch: int = 1) -> None:
    server.call(server.frontend.feed, Ready(epoch=epoch, capacity=capacity(CONTEXT)))


@contextmanager
def waiting(server: Running, *asked: tuple[str, Any]) -> Iterator[list[Future[Answer]]]:
    """Requests that are in the queue, in this order."""
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = []
        for path, body in asked:
            before = in_queue(server)
            answers.append(pool.submit(ask, server, path, body))
            server.until(lambda before=before: in_queue(server) == before + 1)
        yield answers


def in_queue(server: Running) -> int:
    return server.app[CONTEXT_KEY].start_queue.waiting


def test_every_route_that_computes_waits() -> None:
    assert set(route_bodies.BODIES) - set(BODIES) == AT_ONCE


def watch_order(queue: StartQueue, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The places of who waits there, as they leave; how long each is read then is another thing."""
    left, places, settled = list[int](), itertools.count(), queue._engine.settled

    async def watched() -> None:
        place = next(places)
        await settled()
        left.append(place)

    monkeypatch.setattr(queue._engine, "settled", watched)
    return left


def test_requests_are_answered_in_order_when_the_engine_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = [("/generate", {**BODIES["/generate"], "rid": f"r{i}"}) for i in range(6)]
    with running_server(ready=False, every_task=True) as server:
        left = watch_order(server.app[CONTEXT_KEY].start_queue, monkeypatch)
        with waiting(server, *asked, *BODIES.items()) as answers:
            assert ask(server, "/ready", method="GET").status == 503
            assert not any(answer.done() for answer in answers)
            assert server.engine.requests == [] and left == []
            get_ready(server)
            got = [answer.result(20) for answer in answers]
        assert [answer.status for answer in got] == [200] * len(answers)
        assert left == list(range(len(answers)))
        assert {one.rid for one in server.engine.requests} >= {f"r{i}" for i in range(6)}
        assert in_queue(server) == 0


def test_a_server_that_warms_up_answers_requests_and_says_that_it_starts() -> None:
    probes = ("/health", "/health_generate", "/ready", "/ping")
    with running_server(ready=False, every_task=True) as server:
        server.frontend.engine.warming_up = True
        with waiting(server, *BODIES.items()) as answers:
            get_ready(server)
            assert [answer.result(20).status for answer in answers] == [200] * len(BODIES)
        for path in probes:
            told = ask(server, path, method="GET")
            assert told.status == 503 and "warming up" in told.text, path
        assert ask(server, "/generate", BODIES["/generate"]).status == 200
        assert ask(server, "/server_info", method="GET").json["status"] == "starting"
        server.frontend.engine.warming_up = False
        assert {ask(server, path, method="GET").status for path in probes} == {200}
        assert ask(server, "/server_info", method="GET").json["status"] == "ready"


def test_a_stream_and_a_wrong_request_wait_too() -> None:
    """What the model's limits are is known when it is there."""
    stream = {**BODIES["/v1/chat/completions"], "stream": True}
    wrong = {**BODIES["/generate"], "sampling_params": {"temperature": -1}}
    with running_server(ready=False) as server:
        asked = (("/v1/chat/completions", stream), ("/generate", wrong))
        with waiting(server, *asked) as answers:
            get_ready(server)
            streamed, refused = (answer.result(20) for answer in answers)
        assert streamed.status == 200 and events(streamed.text)[-1] == "[DONE]"
        assert refused.status == 400 and "temperature" in refused.json["message"]


@pytest.mark.parametrize("most", [0, 2])
def test_no_more_wait_than_there_is_room_for(most: int) -> None:
    settings = ServerSettings(start_queue_limit=most)
    with running_server(settings, ready=False) as server, ThreadPoolExecutor(most + 1) as pool:
        kept = [pool.submit(ask, server, *item) for item in [*BODIES.items()][:most]]
        server.until(lambda: in_queue(server) == most)
        refused = ask(server, "/generate", BODIES["/generate"])
        assert refused.status == 503 and int(refused.headers["Retry-After"]) >= 1
        assert "starting" in refused.json["message"]
        get_ready(server)
        assert [answer.result(20).status for answer in kept] == [200] * most


def test_bodies_that_wait_stay_within_the_memory_for_bodies() -> None:
    settings = ServerSettings(body_limit=250_000, bodies_limit=250_000)
    large = {**BODIES["/generate"], "text": "x", "cache_salt": "y" * 200_000}
    with running_server(settings, ready=False) as server:
        with waiting(server, ("/generate", large)) as (kept,):
            refused = ask(server, "/generate", large)
            assert refused.status == 503 and "no room" in refused.json["message"]
            assert ask(server, "/health", method="GET").status == 503
            get_ready(server)
            assert kept.result(20).status in (200, 400)
        assert ask(server, "/generate", large).status in (200, 400), "the room was given back"


def test_a_client_that_leaves_waits_no_more() -> None:
    with running_server(ready=False) as server:

        async def leave() -> None:
            timeout = aiohttp.ClientTimeout(total=0.3)
            async with aiohttp.ClientSession(timeout=timeout) as session:
                with pytest.raises(TimeoutError):
                    await session.post(server.url + "/generate", json=BODIES["/generate"])

        server.run(leave())
        server.until(lambda: in_queue(server) == 0)
        get_ready(server)
        assert ask(server, "/generate", BODIES["/generate"]).status == 200
        assert len(server.engine.requests) == 1


def test_a_start_that_fails_is_told_with_the_reason() -> None:
    with (
        running_server(ready=False, every_task=True) as server,
        waiting(server, *BODIES.items()) as answers,
    ):
        server.call(
            server.frontend.feed, EngineDown(reason="toy.gguf: truncated", restarting=False)
        )
        for answer in answers:
            got = answer.result(20)
            assert got.status == 503 and "toy.gguf: truncated" in refusal(got.json)[1]
        assert ask(server, "/generate", BODIES["/generate"]).status == 503


def test_a_server_that_stops_lets_nobody_wait() -> None:
    with (
        running_server(ready=False, every_task=True) as server,
        waiting(server, *BODIES.items()) as answers,
    ):
        server.call(server.frontend.drain)
        for answer in answers:
            got = answer.result(20)
            assert got.status == 503 and "shutting down" in refusal(got.json)[1]


def test_requests_wait_for_an_engine_that_starts_again() -> None:
    with running_server(every_task=True) as server:
        server.call(server.frontend.feed, EngineDown(reason="killed", restarting=True))
        with waiting(server, *BODIES.items()) as answers:
            assert ask(server, "/health", method="GET").status == 503
            get_ready(server, epoch=1)
            assert [answer.result(20).status for answer in answers] == [200] * len(BODIES)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("abort", "aborted"),
    [
        ({"rid": "r1"}, {"r1", "r10"}),
        ({"abort_all": True}, {"r0", "r1", "r10"}),
        ({"rid": "x"}, set()),
    ],
)
def test_what_waits_is_aborted(stream: bool, abort: dict[str, Any], aborted: set[str]) -> None:
    names = ["r0", "r1", "r10"]
    asked = [("/generate", {**BODIES["/generate"], "rid": rid, "stream": stream}) for rid in names]
    with running_server(ready=False) as server:
        with waiting(server, *asked) as answers:
            assert ask(server, "/abort_request", abort).status == 200
            get_ready(server)
            got = [answer.result(20) for answer in answers]
        assert [answer.status for answer in got] == [200] * 3
        assert {one.rid for one in server.engine.requests} == set(names) - aborted
        ended = {rid for rid, answer in zip(names, got, strict=True) if '"abort"' in answer.text}
        assert ended == aborted
        assert ask(server, "/generate", asked[1][1]).status == 200
        assert server.engine.requests[-1].rid == "r1", "those that come later are not meant"


def test_what_is_being_tokenized_is_aborted() -> None:
    from vivace.frontend import tokenizer_pool

    with running_server() as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_pool, "INLINE_CHARACTERS", 0)
        begun, go = Event(), Event()
        tokenizer: Any = server.frontend.tokenizer
        encode = tokenizer.encode

        def held(text: str, special: bool = True) -> list[int]:
            begun.set()
            assert go.wait(20)
            return encode(text, special)

        patch.setattr(tokenizer, "encode", held)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask, server, "/generate", {**BODIES["/generate"], "rid": "r"})
            assert begun.wait(20)
            assert ask(server, "/abort_request", {"rid": "r"}).status == 200
            go.set()
            assert '"abort"' in answer.result(20).text
        assert server.engine.requests == []
