"""`python tools/compile_gap.py --url http://127.0.0.1:30000`: what compiling costs streams.

Streams run again and again, and the gaps between their tokens are measured: alone; beside requests
for one token, as many as there are schemas, without a grammar; and beside the same requests with
hard schemas, each another one. The last two are compared: what is more is the compiler's. Run it on
a quiet machine: client and server share its cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import Counter
from typing import Any

import aiohttp
from canary_gap import CANARY, PATIENCE, Gaps, run_canary, settle

SHORT = {"max_new_tokens": 1, "temperature": 0}
PAUSE = 0.05
"""seconds between requests"""


def hard_schema(number: int) -> dict[str, Any]:
    """Hundreds of properties, lists of words, patterns and references: some 100 ms each."""
    chance = random.Random(number)
    words = [f"word {chance.randrange(10**9)}" for _ in range(60)]
    kinds: list[dict[str, Any]] = [
        {"enum": words},
        {"type": "string", "pattern": f"^([a-z]{{2,{chance.randint(20, 60)}}}-[0-9]+){{1,40}}$"},
        {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": chance.randint(9, 90)},
        {"type": "string", "minLength": 3, "maxLength": chance.randint(500, 5000)},
        {"type": "number", "minimum": -chance.random(), "maximum": 10**6 * chance.random()},
    ]
    node = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "next": {"$ref": "#/$defs/node"}},
    }
    names = [f"property_{chance.randrange(10**6)}" for _ in range(200)]
    return {
        "type": "object",
        "properties": {name: chance.choice(kinds) for name in names},
        "required": names[:150],
        "$defs": {"node": node},
    }


async def ask(session: aiohttp.ClientSession, sampling: dict[str, Any]) -> int:
    body = {"text": "The sea is", "sampling_params": {**SHORT, **sampling}}
    async with session.post("/generate", json=body) as answer:
        await answer.read()
        return answer.status


async def flood(url: str, samplings: list[dict[str, Any]]) -> Counter[int]:
    async with aiohttp.ClientSession(url, timeout=PATIENCE) as session:
        tasks: list[asyncio.Task[int]] = []
        for sampling in samplings:
            tasks.append(asyncio.create_task(ask(session, sampling)))
            await asyncio.sleep(PAUSE)
        return Counter(await asyncio.gather(*tasks))


async def sing(url: str, streams: int, gaps: Gaps, until: asyncio.Task[Any]) -> None:
    """Streams, while that is not done."""

    async def one(number: int, session: aiohttp.ClientSession) -> None:
        while not until.done():
            await run_canary(session, gaps)

    async with aiohttp.ClientSession(url, timeout=PATIENCE) as session:
        await asyncio.gather(*(one(number, session) for number in range(streams)))


async def measure(url: str, streams: int, samplings: list[dict[str, Any]]) -> Gaps:
    """Of streams beside these requests; without any, for some seconds."""
    gaps = Gaps()
    beside = flood(url, samplings) if samplings else asyncio.sleep(5.0, Counter[int]())
    task = asyncio.create_task(beside)
    await sing(url, streams, gaps, task)
    if statuses := task.result():
        print("    statuses:", dict(statuses), flush=True)
    await settle(url)
    return gaps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--url", default="http://127.0.0.1:30000")
    parser.add_argument("--schemas", type=int, default=50)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    CANARY.pop("rid", None)  # several run at once
    for turn in range(args.passes):
        first = args.seed + turn * args.schemas
        numbers = range(first, first + args.schemas)
        hard = [{"json_schema": json.dumps(hard_schema(number))} for number in numbers]
        alone = asyncio.run(measure(args.url, args.streams, []))
        print(alone.row("alone"), flush=True)
        plain = asyncio.run(measure(args.url, args.streams, [{} for _ in hard]))
        print(plain.row("plain"), flush=True)
        gaps = asyncio.run(measure(args.url, args.streams, hard))
        print(gaps.row("schemas"), f" p99 {gaps.p99() / plain.p99():.2f} of plain", flush=True)
        if len({*alone.texts, *plain.texts, *gaps.texts}) > 1:
            raise SystemExit("the texts of the streams differ")


if __name__ == "__main__":
    main()
