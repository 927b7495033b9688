"""`vivace bench collectives`: what ranks of this machine exchange, over shared memory and by gloo.

Every rank is a process with one thread, as with `--tp-size`, so ranks may outnumber cores. The two
ways take turns; a figure is the median over rounds of rank 0's time for one exchange, of a pipe for
one hop: the rows go once around all ranks, as from stage to stage with `--pp-size`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vivace.arguments import ArgumentParser, whole_number
from vivace.bench.environment import host_facts
from vivace.bench.errors import BenchError, run_benchmark
from vivace.bench.flags import result_file
from vivace.bench.record import write_figures
from vivace.protocol.ranks import MOST_RANKS
from vivace.system_calls import open_memory

if TYPE_CHECKING:
    from torch import Tensor

    from vivace.platforms.groups import Group
    from vivace.platforms.rendezvous import RankMemory

PROGRAM = "vivace bench collectives"
RANKS = (2, 8, 32)
EXCHANGES = 10
"""of one way, then it is the other's turn"""
LARGEST = 1 << 16
HEADER = "operation   ranks       numbers      shared memory us        gloo us   of gloo"


@dataclass(frozen=True)
class ExchangeTime:
    """Of one exchange of `rows` x `columns` float32 of each rank, in seconds."""

    operation: str
    ranks: int
    rows: int
    columns: int
    shared: float
    gloo: float


def main(argv: list[str]) -> int:
    args = parse(argv)
    return run_benchmark(PROGRAM, lambda: measure(args))


def measure(args: argparse.Namespace) -> int:
    """Print a line for every operation and number of ranks, and store all."""
    print(HEADER)
    measured: list[ExchangeTime] = []
    for ranks in args.ranks:
        for one in run_ranks(ranks, args.rows, args.columns, args.rounds):
            print(line(one), flush=True)
            measured.append(one)
    if args.output_file:
        result = {"host": host_facts(), "collectives": [asdict(one) for one in measured]}
        write_figures(Path(args.output_file), result)
    return 0


def line(one: ExchangeTime) -> str:
    what = f"{one.operation:<10} {one.ranks:6} {one.rows:5} x {one.columns:<6}"
    times = f"{1e6 * one.shared:20.1f} {1e6 * one.gloo:14.1f}"
    return f"{what} {times} {one.shared / one.gloo:9.3f}"


def run_ranks(ranks: int, rows: int, columns: int, rounds: int) -> list[ExchangeTime]:
    """Forked behind the imports: 32 processes that import torch would take a minute. Raises
    BenchError where one fails."""
    from torch import distributed  # noqa: F401  (what each would import for itself)

    from vivace.platforms.cpu import shared_group  # noqa: F401

    memory = open_memory("vivace-ranks")
    answer, write = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/meeting"
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                os._exit(run_rank(rank, ranks, place, memory, write, (rows, columns, rounds)))
            children.append(child)
        os.close(write)
        os.close(memory)
        with os.fdopen(answer) as stream:
            text = stream.read()
        codes = [os.waitpid(child, 0)[1] for child in children]
    if any(codes):
        raise BenchError(f"a rank of {ranks} has failed; what it says stands above")
    return [ExchangeTime(*fields) for fields in json.loads(text)]


def run_rank(
    rank: int, ranks: int, place: str, memory: int, answer: int, work: tuple[int, int, int]
) -> int:
    """The exit code of a child; rank 0 writes what it has measured."""
    import traceback

    from vivace.platforms.rendezvous import RankMemory

    try:
        found = compare(rank, ranks, place, RankMemory(memory), *work)
        if rank == 0:
            os.write(answer, json.dumps([list(asdict(one).values()) for one in found]).encode())
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def compare(
    rank: int,
    ranks: int,
    place: str,
    memory: RankMemory,
    rows: int,
    columns: int,
    rounds: int,
) -> list[ExchangeTime]:
    import torch

    from vivace.platforms.cpu.native import Kernels
    from vivace.platforms.cpu.shared_group import SharedMemoryGroup
    from vivace.platforms.groups import join_by_gloo
    from vivace.platforms.rendezvous import Rendezvous

    torch.set_num_threads(1)
    by_gloo = join_by_gloo(Rendezvous(rank=rank, size=ranks, meeting=place, memory=memory))
    shared = SharedMemoryGroup(Kernels(1), memory, rank, ranks)
    x = torch.zeros(rows, columns)  # sums of which stay what they are

    results = []
    ways = [build_exchanges(group, x) for group in (shared, by_gloo)]
    for name in ways[0]:
        seconds = [[time_exchanges(way[name]) for way in ways] for _ in range(1 + rounds)]
        hops = ranks if name == "pipe" else 1
        ours, theirs = (statistics.median(way) / hops for way in zip(*seconds[1:], strict=True))
        results.append(ExchangeTime(name, ranks, rows, columns, ours, theirs))
    by_gloo.minimum([rank])  # nobody leaves while another one still receives
    return results


def build_exchanges(group: Group, x: Tensor) -> dict[str, Callable[[], object]]:
    """By their names, of x [rows, columns] of each rank."""
    (rows, columns), ranks, rank = x.shape, group.size, group.rank
    pipes = group.connect([(one, (one + 1) % ranks) for one in range(ranks)])
    source, target = pipes[(rank - 1) % ranks, rank], pipes[rank, (rank + 1) % ranks]

    def pass_on() -> None:
        if rank == 0:
            target.send(x)
        y = source.receive(rows, columns, x.dtype)
        if rank != 0:
            target.send(y)

    return {
        "sum": lambda: group.sum(x),
        "gather": lambda: group.gather(x, [columns] * ranks),
        "pipe": pass_on,
    }


def time_exchanges(exchange: Callable[[], object]) -> float:
    """Seconds of one, after one that brings the ranks together."""
    exchange()
    started = time.perf_counter()
    for _ in range(EXCHANGES):
        exchange()
    return (time.perf_counter() - started) / EXCHANGES


def rank_count(text: str) -> int:
    value = whole_number(text)
    if not 2 <= value <= MOST_RANKS:
        raise argparse.ArgumentTypeError(f"{text} is not in 2..{MOST_RANKS}")
    return value


def size(text: str) -> int:
    value = whole_number(text)
    if not 1 <= value <= LARGEST:
        raise argparse.ArgumentTypeError(f"{text} is not in 1..{LARGEST}")
    return value


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--ranks", nargs="+", type=rank_count, default=list(RANKS))
    parser.add_argument("--rows", type=size, default=16, help="tokens of a step")
    parser.add_argument("--columns", type=size, default=1024, help="numbers of a token")
    parser.add_argument("--rounds", type=size, default=9)
    parser.add_argument("--output-file", type=result_file, help="write the figures as JSON")
    return parser.parse_args(argv)
