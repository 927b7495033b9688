"""`vivace bench speculative`: answers with drafts beside answers without.

Two engines of this process, which differ in nothing but the flags of speculative decoding, take
turns; a figure is the median over rounds of one engine's output speed divided by the other's in the
same round. Each round has an `extra_key` of its own, so that no round drafts from what an earlier
one has said. With `--scripted` drafts are right as often as it says (`scripted_drafts.py`).
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vivace.arguments import ArgumentParser, number_between, whole_number
from vivace.bench.environment import host_facts, instruction_set
from vivace.bench.errors import run_benchmark
from vivace.bench.flags import refuse_misspelled, result_file, share
from vivace.bench.offline import OfflineEngine, context_tokens, engine_arguments, open_engine
from vivace.bench.output_speed import (
    RANDOM,
    REPEATING,
    SHORTEST_ANSWER,
    PromptSet,
    accept_length,
    check_context,
    run,
    texts,
)
from vivace.bench.record import write_figures
from vivace.bench.repeating_prompts import repeating_prompts
from vivace.bench.scripted_drafts import measure_scripted, open_steps
from vivace.bench.tokenizer import LocalCodec, TokenCodec, ordinary_ids
from vivace.config.draft_sizes import MOST_TOKENS

PROGRAM = "vivace bench speculative"
DRAFT_FLAGS = "speculative_"
DEFAULT_ALGORITHM = "NGRAM"
MOST = 1 << 16
"""streams, rounds and tokens"""
HEADER = f"{'prompts':<12} {'streams':>7} {'plain':>9} {'drafts':>9} {'ratio':>7}  accepted"


@dataclass(frozen=True, kw_only=True)
class SpeedRatio:
    """Medians over rounds: tokens per second of both, and their ratio; tokens of a step that
    verifies; whether all answers were the same."""

    name: str
    streams: int
    plain: float
    drafts: float
    ratio: float
    ratios: list[float]
    accept_length: float
    same: bool


def main(argv: list[str]) -> int:
    args, words = parse(argv)

    def run_chosen() -> int:
        arguments = engine_arguments(words, PROGRAM)
        if args.scripted is None:
            return measure(args, arguments, open_engine, LocalCodec, context_tokens)
        return measure_scripted(
            args, arguments, open_engine, LocalCodec, context_tokens, open_steps
        )

    return run_benchmark(PROGRAM, run_chosen)


def measure(
    args: argparse.Namespace,
    arguments: dict[str, Any],
    make_engine: Callable[[dict[str, Any]], OfflineEngine],
    make_codec: Callable[[str | None], TokenCodec],
    read_context: Callable[[dict[str, Any]], int],
) -> int:
    """Print a line for each set of prompts as it is measured; 1 where an answer differs."""
    codec = make_codec(arguments.get("tokenizer_path") or arguments.get("model_path"))
    sets = prompt_sets(args, codec)
    plain = {name: v for name, v in arguments.items() if not name.startswith(DRAFT_FLAGS)}
    asked = {"speculative_algorithm": DEFAULT_ALGORITHM, **arguments}
    check_context(sets, read_context(plain), args.output_len)
    engines = [make_engine(plain)]
    try:
        engines.append(make_engine(asked))
        print(f"computed by: {instruction_set(engines[0].get_server_info())}")
        print(HEADER)
        found = list[SpeedRatio]()
        for one in sets:
            found.append(compare(one, engines, args))
            print(line(found[-1]), flush=True)
    finally:
        for engine in engines:
            engine.shutdown()
    if args.output_file:
        flags = {name: v for name, v in asked.items() if name not in plain}
        figures = {"host": host_facts(), "flags": flags, "prompts": [asdict(c) for c in found]}
        write_figures(Path(args.output_file), figures)
    if all(one.same for one in found):
        return 0
    print("answers differ: drafts have changed tokens", file=sys.stderr)
    return 1


def prompt_sets(args: argparse.Namespace, codec: TokenCodec) -> list[PromptSet]:
    """Chats whose answers repeat what they were given, and prompts of random tokens; alone, then
    many at once, each with a beginning of its own."""
    repeating = repeating_prompts(codec)
    chance, ordinary = random.Random(args.seed), ordinary_ids(codec)
    random_prompts = [chance.choices(ordinary, k=args.random_input_len) for _ in repeating]
    found: list[PromptSet] = []
    for name, prompts in ((REPEATING, repeating), (RANDOM, random_prompts)):
        many = [
            [*chance.choices(ordinary, k=2), *prompts[at % len(prompts)]]
            for at in range(args.streams)
        ]
        found.append(PromptSet(name=name, streams=1, prompts=prompts))
        if args.streams > 1:
            found.append(PromptSet(name=name, streams=args.streams, prompts=many))
    return found


def compare(
    one: PromptSet, engines: Sequence[OfflineEngine], args: argparse.Namespace
) -> SpeedRatio:
    """The engines take turns, the first one of a round last in the next."""
    speeds: list[list[float]] = [[], []]
    lengths, same = list[float](), True
    for number in range(args.rounds + 1):  # the first one warms up
        answers: list[list[dict[str, Any]]] = [[], []]
        for which in (0, 1) if number % 2 else (1, 0):
            speed, answers[which] = run(one, engines[which], f"round {number}", args.output_len)
            if number:
                speeds[which].append(speed)
        same &= texts(answers[0]) == texts(answers[1])
        lengths += [accept_length(answer) for answer in answers[1]]
    ratios = [drafts / plain for plain, drafts in zip(*speeds, strict=True)]
    return SpeedRatio(
        name=one.name,
        streams=one.streams,
        plain=statistics.median(speeds[0]),
        drafts=statistics.median(speeds[1]),
        ratio=statistics.median(ratios),
        ratios=ratios,
        accept_length=statistics.mean(lengths),
        same=same,
    )


def line(one: SpeedRatio) -> str:
    speeds = f"{one.plain:9.1f} {one.drafts:9.1f} {one.ratio:7.2f}"
    differs = "" if one.same else "  ANSWERS DIFFER"
    return f"{one.name:<12} {one.streams:7} {speeds}  {one.accept_length:.2f} a step{differs}"


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = ArgumentParser(
        prog=PROGRAM,
        usage="%(prog)s [FLAGS]",
        description="Output speed with drafts beside that without, on prompts whose answers repeat "
        "them and on random ones, one stream and many. Flags that are not listed here are the "
        "server's (see `vivace flags`), for example --speculative-algorithm (default: NGRAM).",
        allow_abbrev=False,
    )
    add, positive = parser.add_argument, number_between(1, MOST)
    add("--rounds", type=positive, default=5, help="of which medians are taken (default: 5)")
    add("--streams", type=positive, default=32, help="at once (default: 32)")
    add(
        "--output-len",
        type=number_between(SHORTEST_ANSWER, MOST),
        default=128,
        help="of an answer (default: 128)",
    )
    add("--random-input-len", type=positive, default=128, help="(default: 128)")
    add("--seed", type=whole_number, default=0, help="of random prompts (default: 0)")
    add(
        "--scripted",
        type=share,
        metavar="RATE",
        help="instead: of drafts that are right so often (0 to 1) the speed-up beside what the "
        "times of steps allow",
    )
    add(
        "--width",
        type=number_between(1, MOST_TOKENS - 1),
        default=3,
        help="drafts of a step of --scripted (default: 3)",
    )
    add("--output-file", type=result_file, help="write the figures as JSON")
    args, words = parser.parse_known_args(argv)
    refuse_misspelled(parser, words)
    if args.scripted is not None and any(word.startswith("--speculative") for word in words):
        parser.error("--scripted chooses the drafts: leave --speculative-... flags out")
    without = "without" if args.scripted is None else "with"
    for name in ("width",) if args.scripted is None else ("streams", "random_input_len", "seed"):
        if getattr(args, name) != parser.get_default(name):
            parser.error(f"--{name.replace('_', '-')} has no effect {without} --scripted")
    return args, words
