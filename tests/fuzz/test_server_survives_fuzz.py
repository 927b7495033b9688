"""No request can harm another: 10,000 hostile requests (30,000 where there is time), the worst
bodies of every route among them; the processes and a canary stay as they were."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from hostile_requests import Hostile, hostile_requests
from served_toy import ToyServer, serve_toy
from worst_bodies import illegal_bodies, routes_with_bodies

REQUESTS = 30_000 if os.environ.get("VIVACE_SLOW_TESTS") else 10_000
WORST_BYTES = 1 << 20
AT_ONCE = 32
ALLOWED = {200, 400, 401, 404, 405, 413, 415, 422, 431, 501, 503}
CANARY = {
    "rid": "canary",  # no hostile /abort_request names a prefix of it, as "1" is of one id in 16
    "text": "the quick brown fox",
    "sampling_params": {
        "max_new_tokens": 24,
        "temperature": 0.9,
        "sampling_seed": 7,
        "ignore_eos": True,
    },
    "stream": True,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    with serve_toy(tmp_path_factory.mktemp("fuzz"), ["--max-queued-requests", "4096"]) as toy:
        yield toy


def with_worst_bodies(requests: list[Hostile]) -> Iterator[Hostile]:
    """The requests, and evenly among them a worst body of every route and type of a field."""
    json_type = {"Content-Type": "application/json"}
    routes = routes_with_bodies()
    count = sum(1 for route in routes for _ in illegal_bodies(route, 1 << 10))
    worst = (
        Hostile("POST", route.path, body, json_type)
        for route in routes
        for _, body in illegal_bodies(route, WORST_BYTES)
    )
    for number, request in enumerate(requests):
        if number % (len(requests) // count) == 0:
            yield from itertools.islice(worst, 1)
        yield request


async def canary(session: aiohttp.ClientSession) -> str:
    async with session.post("/generate", json=CANARY) as answer:
        text = await answer.text()
    chunks = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    return json.loads(chunks[-1])["text"]


async def send(session: aiohttp.ClientSession, request: Hostile) -> tuple[int, bytes]:
    """Status and body; (0, b"") when the server closed the connection on the rest of a body."""
    try:
        async with session.request(
            request.method, request.path, data=request.body, headers=request.headers
        ) as answer:
            return answer.status, await answer.read()
    except aiohttp.ClientOSError:
        if len(request.body) < WORST_BYTES >> 3:
            raise
        return 0, b""


async def attack(session: aiohttp.ClientSession, requests: Iterator[Hostile]) -> Counter[int]:
    """Send them all, AT_ONCE in flight; an answer outside ALLOWED is a finding."""
    statuses: Counter[int] = Counter()

    async def sender() -> None:
        for request in requests:
            status, body = await send(session, request)
            statuses[status] += 1
            if not status:
                continue
            assert status in ALLOWED, (status, request, body[:500])
            assert b"Traceback" not in body, (request, body[:500])
            if status != 200:
                assert json.loads(body), request

    await asyncio.gather(*(sender() for _ in range(AT_ONCE)))
    return statuses


def processes(toy: ToyServer) -> list[str]:
    pid = toy.process.pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


async def watched_attack(toy: ToyServer) -> tuple[Counter[int], set[str], int]:
    async with aiohttp.ClientSession(toy.url, timeout=aiohttp.ClientTimeout(total=240)) as session:
        expected = await canary(session)
        answers: set[str] = {expected}
        runs = 0
        requests = with_worst_bodies(hostile_requests(REQUESTS, seed=20))
        attacking = asyncio.create_task(attack(session, requests))
        while not attacking.done():
            answers.add(await canary(session))
            runs += 1
            await asyncio.sleep(0.05)
        return await attacking, answers, runs


@pytest.mark.timeout(600)
def test_thousands_of_hostile_requests(server: ToyServer) -> None:
    before, pids = server.state(), processes(server)
    statuses, canary_answers, canary_runs = asyncio.run(watched_attack(server))
    after = server.settled_state()

    assert sum(statuses.values()) > REQUESTS and statuses[0] < 100, statuses
    assert statuses[200] > REQUESTS // 100 and statuses[400] > REQUESTS // 3, statuses
    assert len(canary_answers) == 1 and canary_runs > 3
    assert after["pid"] == before["pid"] and processes(server) == pids
    assert after["audit"] == []
    assert after["used_tokens"] == 0 and after["running"] == 0 and after["waiting"] == 0
    assert "Traceback" not in Path(server.log).read_text()
