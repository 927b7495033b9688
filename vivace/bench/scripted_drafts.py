"""`vivace bench speculative --scripted RATE`: the speed-up that drafts of a known acceptance bring,
beside what the times of steps allow.

An engine whose drafts are what it answered before, each of them right with that probability, takes
turns with one without drafts, and in the same rounds a worker alone computes steps of one token and
steps that verify as many drafts. With acceptance a and width w a step draws 1 + a + ... + a^w
tokens on average, so the most that can be gained is that, divided by what such a step takes beside
one of a single token.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from vivace.bench.environment import host_facts, instruction_set
from vivace.bench.offline import OfflineEngine
from vivace.bench.one_batch import Batches, BatchShape, step_tokens
from vivace.bench.output_speed import (
    REPEATING,
    PromptSet,
    accept_length,
    check_context,
    run,
    texts,
)
from vivace.bench.record import write_figures
from vivace.bench.repeating_prompts import repeating_prompts
from vivace.bench.tokenizer import TokenCodec
from vivace.config.draft_flags import SCRIPTED
from vivace.config.process_environment import variable_set
from vivace.engine.executor import Executor

ALWAYS_WRONG = "0"


class TimedSteps(Protocol):
    """A worker without an engine around it."""

    def time(self, prompt: list[int], steps: int, drafts: int) -> list[float]:
        """Seconds of as many steps behind `prompt`, of which each verifies so many drafts and draws
        one token."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class ScriptedRound:
    plain: float
    """tokens per second"""
    drafts: float
    decode: float
    """seconds of a step of one token"""
    verify: float
    """seconds of a step of 1 + width tokens"""
    accept_length: float
    """tokens that a step of the scripted engine drew"""
    expected: float

    @property
    def speed_up(self) -> float:
        return self.drafts / self.plain

    @property
    def allowed(self) -> float:
        return self.expected * self.decode / self.verify

    @property
    def share(self) -> float:
        return self.speed_up / self.allowed


def measure_scripted(
    args: argparse.Namespace,
    arguments: dict[str, Any],
    make_engine: Callable[[dict[str, Any]], OfflineEngine],
    make_codec: Callable[[str | None], TokenCodec],
    read_context: Callable[[dict[str, Any]], int],
    make_steps: Callable[[dict[str, Any]], TimedSteps],
) -> int:
    """Print each round and the medians; 1 where an answer differs."""
    codec = make_codec(arguments.get("tokenizer_path") or arguments.get("model_path"))
    prompts = PromptSet(name=REPEATING, streams=1, prompts=repeating_prompts(codec))
    check_context([prompts], read_context(arguments), args.output_len, spare=1 + args.width)
    with contextlib.ExitStack() as stack:
        plain = make_engine(arguments)
        stack.callback(plain.shutdown)
        drafting = {**arguments, **draft_flags(args.width)}
        with variable_set(SCRIPTED, str(args.scripted)):
            engine = make_engine(drafting)
        stack.callback(engine.shutdown)
        with variable_set(SCRIPTED, ALWAYS_WRONG):
            steps = make_steps(drafting)
        stack.callback(steps.close)
        print(f"computed by: {instruction_set(plain.get_server_info())}")
        rounds, same = run_rounds(args, prompts, [plain, engine], steps)
    print(summary(args, rounds))
    if args.output_file:
        flags = {"acceptance": args.scripted, "width": args.width}
        figures = {"host": host_facts(), **flags, "rounds": [asdict(one) for one in rounds]}
        write_figures(Path(args.output_file), figures)
    if not same:
        print("answers differ: drafts have changed tokens", file=sys.stderr)
    return int(not same)


def draft_flags(width: int) -> dict[str, Any]:
    return {
        "speculative_algorithm": "NGRAM",
        "speculative_num_draft_tokens": 1 + width,
        "speculative_fixed_width": True,
    }


def run_rounds(
    args: argparse.Namespace,
    prompts: PromptSet,
    engines: Sequence[OfflineEngine],
    steps: TimedSteps,
) -> tuple[list[ScriptedRound], bool]:
    """(those behind the first, which warms up and tells the script the answers; whether all answers
    were the same)"""
    rounds, same = list[ScriptedRound](), True
    expected = sum(args.scripted**place for place in range(args.width + 1))
    for number in range(args.rounds + 1):
        speeds, answers = [0.0, 0.0], [list[dict[str, Any]](), list[dict[str, Any]]()]
        for which in (0, 1) if number % 2 else (1, 0):
            found = run(prompts, engines[which], f"round {number}", args.output_len)
            speeds[which], answers[which] = found
        same &= texts(answers[0]) == texts(answers[1])
        if not number:
            continue
        decode, verify = time_both(steps, prompts.prompts, args)
        rounds.append(
            ScriptedRound(
                plain=speeds[0],
                drafts=speeds[1],
                decode=decode,
                verify=verify,
                accept_length=statistics.mean(map(accept_length, answers[1])),
                expected=expected,
            )
        )
        print(line(f"round {number}", rounds[-1]), flush=True)
    return rounds, same


def time_both(
    steps: TimedSteps, prompts: Sequence[list[int]], args: argparse.Namespace
) -> tuple[float, float]:
    """Medians: (seconds of a step of one token, of one that verifies `args.width` drafts)."""
    times: list[list[float]] = [[], []]
    for prompt in prompts:
        for found, drafts in zip(times, (0, args.width), strict=True):
            found += steps.time(prompt, args.output_len, drafts)
    return statistics.median(times[0]), statistics.median(times[1])


def line(name: str, one: ScriptedRound) -> str:
    decode, verify = 1e3 * one.decode, 1e3 * one.verify
    return (
        f"{name}: {one.plain:.1f} and {one.drafts:.1f} tokens/s, steps of {decode:.2f} and "
        f"{verify:.2f} ms, {one.accept_length:.2f} tokens a step; speed-up "
        f"{one.speed_up:.2f} of {one.allowed:.2f}: {one.share:.0%}"
    )


def summary(args: argparse.Namespace, rounds: Sequence[ScriptedRound]) -> str:
    def median(read: Callable[[ScriptedRound], float]) -> float:
        return statistics.median(map(read, rounds))

    ratio = median(lambda one: one.verify / one.decode)
    return (
        f"drafts right {args.scripted:.0%} of the time, {args.width} in a step: expected are "
        f"{rounds[0].expected:.2f} tokens a step\n"
        f"a step with them takes {ratio:.2f} of one without: the speed-up may be "
        f"{median(lambda one: one.allowed):.2f}\n"
        f"it is {median(lambda one: one.speed_up):.2f}: {median(lambda one: one.share):.0%} "
        "(medians)"
    )


class WorkerSteps:
    """Those of a worker of this process."""

    def __init__(self, executor: Executor, limit: int) -> None:
        """`limit`: prompt tokens of a step"""
        self._executor = executor
        self._batches = Batches(executor, limit)

    def time(self, prompt: list[int], steps: int, drafts: int) -> list[float]:
        shape = BatchShape(batch=1, input_len=len(prompt), output_len=steps + 1, drafts=drafts)
        self._batches.check_fits(shape)
        return self._batches.generate([prompt], shape).decode

    def close(self) -> None:
        self._executor.close()


def open_steps(arguments: dict[str, Any]) -> TimedSteps:
    """Of a worker that an engine with these arguments would have."""
    from vivace.config.parsing import from_arguments
    from vivace.launch.configure import configure
    from vivace.launch.engine import build_executor

    config = configure(from_arguments(**arguments))
    return WorkerSteps(build_executor(config, lambda stage, done: None), step_tokens(config))
