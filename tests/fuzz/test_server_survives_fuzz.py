"""No request can harm another: 20,000 hostile requests, the engine's pid and a canary unchanged."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import aiohttp
import pytest
from hostile_requests import Hostile, hostile_requests
from served_toy import ToyServer, serve_toy

REQUESTS = 20_000
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


async def canary(session: aiohttp.ClientSession) -> str:
    async with session.post("/generate", json=CANARY) as answer:
        text = await answer.text()
    chunks = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    return json.loads(chunks[-1])["text"]


async def send(session: aiohttp.ClientSession, request: Hostile) -> tuple[int, bytes]:
    async with session.request(
        request.method, request.path, data=request.body, headers=request.headers
    ) as answer:
        return answer.status, await answer.read()


async def attack(session: aiohttp.ClientSession, requests: list[Hostile]) -> Counter[int]:
    """Send them all, AT_ONCE in flight; an answer outside ALLOWED is a finding."""
    statuses: Counter[int] = Counter()
    queue = iter(requests)

    async def sender() -> None:
        for request in queue:
            status, body = await send(session, request)
            statuses[status] += 1
            assert status in ALLOWED, (status, request, body[:500])
            assert b"Traceback" not in body, (request, body[:500])
            if status != 200:
                assert json.loads(body), request

    await asyncio.gather(*(sender() for _ in range(AT_ONCE)))
    return statuses


async def watched_attack(toy: ToyServer) -> tuple[Counter[int], set[str], int]:
    async with aiohttp.ClientSession(toy.url, timeout=aiohttp.ClientTimeout(total=240)) as session:
        expected = await canary(session)
        answers: set[str] = {expected}
        runs = 0
        attacking = asyncio.create_task(attack(session, hostile_requests(REQUESTS, seed=20)))
        while not attacking.done():
            answers.add(await canary(session))
            runs += 1
            await asyncio.sleep(0.05)
        return await attacking, answers, runs


@pytest.mark.timeout(600)
def test_twenty_thousand_hostile_requests(server: ToyServer) -> None:
    before = server.state()
    statuses, canary_answers, canary_runs = asyncio.run(watched_attack(server))
    after = server.settled_state()

    assert sum(statuses.values()) == REQUESTS
    assert statuses[200] > REQUESTS // 100 and statuses[400] > REQUESTS // 3, statuses
    assert len(canary_answers) == 1 and canary_runs > 3
    assert after["pid"] == before["pid"]
    assert after["audit"] == []
    assert after["used_tokens"] == 0 and after["running"] == 0 and after["waiting"] == 0
    assert "Traceback" not in Path(server.log).read_text()
