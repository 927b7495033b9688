"""`vivace bench kernels`: the CPU's linear layers in the model's shapes, and the machine's limits.

One row is bound by memory, hundreds by arithmetic; the last two columns say how close to each
limit a product comes. Both limits are measured in the same run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivace.arguments import ArgumentParser
from vivace.bench.environment import host_facts, usable_cores
from vivace.bench.errors import run_benchmark
from vivace.bench.flags import result_file
from vivace.bench.record import write_figures
from vivace.errors import CannotStart

if TYPE_CHECKING:
    from vivace.models.facts import ModelFacts
    from vivace.platforms.cpu.measure import Limits, LinearTime

PROGRAM = "vivace bench kernels"
KINDS = ("bf16", "q8_0", "q4_1", "q4_1_a8")
ROWS = (1, 4, 8, 32, 128, 512)
HEADER = (
    "inputs x outputs     weights   rows         us      GB/s   GFLOP/s   of memory   of float32"
)


def main(argv: list[str]) -> int:
    args = parse(argv)
    return run_benchmark(PROGRAM, lambda: measure(args))


def measure(args: argparse.Namespace) -> int:
    """Print a line for every product, and store all."""
    from vivace.platforms.cpu.measure import KINDS as known
    from vivace.platforms.cpu.measure import linear_times, measure_limits, open_kernels

    if unknown := sorted(set(args.formats) - set(known)):
        raise CannotStart(f"--formats {unknown[0]}: one of {', '.join(known)}")
    kernels, shapes = open_kernels(args.threads), matrix_shapes(open_facts(args.model_path))
    allowed = measure_limits(kernels, args.repetitions)
    print(
        f"{kernels.isa}, {kernels.threads} threads: memory {allowed.bytes_per_second / 1e9:.1f} "
        f"GB/s, float32 {allowed.flops / 1e9:.0f} GFLOP/s"
    )
    print(HEADER)
    measured = []
    for one in linear_times(kernels, shapes, args.formats, args.rows, args.repetitions):
        print(line(one, allowed), flush=True)
        measured.append(one)
    if args.output_file:
        write_figures(Path(args.output_file), record(kernels.isa, allowed, measured))
    return 0


def matrix_shapes(facts: ModelFacts) -> list[tuple[int, int]]:
    """(inputs, outputs) of the layers' products (of a mixture: the router's, those of one expert
    and of the shared one) and of the head, each once. What latent attention computes for each head
    apart is not among them."""
    hidden = facts.hidden_size
    every = [*attention_shapes(facts), *mlp_shapes(facts), (hidden, facts.vocabulary)]
    return list(dict.fromkeys(every))


def attention_shapes(facts: ModelFacts) -> list[tuple[int, int]]:
    hidden, latent = facts.hidden_size, facts.latent
    if latent is None:
        heads, keys = facts.heads * facts.head_dim, 2 * facts.kv_heads * facts.head_dim
        return [(hidden, heads + keys), (heads, hidden)]
    return [
        (hidden, latent.kv_rank + latent.rope + latent.q_rank),
        (latent.q_rank or hidden, facts.heads * (latent.nope + latent.rope)),
        (facts.heads * latent.value, hidden),
    ]


def mlp_shapes(facts: ModelFacts) -> list[tuple[int, int]]:
    experts = facts.decoder.experts if facts.decoder is not None else None
    if experts is None:
        widths, routers = [facts.intermediate_size], []
    else:
        dense = [] if all(experts.layers) else [facts.intermediate_size]
        widths = [*dense, experts.width, *([experts.shared_width] if experts.shared_width else [])]
        routers = [(facts.hidden_size, experts.count)]
    pairs = [[(facts.hidden_size, 2 * width), (width, facts.hidden_size)] for width in widths]
    return [*routers, *(one for pair in pairs for one in pair)]


def open_facts(path: str | None) -> ModelFacts:
    """Of the embedded model when no path is given. Raises CannotStart."""
    from vivace.checkpoint.source import locate
    from vivace.models.facts import read_facts

    return read_facts(locate(path))


def line(one: LinearTime, allowed: Limits) -> str:
    return (
        f"{one.inputs:6} x {one.outputs:<8} {one.kind:>10} {one.rows:6} {one.seconds * 1e6:10.0f} "
        f"{one.bytes_per_second / 1e9:9.1f} {one.flops / 1e9:9.0f} "
        f"{one.bytes_per_second / allowed.bytes_per_second:10.0%} {one.flops / allowed.flops:11.0%}"
    )


def record(isa: str, allowed: Limits, measured: Iterable[LinearTime]) -> dict[str, Any]:
    return {
        "host": host_facts(),
        "isa": isa,
        "limits": asdict(allowed),
        "linear": [asdict(one) for one in measured],
    }


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--model-path", help="whose shapes are taken (default: the embedded one)")
    parser.add_argument("--formats", nargs="+", default=list(KINDS), metavar="FORMAT")
    parser.add_argument("--rows", nargs="+", type=positive, default=list(ROWS))
    parser.add_argument("--threads", type=positive, default=usable_cores())
    parser.add_argument("--repetitions", type=positive, default=5)
    parser.add_argument("--output-file", type=result_file, help="write the figures as JSON")
    return parser.parse_args(argv)
