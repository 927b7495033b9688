"""`vivace bench check`: how long `vivace check` takes, with the interpreter's start."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from vivace.arguments import ArgumentParser, named_path
from vivace.errors import CANNOT_START

GOAL = 0.2
"""seconds"""


def main(argv: list[str]) -> int:
    chosen = parse(argv)
    missing = [file for file in chosen.files if not file.is_file()]
    if missing:
        print(f"vivace bench check: {missing[0]}: no such file", file=sys.stderr)
        return CANNOT_START
    empty = [run_timed(["-c", "pass"]) for _ in range(chosen.repetitions)]
    print(f"python alone        {median(empty)}")
    seconds: list[float] = []
    for file in chosen.files:
        found = [run_timed(command(file, chosen.with_)) for _ in range(chosen.repetitions)]
        seconds.append(statistics.median(found))
        print(f"{file.name:40} {median(found)}", flush=True)
    worst = max(seconds)
    files = "1 file" if len(seconds) == 1 else f"{len(seconds)} files"
    print(f"{files}, {sum(seconds):.2f} s; slowest {worst:.3f} s (goal {GOAL})")
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = ArgumentParser(prog="vivace bench check", description=__doc__)
    parser.add_argument("files", nargs="+", type=named_path, metavar="FILE")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--with",
        dest="with_",
        default="",
        metavar="FLAGS",
        help='further flags of `vivace check`, as "--hardware a3 --cards 8"',
    )
    return parser.parse_args(argv)


def command(file: Path, flags: str) -> list[str]:
    """As users start it: the command of the environment, `-m vivace` where it is not installed."""
    installed = Path(sys.executable).with_name("vivace")
    vivace = [str(installed)] if installed.is_file() else ["-m", "vivace"]
    return [*vivace, "check", str(file), *flags.split()]


def run_timed(words: Sequence[str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *words], capture_output=True, check=False)
    return time.perf_counter() - began


def median(seconds: Sequence[float]) -> str:
    low, high = min(seconds) * 1e3, max(seconds) * 1e3
    return f"{statistics.median(seconds) * 1e3:.0f} ms ({low:.0f} to {high:.0f})"
