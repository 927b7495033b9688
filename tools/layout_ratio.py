"""`python tools/layout_ratio.py`: time of tokens of two layouts of this tree, in turn.

Two servers with as many threads together, `--one` (a single process) and `--other` (--tp-size 2),
serve the shape of Qwen3-0.6B with dummy weights, one of them asked at a time. Printed are the
ratios one / other (above 1: the other is faster) of the median time between two tokens of 1 and of
16 streams, and of a prompt of 1,000 tokens, of each round, and of the processors' time. Run it on a
quiet machine; only ratios of one run mean something.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

from served_ratio import cpu_seconds, environment, wait_ready

TREE = Path(__file__).parents[1]
SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "eos_token_id": 151645,
}
FLAGS = """--load-format dummy --skip-tokenizer-init --random-seed 1 --max-running-requests 16
--context-length 2048 --max-total-tokens 20000 --disable-radix-cache""".split()
DECODED = 40
"""tokens of each stream"""


async def token_times(port: int, prompt: int, output: int) -> list[float]:
    """Moments of a request: when it was sent, and of each of its tokens."""
    body = {
        "input_ids": [random.randrange(100, 150_000) for _ in range(prompt)],
        "stream": True,
        "sampling_params": {"max_new_tokens": output, "ignore_eos": True, "temperature": 0},
    }
    data = json.dumps(body).encode()
    head = "POST /generate HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    times = [time.perf_counter()]
    writer.write(head.encode() + data)
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            times.append(time.perf_counter())
    writer.close()
    return times


async def all_streams(port: int, streams: int) -> list[list[float]]:
    return await asyncio.gather(*(token_times(port, 4, DECODED) for _ in range(streams)))


def between_tokens(port: int, streams: int) -> float:
    """Median seconds, once all decode."""
    found = asyncio.run(all_streams(port, streams))
    begun = max(times[1] for times in found)
    return statistics.median(
        later - before
        for times in found
        for before, later in pairwise(times[1:])
        if before >= begun
    )


def whole_prompt(port: int) -> float:
    first, *_, last = asyncio.run(token_times(port, 1000, 1))
    return last - first


WORK: dict[str, Callable[[int], float]] = {
    "decode of 1": lambda port: between_tokens(port, 1),
    "decode of 16": lambda port: between_tokens(port, 16),
    "prompt of 1,000": whole_prompt,
}


@contextmanager
def server(port: int, model: Path, flags: list[str]) -> Iterator[int]:
    """Its process"""
    command = [sys.executable, "-m", "vivace", "serve", "--port", str(port), *FLAGS]
    with subprocess.Popen(
        [*command, "--model-path", str(model), *flags],
        env=environment(TREE),
        stdout=subprocess.DEVNULL,
    ) as process:
        try:
            wait_ready(f"http://127.0.0.1:{port}", process)
            yield process.pid
        finally:
            process.terminate()


def main() -> None:
    shown = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("--one", default="", help="flags of one server, as one argument")
    parser.add_argument("--other", default="--tp-size 2", help="flags of the other server")
    parser.add_argument("--threads", default="2", help="of a server, all its ranks together")
    parser.add_argument("--rounds", type=int, default=6, help="measurements of each")
    parser.add_argument("--port", type=int, default=31900, help="of one; the other has the next")
    args = parser.parse_args()
    layouts = {args.port: args.one.split(), args.port + 1: args.other.split()}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as started:
        (Path(folder) / "config.json").write_text(json.dumps(SHAPE))
        pids = {
            port: started.enter_context(
                server(port, Path(folder), ["--cpu-threads", args.threads, *flags])
            )
            for port, flags in layouts.items()
        }
        for name, work in WORK.items():
            print(f"{name}: {measure(work, pids, args.rounds)}", flush=True)


def measure(work: Callable[[int], float], pids: dict[int, int], rounds: int) -> str:
    """The first round warms up."""
    one, other = pids
    seconds, cpu = {port: list[float]() for port in pids}, dict.fromkeys(pids, 0.0)
    for number in range(1 + rounds):
        for port in (one, other) if number % 2 else (other, one):
            before = cpu_seconds(pids[port])
            took = work(port)
            if number:
                seconds[port].append(took)
                cpu[port] += cpu_seconds(pids[port]) - before
    ratios = [a / b for a, b in zip(seconds[one], seconds[other], strict=True)]
    shown = " and ".join(f"{1000 * statistics.median(seconds[port]):.1f}" for port in pids)
    return (
        f"{shown} ms, ratio {statistics.median(ratios):.3f} "
        f"({min(ratios):.3f} to {max(ratios):.3f}), cpu {cpu[one] / cpu[other]:.3f}"
    )


if __name__ == "__main__":
    main()
