"""`vivace bench one-batch`: one batch on the executor, without scheduler, frontend or HTTP.

Prefill once, then decode step by step, for every (batch, input length, output length).
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivace.arguments import ArgumentParser
from vivace.bench.environment import host_facts
from vivace.bench.errors import BenchError, run_benchmark
from vivace.bench.flags import refuse_misspelled, result_file
from vivace.bench.record import append_record
from vivace.config.process_environment import process_environment
from vivace.engine.executor import Executor, ExecutorDied
from vivace.protocol.messages import SamplingParams
from vivace.protocol.step import Join, StepPlan, StepResult

if TYPE_CHECKING:
    from vivace.config.config import Config

PROGRAM = "vivace bench one-batch"
STEP_TOKENS = 2048
"""Prompt tokens of one step when the configuration names no limit."""
CHECK_PROMPTS = 3
CHECK_OUTPUT = 16
CHECK_INPUT = 48


@dataclass(frozen=True, kw_only=True)
class BatchShape:
    """One point of the grid."""

    batch: int
    input_len: int
    output_len: int
    drafts: int = 0
    """that each decode step verifies for each row"""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What one shape took, in seconds, and the tokens it gave (one list per row)."""

    shape: BatchShape
    prefill: float
    decode: list[float]
    """One per step; the first token of every row comes from the prefill."""
    tokens: list[list[int]]


def main(argv: list[str]) -> int:
    args, server_words = parse(argv)
    return run_benchmark(
        PROGRAM, lambda: measure_config(args, resolved_config(server_words, PROGRAM))
    )


def measure_config(args: argparse.Namespace, config: Config) -> int:
    from vivace.launch.engine import build_executor

    executor = build_executor(config, show_progress, owns_process=True)
    try:
        return measure(args, executor, step_tokens(config))
    except ExecutorDied as error:
        raise BenchError(str(error)) from error
    finally:
        executor.close()


def measure(args: argparse.Namespace, executor: Executor, limit: int) -> int:
    """The correctness test, or the grid."""
    bench = Batches(executor, limit)
    instructions = executor.capacity.instructions
    print(f"computed by: {instructions}")
    if args.correctness_test:
        return correctness_test(bench, args.cut_len)
    shapes = [
        BatchShape(batch=batch, input_len=length, output_len=output)
        for batch, length, output in product(args.batch_size, args.input_len, args.output_len)
    ]
    for shape in shapes:
        bench.check_fits(shape)
    bench.time(replace(shapes[0], output_len=min(shapes[0].output_len, 8)), seed=0)
    for number, shape in enumerate(shapes, 1):
        timing = bench.time(shape, seed=number)
        result = build_result(timing, args.run_name)
        print(render(timing, result, args.log_decode_step))
        if args.result_filename:
            facts = {"host": host_facts(), "instructions": instructions}
            append_record(Path(args.result_filename), result | facts)
    return 0


class Batches:
    """Runs batches of equal rows on an executor; pages are given out once per batch."""

    def __init__(self, executor: Executor, limit: int) -> None:
        self._executor = executor
        self._limit = limit
        self._number = 0
        self._occupied: list[int] = []

    @property
    def vocabulary(self) -> int:
        return self._executor.capacity.vocabulary

    def check_fits(self, shape: BatchShape) -> None:
        capacity = self._executor.capacity
        length = shape.input_len + shape.output_len + shape.drafts
        pages = shape.batch * -(-length // capacity.page_size)
        if shape.batch > capacity.rows:
            raise BenchError(
                f"batch {shape.batch} exceeds {capacity.rows} rows; raise --max-running-requests"
            )
        if length > capacity.context:
            raise BenchError(f"{length} tokens per row exceed the context of {capacity.context}")
        if pages > capacity.pages:
            raise BenchError(
                f"batch {shape.batch} x {length} tokens needs {pages} pages of "
                f"{capacity.page_size}; there are {capacity.pages}"
            )

    def time(self, shape: BatchShape, seed: int) -> Timing:
        """Random prompts; no row shares a prefix with another."""
        chance = random.Random(seed)
        prompts = [
            [chance.randrange(self.vocabulary) for _ in range(shape.input_len)]
            for _ in range(shape.batch)
        ]
        return self.generate(prompts, shape)

    def generate(self, prompts: Sequence[Sequence[int]], shape: BatchShape, cut: int = 0) -> Timing:
        """Prefill (in two parts when `cut` > 0), then decode greedily, drafts all wrong."""
        joins = self._joins(prompts, shape)
        tokens: list[list[int]] = [[] for _ in prompts]
        started = time.perf_counter()
        for plan in self._prefill_plans(joins, cut):
            keep_tokens(self._executor.submit(plan).result(), plan, tokens)
        prefill = time.perf_counter() - started
        rows = list(range(len(prompts)))
        decode = []
        for _ in range(shape.output_len - 1):
            started = time.perf_counter()
            plan = self._plan(rows=rows, counts=[1 + shape.drafts] * len(rows))
            keep_tokens(self._executor.submit(plan).result(), plan, tokens)
            decode.append(time.perf_counter() - started)
        self._occupied = rows
        return Timing(shape=shape, prefill=prefill, decode=decode, tokens=tokens)

    def _joins(self, prompts: Sequence[Sequence[int]], shape: BatchShape) -> list[Join]:
        page_size = self._executor.capacity.page_size
        each = -(-(shape.input_len + shape.output_len + shape.drafts) // page_size)
        sampling = SamplingParams(
            temperature=0.0, max_new_tokens=shape.output_len, ignore_eos=True, seed=1
        )
        return [
            Join(
                row=row,
                key=row,
                tokens=list(prompt),
                prompt=len(prompt),
                cached=0,
                pages=list(range(row * each, (row + 1) * each)),
                sampling=sampling,
            )
            for row, prompt in enumerate(prompts)
        ]

    def _prefill_plans(self, joins: list[Join], cut: int) -> list[StepPlan]:
        """Steps of at most `limit` prompt tokens; the rows of the batch before leave first."""
        spans: list[tuple[int, int]] = []
        for join in joins:
            left = join.prompt
            if 0 < cut < left:
                spans.append((join.row, cut))
                left -= cut
            while left > 0:
                spans.append((join.row, min(left, self._limit)))
                left -= self._limit
        groups = group_spans(spans, self._limit)
        first = self._plan(
            rows=[row for row, _ in groups[0]],
            counts=[count for _, count in groups[0]],
            joins=joins,
            leaves=self._occupied,
        )
        later = [
            self._plan(rows=[row for row, _ in group], counts=[count for _, count in group])
            for group in groups[1:]
        ]
        return [first, *later]

    def _plan(self, **columns: Any) -> StepPlan:
        self._number += 1
        return StepPlan(number=self._number, **columns)


def group_spans(spans: Sequence[tuple[int, int]], limit: int) -> list[list[tuple[int, int]]]:
    """Spans in order, in groups of at most `limit` tokens, a row at most once per group."""
    groups: list[list[tuple[int, int]]] = []
    for row, count in spans:
        group = groups[-1] if groups else []
        full = sum(size for _, size in group) + count > limit
        if not groups or full or any(other == row for other, _ in group):
            groups.append([(row, count)])
        else:
            group.append((row, count))
    return groups


def keep_tokens(result: StepResult, plan: StepPlan, tokens: list[list[int]]) -> None:
    if result.bad:
        raise BenchError(f"the worker reports bad numbers: {next(iter(result.bad.values()))}")
    for row, drawn in zip(plan.rows, result.tokens, strict=True):
        tokens[row].extend(drawn)


def correctness_test(bench: Batches, cut: int) -> int:
    """Rows alone, together, and with a prefill in two parts must give the same tokens."""
    chance = random.Random(7)
    prompts = [
        [chance.randrange(bench.vocabulary) for _ in range(CHECK_INPUT - 5 * index)]
        for index in range(CHECK_PROMPTS)
    ]
    shape = BatchShape(batch=CHECK_PROMPTS, input_len=CHECK_INPUT, output_len=CHECK_OUTPUT)
    together = bench.generate(prompts, shape).tokens
    in_parts = bench.generate(prompts, shape, cut).tokens
    wrong = 0
    for number, prompt in enumerate(prompts):
        alone = bench.generate([prompt], shape).tokens[0]
        same = alone == together[number] == in_parts[number]
        wrong += not same
        print(f"prompt {number}: {'equal' if same else 'DIFFERENT'}")
        print(f"  alone    {alone}\n  together {together[number]}\n  in parts {in_parts[number]}")
    return 1 if wrong else 0


def build_result(timing: Timing, run_name: str) -> dict[str, Any]:
    """SGLang's keys. Latencies in seconds, throughputs in tokens per second."""
    shape = timing.shape
    total = timing.prefill + sum(timing.decode)
    median = statistics.median(timing.decode) if timing.decode else 0.0
    tokens = shape.batch * (shape.input_len + shape.output_len)
    return {
        "run_name": run_name,
        "batch_size": shape.batch,
        "input_len": shape.input_len,
        "output_len": shape.output_len,
        "prefill_latency": timing.prefill,
        "prefill_throughput": shape.batch * shape.input_len / timing.prefill,
        "median_decode_latency": median,
        "median_decode_throughput": shape.batch / median if median else 0.0,
        "total_latency": total,
        "overall_throughput": tokens / total,
    }


def render(timing: Timing, result: dict[str, Any], every: int) -> str:
    shape = timing.shape
    lines = [
        f"batch {shape.batch}, {shape.input_len} in, {shape.output_len} out",
        _line("Prefill.", result["prefill_latency"], result["prefill_throughput"]),
    ]
    if every > 0:
        lines += [
            _line(f"Decode {step}.", seconds, shape.batch / seconds)
            for step, seconds in enumerate(timing.decode)
            if step % every == 0
        ]
    if timing.decode:
        median = result["median_decode_latency"], result["median_decode_throughput"]
        lines.append(_line("Decode.  median", *median))
    lines.append(_line("Total.", result["total_latency"], result["overall_throughput"]))
    return "\n".join(lines)


def _line(name: str, seconds: float, rate: float) -> str:
    return f"{name} latency: {seconds:.5f} s, throughput: {rate:.2f} token/s"


def step_tokens(config: Any) -> int:
    """Prompt tokens of one step that the worker's buffers take."""
    limits = (config.schedule.chunked_prefill_size, config.schedule.max_prefill_tokens)
    given = [limit for limit in limits if limit is not None and limit > 0]
    return min(given, default=STEP_TOKENS)


def show_progress(stage: str, fraction: float) -> None:
    if fraction in (0.0, 1.0):
        print(f"{stage}: {fraction:.0%}", file=sys.stderr)


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = ArgumentParser(
        prog=PROGRAM,
        usage="%(prog)s [FLAGS]",
        description="Prefill and decode time of one batch. Flags that are not listed here are the "
        "server's (see `vivace flags`), for example --model-path.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--run-name", default="default", help="label stored in the result")
    add("--batch-size", "--batch", type=int, nargs="+", default=[1])
    add("--input-len", type=int, nargs="+", default=[1024])
    add("--output-len", type=int, nargs="+", default=[16])
    add("--result-filename", type=result_file, default="", help="JSONL file to append to")
    add("--correctness-test", action="store_true", help="compare tokens instead of timing")
    add("--cut-len", type=int, default=4, help="first part of a prefill in two parts")
    add("--log-decode-step", type=int, default=0, help="print every n-th decode step")
    args, words = parser.parse_known_args(argv)
    refuse_misspelled(parser, words)
    for name in ("batch_size", "input_len", "output_len"):
        if min(getattr(args, name)) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return args, words


def resolved_config(words: Sequence[str], program: str) -> Config:
    """The configuration a server with these flags would have. ConfigError, SourceError."""
    from vivace.config.parsing import parse
    from vivace.config.tensor_parallel import one_engine
    from vivace.launch.configure import configure

    asked = parse(words, process_environment(), program=program)
    one_engine(asked, program)
    return configure(asked)
