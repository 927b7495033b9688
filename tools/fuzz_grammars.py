"""`python tools/fuzz_grammars.py --count 20000`: random constraints against what compiles them.

Schemas, expressions, grammars and structural tags of tests/grammar/random_constraints.py go through
the engine's compiler, with the embedded model's vocabulary; what compiles is walked along, a random
token that may follow after the other. Beside it a canary, a thread that does what an engine does
with a stream (accept, mask, pause), must go on as if it were alone. All that happens in a child, so
that a crash or something that never comes back is found, told, and passed by. Prints counts, the
slowest, the canary's gaps and the memory on the way; exits with 1 for a crash, a hang or a canary
whose tokens differ.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "grammar"))

from random_constraints import random_constraint

from vivace.grammar.backend import GrammarError, GrammarMatcher
from vivace.grammar.compiler import GrammarCompiler
from vivace.grammar.masks import mask_words
from vivace.launch.grammars import grammar_compiler
from vivace.offline.build import resolve_arguments
from vivace.protocol.constraints import JSON_SCHEMA, Constraint

HANG = 2.0
"""seconds"""
PATIENCE = 30.0
"""seconds without news, and the child is ended"""
WALK = 30
"""tokens"""
PAUSE = 0.002
"""seconds between tokens of the canary"""
REPORT = 1000
CANARY = '{"type":"array","items":{"type":"string","maxLength":9},"minItems":12,"maxItems":12}'


class Canary:
    """A stream with a grammar. Its tokens are always the same."""

    def __init__(self, matcher: GrammarMatcher, words: int) -> None:
        self._start, self._words = matcher, words
        self._stopped = threading.Event()
        self.expected = self._run(None)
        self.gaps: list[float] = []
        self.differs = False
        self._thread = threading.Thread(target=self._sing, daemon=True)

    def _run(self, gaps: list[float] | None) -> list[int]:
        matcher, mask = self._start.copy(), np.zeros(self._words, np.int32)
        found: list[int] = []
        while not matcher.ended and len(found) < 200:
            begun = time.perf_counter()
            matcher.fill(mask)
            bits = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            found.append(int(bits[len(found) * 7919 % len(bits)]))
            matcher.accept(found[-1:])
            if gaps is not None:
                time.sleep(PAUSE)
                gaps.append(time.perf_counter() - begun)
        return found

    def _sing(self) -> None:
        while not self._stopped.is_set():
            self.differs |= self._run(self.gaps) != self.expected

    def idle(self, seconds: float) -> list[float]:
        gaps: list[float] = []
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self._run(gaps)
        return gaps

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


@dataclass
class Findings:
    """What a child tells at its end."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    slowest: list[tuple[float, int, str]] = field(default_factory=list[tuple[float, int, str]])
    idle: list[float] = field(default_factory=list[float])
    beside: list[float] = field(default_factory=list[float])
    differs: bool = False

    def note(self, seconds: float, number: int, what: str) -> None:
        self.slowest = sorted([*self.slowest, (seconds, number, what)], reverse=True)[:5]

    def add(self, other: Findings) -> None:
        self.outcomes += other.outcomes
        self.slowest = sorted(self.slowest + other.slowest, reverse=True)[:5]
        self.idle += other.idle
        self.beside += other.beside
        self.differs |= other.differs


def constraint(seed: int, number: int) -> tuple[Constraint, Random]:
    chance = Random(f"{seed}/{number}")
    return random_constraint(chance), chance


def try_one(
    compiler: GrammarCompiler, seed: int, number: int, words: int, findings: Findings
) -> None:
    """Compile and walk."""
    given, chance = constraint(seed, number)
    begun = time.perf_counter()
    try:
        matcher = compiler.matcher(given)
    except GrammarError:
        outcome = "refused"
    except Exception as error:
        outcome = f"failed ({type(error).__name__})"
    else:
        outcome = ""
    findings.note(time.perf_counter() - begun, number, "to compile")
    findings.outcomes[given.kind, outcome or walk(matcher, chance, words, findings, number)] += 1


def walk(
    matcher: GrammarMatcher, chance: Random, words: int, findings: Findings, number: int
) -> str:
    mask = np.zeros(words, np.int32)
    for _ in range(WALK):
        begun = time.perf_counter()
        matcher.fill(mask)
        bits = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if not len(bits):
            return "stuck at a limit" if matcher.error else "no token may follow"
        if matcher.accept([int(bits[chance.randrange(len(bits))])]) != 1:
            return "stuck at a limit" if matcher.error else "refuses what it allowed"
        findings.note(time.perf_counter() - begun, number, "for a mask")
        if matcher.ended:
            return "ended"
    return "walked"


def torture(backend: str, seed: int, numbers: range, told: Connection) -> None:
    """In the child."""
    config = resolve_arguments({"grammar_backend": backend})
    compiler = grammar_compiler(config)
    assert compiler is not None
    words = mask_words(config.facts.vocabulary)
    canary = Canary(compiler.matcher(Constraint(kind=JSON_SCHEMA, text=CANARY)), words)
    findings = Findings(idle=canary.idle(5.0))
    canary.start()
    for number in numbers:
        told.send(number)
        try_one(compiler, seed, number, words, findings)
        if number % REPORT == REPORT - 1:
            print(f"{number + 1}: {resident()} MiB, {dict(sums(findings.outcomes))}", flush=True)
    canary.stop()
    findings.beside, findings.differs = canary.gaps, canary.differs
    told.send(findings)


def resident() -> int:
    """MiB of this process"""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) >> 10


def sums(outcomes: Counter[tuple[str, str]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for (_, outcome), count in outcomes.items():
        found[outcome] += count
    return found


def watch(backend: str, seed: int, numbers: range) -> tuple[Findings, int, str]:
    """(what came of a child, the number of the last constraint, why it ended too early)"""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=torture, args=(backend, seed, numbers, there))
    child.start()
    there.close()
    last = numbers.start - 1
    try:
        while here.poll(PATIENCE + HANG if last >= numbers.start else 120.0):
            news = here.recv()
            if isinstance(news, Findings):
                child.join()
                return news, numbers.stop - 1, ""
            last = news
        return Findings(), last, "hung"
    except EOFError:
        child.join()
        return Findings(), last, f"crashed ({child.exitcode})"
    finally:
        child.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", choices=["llguidance", "xgrammar"], default="llguidance")
    parser.add_argument("--show", type=int, help="print the constraint of this number, and end")
    args = parser.parse_args()
    if args.show is not None:
        given, _ = constraint(args.seed, args.show)
        print(given.kind, given.text)
        return 0
    findings, lost = Findings(), list[str]()
    first, end = args.first, args.first + args.count
    while first < end:
        found, last, why = watch(args.backend, args.seed, range(first, end))
        findings.add(found)
        if why:
            lost.append(f"number {last} {why}")
        first = last + 1
    return report(findings, lost)


def report(findings: Findings, lost: list[str]) -> int:
    for (kind, outcome), count in sorted(findings.outcomes.items()):
        print(f"{kind:<15} {outcome:<25} {count}")
    for seconds, number, what in findings.slowest:
        print(f"{seconds:.3f} s {what}: number {number}")
    for name, gaps in (("alone", findings.idle), ("beside", findings.beside)):
        if len(gaps) > 1:
            ms = [1e3 * x for x in (statistics.median(gaps), quantile(gaps), max(gaps))]
            print(f"canary {name}: median {ms[0]:.1f} ms, p99 {ms[1]:.1f} ms, most {ms[2]:.1f} ms")
    wrong = [outcome for outcome in sums(findings.outcomes) if outcome.startswith(WRONG)]
    slow = [f"{number} took {s:.1f} s" for s, number, _ in findings.slowest if s > HANG]
    for what in (*lost, *wrong, *slow, *(["the canary's tokens differ"] * findings.differs)):
        print("WRONG:", what)
    return int(bool(lost or wrong or slow or findings.differs))


WRONG = ("failed", "refuses", "no token")


def quantile(gaps: list[float]) -> float:
    return statistics.quantiles(gaps, n=100)[98]


if __name__ == "__main__":
    sys.exit(main())
