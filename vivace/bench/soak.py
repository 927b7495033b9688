"""`vivace bench soak`: many streams for minutes with random aborts; nothing may leak or fail.

Runs against a server on this host. Each stream asks, then by chance reads to the end, drops the
connection or calls /abort_request. At the end the server must be idle, `audit()` empty, no token
held by a request, and the resident memory of its processes flat (last third against the middle).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from vivace.arguments import ArgumentParser, http_address
from vivace.bench.errors import BenchError, no_server, run_benchmark
from vivace.config.process_environment import client_key
from vivace.errors import why_no_answer

PROGRAM = "vivace bench soak"
MEMORY_MINUTES = 3.0
"""Shorter runs are not judged by memory: prefixes are still being kept in pages used for the first
time."""
GROWTH_LIMIT = 0.02
"""Share by which the mean resident memory of the last third may exceed that of the middle third."""


@dataclass
class SoakCounter:
    """What happened, counted."""

    finished: int = 0
    disconnected: int = 0
    aborted: int = 0
    tokens: int = 0
    errors: list[str] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)


def main(argv: list[str]) -> int:
    args = parse(argv)
    return run_benchmark(PROGRAM, lambda: measure(args))


def measure(args: argparse.Namespace) -> int:
    try:
        report = asyncio.run(soak(args))
    except aiohttp.ClientConnectionError as error:
        raise BenchError(no_server(args.url, why_no_answer(error))) from None
    except aiohttp.ClientError as error:
        raise BenchError(f"{args.url}: {error}") from None
    print(json.dumps({k: v for k, v in report.items() if k != "rss_mib"}, indent=2))
    return 0 if report["passed"] else 1


def parse(argv: list[str]) -> argparse.Namespace:
    parser = ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--url", type=http_address, default="http://127.0.0.1:30000")
    parser.add_argument("--api-key")
    parser.add_argument("--streams", type=int, default=64, help="streams at any moment")
    parser.add_argument(
        "--minutes",
        type=float,
        default=5.0,
        help=f"length of the run; memory is judged from {MEMORY_MINUTES:g} on",
    )
    parser.add_argument("--max-input", type=int, default=256, help="longest prompt, in tokens")
    parser.add_argument("--max-output", type=int, default=128, help="longest answer, in tokens")
    parser.add_argument("--abort-share", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


async def soak(args: argparse.Namespace) -> dict[str, Any]:
    """Run the streams for the given time and judge the server afterwards."""
    key = client_key(args.api_key)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(args.url, headers=headers, connector=connector) as session:
        before = await server_state(session)
        tally = SoakCounter()
        until = time.monotonic() + args.minutes * 60
        streams = [
            stream_until(session, until, random.Random(f"{args.seed}/{i}"), args, tally)
            for i in range(args.streams)
        ]
        watch = asyncio.create_task(sample_memory(int(before["pid"]), tally))
        await asyncio.gather(*streams)
        watch.cancel()
        after = await settled_state(session)
    return judge(args, before, after, tally)


async def stream_until(
    session: aiohttp.ClientSession,
    until: float,
    chance: random.Random,
    args: argparse.Namespace,
    tally: SoakCounter,
) -> None:
    while time.monotonic() < until:
        try:
            await one_stream(session, chance, args, tally)
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            tally.errors.append(f"{type(error).__name__}: {error}"[:200])


async def one_stream(
    session: aiohttp.ClientSession,
    chance: random.Random,
    args: argparse.Namespace,
    tally: SoakCounter,
) -> None:
    """One request: read to its end, or leave after a random number of chunks."""
    rid = f"soak-{chance.getrandbits(64):016x}"
    length = chance.randint(1, args.max_output)
    leave_after = chance.randint(0, length) if chance.random() < args.abort_share else None
    through_api = chance.random() < 0.5
    body = {
        "rid": rid,
        "input_ids": [
            chance.randrange(100, 20_000) for _ in range(chance.randint(1, args.max_input))
        ],
        "sampling_params": {"max_new_tokens": length, "ignore_eos": True, "temperature": 0.8},
        "stream": True,
    }
    async with session.post("/generate", json=body) as answer:
        if answer.status != 200:
            tally.errors.append(f"HTTP {answer.status}: {(await answer.text())[:200]}")
            return
        last: dict[str, Any] = {}
        chunks = 0
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            last = json.loads(line[6:])
            chunks += 1
            if leave_after is not None and chunks > leave_after:
                if not through_api:
                    tally.disconnected += 1
                    answer.close()
                    return
                leave_after = None
                await (await session.post("/abort_request", json={"rid": rid})).read()
    count_end(last, length, tally)


def count_end(last: dict[str, Any], length: int, tally: SoakCounter) -> None:
    meta = last.get("meta_info", {})
    reason = (meta.get("finish_reason") or {}).get("type")
    tally.tokens += meta.get("completion_tokens", 0)
    if reason == "length" and meta["completion_tokens"] == length:
        tally.finished += 1
    elif reason == "abort":
        tally.aborted += 1
    else:
        tally.errors.append(f"stream ended with {last.get('error') or meta or 'nothing'}"[:200])


async def server_state(session: aiohttp.ClientSession) -> dict[str, Any]:
    async with session.get("/server_info") as answer:
        answer.raise_for_status()
        return (await answer.json())["internal_states"][0]


async def settled_state(session: aiohttp.ClientSession) -> dict[str, Any]:
    """The server's state once it is idle (10 s at most)."""
    state: dict[str, Any] = {}
    for _ in range(50):
        state = await server_state(session)
        if not state["running"] and not state["waiting"]:
            break
        await asyncio.sleep(0.2)
    return state


async def sample_memory(engine_pid: int, tally: SoakCounter) -> None:
    while True:
        tally.rss_mib.append(family_rss_mib(engine_pid))
        await asyncio.sleep(1.0)


def family_rss_mib(engine_pid: int) -> float:
    """Resident memory of the server: the engine, its parent and its siblings, in MiB."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
            )
        except OSError:
            continue
    root = parents.get(engine_pid)
    family = {engine_pid, root} | {pid for pid, parent in parents.items() if parent == root}
    return sum(rss_mib(pid) for pid in family if pid)


def rss_mib(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    lines = [line for line in text.splitlines() if line.startswith("VmRSS:")]
    return int(lines[0].split()[1]) / 1024 if lines else 0.0


def judge(
    args: argparse.Namespace, before: dict[str, Any], after: dict[str, Any], tally: SoakCounter
) -> dict[str, Any]:
    """Every finding that makes the run a failure, by name."""
    third = max(len(tally.rss_mib) // 3, 1)
    middle, last = tally.rss_mib[third : 2 * third], tally.rss_mib[-third:]
    growth = mean(last) / mean(middle) - 1 if middle and mean(middle) else 0.0
    findings = {
        "requests failed": bool(tally.errors),
        "the engine was replaced": before["pid"] != after["pid"],
        "requests are left": bool(after["running"] or after["waiting"]),
        "tokens are held by nobody's request": bool(after["used_tokens"]),
        "the audit found something": bool(after["audit"]),
        "memory grows": growth > GROWTH_LIMIT and args.minutes >= MEMORY_MINUTES,
    }
    return {
        **{k: v for k, v in asdict(tally).items() if k != "errors"},
        "streams": args.streams,
        "minutes": args.minutes,
        "errors": len(tally.errors),
        "first_errors": tally.errors[:5],
        "audit": after["audit"],
        "used_tokens": after["used_tokens"],
        "rss_mib_first_middle_last": [
            round(mean(part)) for part in (tally.rss_mib[:third], middle, last)
        ],
        "rss_growth": round(growth, 4),
        "findings": [name for name, found in findings.items() if found],
        "passed": not any(findings.values()),
    }


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
