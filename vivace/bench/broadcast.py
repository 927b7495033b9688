"""`vivace bench broadcast`: how fast the ranks of an engine hear of a step.

Every rank is a process that decodes the plan, as with `--tp-size`, so ranks may outnumber cores.
The ring in shared memory (what engines use) and a socket per rank take turns, round by round;
before each plan the ranks have fallen asleep, and the engine has not: it has scheduled the step.
Figures are medians of: `send`, what it costs the engine; `middle rank` and `last rank`, from its
beginning until that one has decoded it; `answered`, until the engine knows that all have answered.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from vivace.arguments import ArgumentParser, whole_number
from vivace.bench.environment import host_facts
from vivace.bench.errors import BenchError, run_benchmark
from vivace.bench.flags import result_file
from vivace.bench.record import write_figures
from vivace.config.time_slices import ask_for_short_slices
from vivace.protocol.message_socket import MessageSocket, SocketClosed
from vivace.protocol.messages import SamplingParams
from vivace.protocol.ranks import MOST_RANKS, ToRanks
from vivace.protocol.shm_broadcast import BroadcastClosed, BroadcastReader, BroadcastWriter
from vivace.protocol.step import Join, StepPlan
from vivace.system_calls import open_memory

PROGRAM = "vivace bench broadcast"
RANKS = (2, 8, 32)
MOST_ROWS, MOST_TOKENS, MOST_PLANS = 4096, 1 << 20, 1 << 20
SCHEDULE_SECONDS = 0.0005
"""before a plan, in which the engine is busy and the ranks fall asleep"""
ROUND = 20
"""plans of one way, then it is the other's turn"""
ANSWER_SECONDS = 10.0
HEADER = "way          ranks    bytes      send us middle rank us   last rank us    answered us"

Times = tuple[float, float, float, float]
Tell = Callable[[StepPlan], Times]
"""a plan to all ranks -> seconds of send, until the middle one of the ranks has it, until the last
one has, until all have answered"""


@dataclass(frozen=True)
class BroadcastTime:
    """Of one plan to `ranks` processes; medians, in seconds."""

    way: str
    ranks: int
    nbytes: int
    send: float
    middle_rank: float
    last_rank: float
    answered: float


def main(argv: list[str]) -> int:
    args = parse(argv)
    return run_benchmark(PROGRAM, lambda: measure(args))


def measure(args: argparse.Namespace) -> int:
    """Print a line for every way and number of ranks, and store all."""
    print(HEADER)
    ask_for_short_slices()  # as engines do, and so the ranks that are forked
    plan, measured = make_plan(args.rows, args.prompt), []
    for ranks in args.ranks:
        for one in compare(ranks, plan, args.plans):
            print(line(one), flush=True)
            measured.append(one)
    if args.output_file:
        result = {"host": host_facts(), "broadcasts": [asdict(one) for one in measured]}
        write_figures(Path(args.output_file), result)
    return 0


def make_plan(rows: int, prompt: int) -> StepPlan:
    """A decode step of `rows`, where one with a prompt of so many tokens joins, if any."""
    tokens = [1000 + token % 30000 for token in range(prompt)]
    sampling = SamplingParams(max_new_tokens=16)
    join = Join(
        row=rows, key=1, tokens=tokens, prompt=prompt, cached=0, pages=[1, 2], sampling=sampling
    )
    joins = [join] if prompt else []
    return StepPlan(number=1, rows=list(range(rows)), counts=[1] * rows, joins=joins)


def line(one: BroadcastTime) -> str:
    ranks = f"{1e6 * one.middle_rank:14.1f} {1e6 * one.last_rank:14.1f}"
    times = f"{1e6 * one.send:12.1f} {ranks} {1e6 * one.answered:14.1f}"
    return f"{one.way:<12} {one.ranks:5} {one.nbytes:8} {times}"


def compare(ranks: int, plan: StepPlan, plans: int) -> list[BroadcastTime]:
    """Raises BenchError where a rank fails."""
    ways = {"ring": ring_ranks(ranks), "sockets": socket_ranks(ranks)}
    seconds: dict[str, list[Times]] = {way: [] for way in ways}
    try:
        for _ in range(-(-plans // ROUND)):
            for way, (tell, _) in ways.items():
                found = [pause_and_tell(tell, plan) for _ in range(1 + ROUND)]
                seconds[way] += found[1:]  # the first one has the other way's caches
    finally:
        for _, end in ways.values():
            end()
    nbytes = len(msgspec.msgpack.encode(plan))
    return [BroadcastTime(way, ranks, nbytes, *medians(found)) for way, found in seconds.items()]


def pause_and_tell(tell: Tell, plan: StepPlan) -> Times:
    end = time.perf_counter() + SCHEDULE_SECONDS
    while time.perf_counter() < end:
        pass
    return tell(plan)


def medians(found: Sequence[Times]) -> Times:
    send, middle, last, answered = (statistics.median(times) for times in zip(*found, strict=True))
    return send, middle, last, answered


def ring_ranks(ranks: int) -> tuple[Tell, Callable[[], None]]:
    """(tell them, end them)"""
    memory = open_memory("vivace-ranks")
    writer, encoder = BroadcastWriter(memory, ranks), msgspec.msgpack.Encoder()
    decoder = msgspec.msgpack.Decoder(ToRanks)

    def be_rank(rank: int) -> None:
        reader = BroadcastReader(memory, ranks, rank)
        with suppress(BroadcastClosed):
            while (data := reader.receive(ANSWER_SECONDS)) is not None:
                decoder.decode(data)
                reader.answer(time.perf_counter_ns())

    children = [fork(lambda rank=rank: be_rank(rank)) for rank in range(ranks)]
    os.close(memory)
    count = 0

    def tell(plan: StepPlan) -> Times:
        nonlocal count
        count += 1
        begun = time.perf_counter_ns()
        writer.send(encoder.encode(plan))
        sent = time.perf_counter_ns()
        heard = [writer.answer(rank, count, ANSWER_SECONDS) for rank in range(ranks)]
        return since(begun, sent, heard)

    def end() -> None:
        writer.close()
        reap(children)

    return tell, end


def socket_ranks(ranks: int) -> tuple[Tell, Callable[[], None]]:
    """As ring_ranks"""
    pairs = [socket.socketpair() for _ in range(ranks)]

    def be_rank(rank: int) -> None:
        for number, (ours, theirs) in enumerate(pairs):
            ours.close()
            if number != rank:
                theirs.close()
        control = MessageSocket(pairs[rank][1], msgspec.msgpack.Decoder(ToRanks))
        with suppress(SocketClosed):
            while True:
                control.wait(ANSWER_SECONDS)
                control.send(time.perf_counter_ns())

    children = [fork(lambda rank=rank: be_rank(rank)) for rank in range(ranks)]
    for _, theirs in pairs:
        theirs.close()
    links = [MessageSocket(ours, msgspec.msgpack.Decoder(int)) for ours, _ in pairs]

    def tell(plan: StepPlan) -> Times:
        begun = time.perf_counter_ns()
        for link in links:
            link.send(plan)
        sent = time.perf_counter_ns()
        return since(begun, sent, [link.wait(ANSWER_SECONDS) for link in links])

    def end() -> None:
        for link in links:
            link.close()
        reap(children)

    return tell, end


def since(begun: int, sent: int, heard: Sequence[int | None]) -> Times:
    """Raises BenchError where one has not heard."""
    answered = time.perf_counter_ns()
    times = [moment for moment in heard if moment is not None]
    if len(times) < len(heard):
        raise BenchError(f"a rank of {len(heard)} has not answered for {ANSWER_SECONDS:g} s")
    moments = sent, statistics.median_high(times), max(times), answered
    send, middle, last, all_answered = ((moment - begun) / 1e9 for moment in moments)
    return send, middle, last, all_answered


def fork(run: Callable[[], None]) -> int:
    """A child that ends behind `run`."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    return child


def reap(children: Sequence[int]) -> None:
    for child in children:
        os.waitpid(child, 0)


def number(least: int, most: int) -> Callable[[str], int]:
    def parse_number(text: str) -> int:
        value = whole_number(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not in {least}..{most}")
        return value

    return parse_number


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--ranks", nargs="+", type=number(1, MOST_RANKS), default=list(RANKS))
    parser.add_argument("--rows", type=number(1, MOST_ROWS), default=16, help="decoding requests")
    parser.add_argument(
        "--prompt", type=number(0, MOST_TOKENS), default=0, help="tokens of one that joins"
    )
    parser.add_argument("--plans", type=number(1, MOST_PLANS), default=300)
    parser.add_argument("--output-file", type=result_file, help="write the figures as JSON")
    return parser.parse_args(argv)
