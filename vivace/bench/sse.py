"""`vivace bench sse`: CPU time of one streamed chunk in the frontend process."""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

from vivace.arguments import ArgumentParser
from vivace.bench.environment import host_facts

GOAL_MICROSECONDS = 15.0
APIS = ("chat", "completions", "native")


def main(argv: list[str]) -> int:
    args = parse(argv)
    from vivace.bench.sse_server import measure

    apis = APIS if args.api == "all" else (args.api,)
    metrics = {}
    for api in apis:
        runs = [
            measure(api=api, streams=args.streams, steps=args.steps, step=args.step)
            for _ in range(args.repeat)
        ]
        metrics[api] = runs
        print(lines(api, runs))
    if args.json:
        print(json.dumps({"host": host_facts(), "runs": metrics}, indent=2))
    return 0


def lines(api: str, runs: list[dict[str, Any]]) -> str:
    """Two lines: what a chunk costs, and what it costs merely to write so many bytes as often."""
    costs = [run["us_per_chunk"] for run in runs]
    floors = [run["floor_us_per_chunk"] for run in runs]
    ratio = statistics.median(cost / floor for cost, floor in zip(costs, floors, strict=True))
    return (
        f"{api:<12} {spread(costs)} us of CPU per chunk (goal {GOAL_MICROSECONDS:g})\n"
        f"{'  bare writes':<12}{spread(floors)} us: the same bytes to as many sockets, "
        f"nothing else; ratio {ratio:.2f}"
    )


def spread(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{statistics.median(values):6.1f} (median of {len(values)}, {low:.1f} to {high:.1f})"


def parse(argv: list[str]) -> argparse.Namespace:
    parser = ArgumentParser(
        prog="vivace bench sse",
        description="Synthetic tokens through the real frontend and HTTP server into real sockets; "
        "the figure is the serving process's CPU time per event, the client excluded. Below it: "
        "a loop that only writes as many bytes to as many sockets, measured in the same run.",
    )
    parser.add_argument("--api", choices=(*APIS, "all"), default="all")
    parser.add_argument("--streams", type=int, default=32, help="connections read at a time")
    parser.add_argument("--steps", type=int, default=400, help="tokens per stream")
    parser.add_argument("--step", type=float, default=0.005, help="seconds between two steps")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print every run")
    return parser.parse_args(argv)
