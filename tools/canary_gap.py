"""`python tools/canary_gap.py --url http://127.0.0.1:30000`: what hostile requests cost a stream.

One greedy stream (the canary, with an id of its own) runs again and again, and the gaps between
its tokens are measured: idle, beside the requests of tests/fuzz/hostile_requests.py that the server
refuses, beside those that end soon, and beside all of them (some ask for thousands of tokens:
streams like the canary). Which are which is found by sending each once before. Requests
come from a process of their own, `--rate` a second, whether or not earlier ones are answered.
Run it on a quiet machine: client and server share its cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "fuzz"))

from hostile_requests import Hostile, hostile_requests

CANARY = {
    "rid": "canary",  # no hostile /abort_request names a prefix of it
    "text": "The sea is",
    "sampling_params": {"max_new_tokens": 128, "temperature": 0, "ignore_eos": True},
    "stream": True,
}
PATIENCE = aiohttp.ClientTimeout(total=600)
ALONE_SECONDS = 20.0
"""for all requests, to find which are refused; refusing one takes milliseconds"""
FLOODS = ("refused", "ended", "all")


@dataclass(slots=True)
class Gaps:
    """Seconds between tokens of the canary's runs, and the texts it got."""

    seconds: list[float] = field(default_factory=list[float])
    texts: Counter[str] = field(default_factory=Counter[str])

    def p99(self) -> float:
        return statistics.quantiles(self.seconds, n=100)[98]

    def row(self, name: str) -> str:
        ms = [1000 * value for value in (statistics.median(self.seconds), self.p99())]
        worst = 1000 * max(self.seconds)
        runs = sum(self.texts.values())
        return (
            f"{name:<8} runs {runs:4d}  texts {len(self.texts)}  median {ms[0]:6.1f} ms"
            f"  p99 {ms[1]:6.1f} ms  max {worst:7.1f} ms"
        )


async def run_canary(session: aiohttp.ClientSession, gaps: Gaps) -> None:
    last, text = None, "no answer"
    async with session.post("/generate", json=CANARY) as answer:
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            now = time.perf_counter()
            if last is not None:
                gaps.seconds.append(now - last)
            last, text = now, str(json.loads(line[6:]).get("text"))
    gaps.texts[text] += 1


async def send(session: aiohttp.ClientSession, request: Hostile) -> int:
    try:
        async with session.request(
            request.method, request.path, data=request.body, headers=request.headers
        ) as answer:
            await answer.read()
            return answer.status
    except aiohttp.ClientError:
        return 0


async def statuses_alone(url: str, requests: Sequence[Hostile]) -> list[int]:
    """The status of each; 0 for what has no answer after ALONE_SECONDS."""
    found = [0] * len(requests)
    turn = asyncio.Semaphore(64)

    async def ask(session: aiohttp.ClientSession, number: int) -> None:
        async with turn:
            found[number] = await send(session, requests[number])

    async with aiohttp.ClientSession(url, timeout=PATIENCE) as session:
        tasks = [asyncio.create_task(ask(session, number)) for number in range(len(requests))]
        _, late = await asyncio.wait(tasks, timeout=ALONE_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    return found


async def flood(url: str, requests: Sequence[Hostile], rate: float) -> Counter[int]:
    statuses: Counter[int] = Counter()
    begun = time.perf_counter()

    async def one(session: aiohttp.ClientSession, request: Hostile) -> None:
        statuses[await send(session, request)] += 1

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, timeout=PATIENCE, connector=connector) as session:
        tasks: list[asyncio.Task[None]] = []
        for number, request in enumerate(requests):
            await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
            tasks.append(asyncio.create_task(one(session, request)))
        _, late = await asyncio.wait(tasks, timeout=1.0)
        statuses[-1] = len(late)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    return statuses


def flood_process(url: str, chosen: list[bool] | None, args: argparse.Namespace) -> None:
    """Sends the chosen requests, None: all, as often as asked for."""
    requests = hostile_requests(args.requests, args.seed)
    if chosen is not None:
        requests = [request for request, out in zip(requests, chosen, strict=True) if out]
    statuses = asyncio.run(flood(url, requests * args.repeat, args.rate))
    print("    statuses:", dict(statuses), flush=True)


async def canaries(url: str, until: BaseProcess | None) -> Gaps:
    """Runs of the canary while `until` lives, or eight."""
    gaps = Gaps()
    async with aiohttp.ClientSession(url, timeout=PATIENCE) as session:
        await run_canary(session, Gaps())
        runs = 0
        while until.is_alive() if until is not None else runs < 8:
            await run_canary(session, gaps)
            runs += 1
    return gaps


def beside(url: str, chosen: list[bool] | None, args: argparse.Namespace) -> Gaps:
    process = multiprocessing.get_context("spawn").Process(
        target=flood_process, args=(url, chosen, args)
    )
    process.start()
    try:
        return asyncio.run(canaries(url, process))
    finally:
        process.join()


async def settle(url: str) -> None:
    """Until no request runs or waits."""
    async with aiohttp.ClientSession(url, timeout=PATIENCE) as session:
        for _ in range(600):
            async with session.get("/v1/loads") as answer:
                if not (await answer.json())["aggregate"]["total_reqs"]:
                    return
            await asyncio.sleep(0.5)
    raise SystemExit("the server does not come to rest: /v1/loads")


def choose_floods(args: argparse.Namespace) -> dict[str, list[bool] | None]:
    """Which requests each flood has; None: all of them."""
    if args.floods == ["all"]:
        return {"all": None}
    statuses = asyncio.run(statuses_alone(args.url, hostile_requests(args.requests, args.seed)))
    refused = [400 <= status < 500 for status in statuses]
    ended = [status != 0 for status in statuses]
    print(f"{sum(refused)} of {args.requests} are refused", flush=True)
    found = {"refused": refused, "ended": ended, "all": None}
    return {name: found[name] for name in args.floods}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:30000")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=1, help="times that they are sent")
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--floods", nargs="+", choices=FLOODS, default=FLOODS)
    args = parser.parse_args()
    floods = choose_floods(args)
    for _ in range(args.passes):
        asyncio.run(settle(args.url))
        idle = asyncio.run(canaries(args.url, None))
        print(idle.row("idle"), flush=True)
        for name, which in floods.items():
            gaps = beside(args.url, which, args)
            ratio = gaps.p99() / idle.p99()
            print(gaps.row(name), f" p99 {ratio:.2f} of idle's", flush=True)
            if set(gaps.texts) != set(idle.texts):
                raise SystemExit(f"the canary's text differs: {gaps.texts}")
            asyncio.run(settle(args.url))


if __name__ == "__main__":
    main()
