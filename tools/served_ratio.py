"""`python tools/served_ratio.py NEW OLD`: served throughput of two trees, in turn.

NEW and OLD are working trees of Vivace with their kernels built. In every round both serve the
embedded model, one after the other (the first changes), and answer `vivace bench serving`: 32 at
once, 256 tokens in, 64 out, random token ids, streamed; the client is NEW's for both. Printed are
the ratios NEW / OLD of total throughput and of the server's CPU seconds, and each one's longest gap
between tokens. Run it on a quiet machine; only ratios of one run mean something.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

WORKLOAD = """--backend sglang --dataset-name random-ids --random-input-len 256
--random-output-len 64 --random-range-ratio 1 --max-concurrency 32""".split()


@dataclass(frozen=True, slots=True)
class Served:
    tokens_per_second: float
    cpu_seconds: float
    """of the server's processes, while the benchmark ran"""
    longest_gap: float
    """seconds"""


def environment(tree: Path) -> dict[str, str]:
    """The modules are the tree's, not those of the folder that one stands in."""
    return {**os.environ, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}


def check_tree(tree: Path) -> None:
    command = [sys.executable, "-c", "import vivace; print(vivace.__file__)"]
    found = subprocess.run(
        command, env=environment(tree), check=True, capture_output=True, text=True
    )
    if not Path(found.stdout.strip()).is_relative_to(tree):
        raise SystemExit(f"{tree}: would measure {found.stdout.strip()}")


def cpu_seconds(pid: int) -> float:
    """of a process and all below it"""
    ticks, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
        waiting += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
    return ticks / os.sysconf("SC_CLK_TCK")


def wait_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.3)
    raise SystemExit(f"no server at {url}")


def bench(client: Path, url: str, prompts: int) -> tuple[float, float]:
    """Tokens a second, of prompts and answers, and the longest gap between tokens in seconds."""
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as output:
        command = [sys.executable, "-m", "vivace", "bench", "serving", "--base-url", url]
        command += [*WORKLOAD, "--num-prompts", str(prompts), "--output-file", output.name]
        subprocess.run(
            command, env=environment(client), check=True, stdout=subprocess.DEVNULL, timeout=600
        )
        figures = json.loads(Path(output.name).read_text().splitlines()[-1])
    return figures["total_throughput"], figures["max_itl_ms"] / 1000


def measure(tree: Path, client: Path, port: int, prompts: int) -> Served:
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "vivace", "serve", "--port", str(port)]
    with subprocess.Popen(
        command, env=environment(tree), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            wait_ready(url, server)
            bench(client, url, 32)
            before = cpu_seconds(server.pid)
            tokens, gap = bench(client, url, prompts)
            return Served(tokens, cpu_seconds(server.pid) - before, gap)
        finally:
            server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("new", type=Path)
    parser.add_argument("old", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--num-prompts", type=int, default=128)
    parser.add_argument("--port", type=int, default=31700)
    args = parser.parse_args()
    trees = {"new": args.new.resolve(), "old": args.old.resolve()}
    for tree in trees.values():
        check_tree(tree)
    throughput: list[float] = []
    cpu: list[float] = []
    for number in range(args.rounds):
        order = ["new", "old"] if number % 2 else ["old", "new"]
        found = {
            name: measure(
                trees[name], trees["new"], args.port + 2 * number + turn, args.num_prompts
            )
            for turn, name in enumerate(order)
        }
        new, old = found["new"], found["old"]
        throughput.append(new.tokens_per_second / old.tokens_per_second)
        cpu.append(new.cpu_seconds / old.cpu_seconds)
        print(
            f"{number}: new {new.tokens_per_second:.0f} old {old.tokens_per_second:.0f} tok/s"
            f"  ratio {throughput[-1]:.3f}  cpu {cpu[-1]:.3f}"
            f"  longest gap {new.longest_gap:.2f} and {old.longest_gap:.2f} s",
            flush=True,
        )
    print(
        f"median ratio {statistics.median(throughput):.3f}"
        f" ({min(throughput):.3f} to {max(throughput):.3f}), cpu {statistics.median(cpu):.3f}"
    )


if __name__ == "__main__":
    main()
