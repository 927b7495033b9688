"""`vivace bench sse`: CPU time of one streamed chunk in the frontend process."""

from __future__ import annotations

import argparse
import json
import statistics

from vivace.bench.host import host_facts

GOAL_MICROSECONDS = 15.0
APIS = ("chat", "completions", "native")


def main(argv: list[str]) -> int:
    args = parse(argv)
    from vivace.server.sse_bench import measure

    apis = APIS if args.api == "all" else (args.api,)
    figures = {}
    for api in apis:
        runs = [
            measure(api=api, streams=args.streams, steps=args.steps, step=args.step)
            for _ in range(args.repeat)
        ]
        costs = [run["us_per_chunk"] for run in runs]
        figures[api] = runs
        print(
            f"{api:<12} {statistics.median(costs):6.1f} us of CPU per chunk "
            f"(median of {len(costs)}, {min(costs):.1f} to {max(costs):.1f}; "
            f"goal {GOAL_MICROSECONDS:g})"
        )
    if args.json:
        print(json.dumps({"host": host_facts(), "runs": figures}, indent=2))
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="vivace bench sse",
        description="Synthetic tokens through the real frontend and HTTP server into real sockets; "
        "the figure is the serving process's CPU time per event, the client excluded.",
    )
    parser.add_argument("--api", choices=(*APIS, "all"), default="all")
    parser.add_argument("--streams", type=int, default=32, help="connections read at a time")
    parser.add_argument("--steps", type=int, default=400, help="tokens per stream")
    parser.add_argument("--step", type=float, default=0.005, help="seconds between two steps")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print every run")
    return parser.parse_args(argv)
