"""`python tools/fuzz_grammars.py --count 20000`: random constraints against what compiles them.

Schemas, expressions, grammars and structural tags of tests/grammar/random_constraints.py go through
the engine's compiler, with the embedded model's vocabulary; what compiles is walked along, a random
token that may follow after the other. With `--of tools` these are the constraints of random tools
(tests/grammar/random_tools.py) with a random parser, which then reads what was walked along; with
`--of answers` random answers are read, whole and in pieces. Beside it a canary, a thread that does
what an engine does with a stream (accept, mask, pause), must go on as if it were alone. All that
happens in a child, so that a crash or something that never comes back is found, told, and passed
by. Prints counts, the slowest, the canary's gaps and the memory on the way; exits with 1 for a
crash, a hang (more than 2 s of processors), an answer that is read differently in pieces, or a
canary whose tokens differ.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import msgspec
import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "grammar"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "parsers"))

from random_constraints import random_constraint
from random_tools import random_answer, random_cuts, random_tools
from transcripts import TOOLS, Parsed, gathered

from vivace.frontend.errors import BadRequest
from vivace.frontend.tokenizer import load_encoder
from vivace.grammar.backend import GrammarError, GrammarMatcher
from vivace.grammar.compiler import GrammarCompiler
from vivace.grammar.masks import mask_words
from vivace.launch.grammars import grammar_compiler
from vivace.offline.build import resolve_arguments
from vivace.parsers.names import REASONING_PARSERS, TOOL_CALL_PARSERS
from vivace.parsers.parser import AnswerParser, ParseOptions, ParserFormat, answer_format
from vivace.protocol.constraints import JSON_SCHEMA, Constraint
from vivace.requests.tool_constraints import ToolCalls
from vivace.requests.tools import ToolChoice, ToolDefinition, offered_tools

HANG = 2.0
"""seconds of processors"""
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


Slow = tuple[float, float, int, str]
"""seconds by the clock, of processors, whose number, doing what"""


class Stopwatch:
    """Of this process and others: on a busy machine a clock says little."""

    def __init__(self, others: Sequence[str] = ()) -> None:
        """`others`: pids"""
        self._others = others
        self._begun, self._spent = time.perf_counter(), self._processors()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self._begun, self._processors() - self._spent

    def _processors(self) -> float:
        if not self._others:
            return time.process_time()
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = time.process_time() + ended.ru_utime + ended.ru_stime
        return seconds + sum(map(spent_by, self._others))


def children() -> list[str]:
    """Who tries constraints."""
    if any(not Path(f"/proc/{pid}").exists() for pid in CHILDREN) or not CHILDREN:
        parent = str(os.getpid())
        CHILDREN[:] = [
            at.name for at in Path("/proc").glob("[0-9]*") if fields(at.name)[1] == parent
        ]
    return CHILDREN


def fields(pid: str) -> list[str]:
    """Of /proc/PID/stat, behind the name; of one that has ended zeros."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 20


def spent_by(pid: str) -> float:
    return sum(map(int, fields(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


CHILDREN: list[str] = []
"""pids, the last time somebody looked"""


@dataclass
class Findings:
    """What a child tells at its end."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    slowest: list[Slow] = field(default_factory=list[Slow])
    idle: list[float] = field(default_factory=list[float])
    beside: list[float] = field(default_factory=list[float])
    differs: bool = False

    def note(self, watch: Stopwatch, number: int, what: str) -> None:
        self.slowest = sorted([*self.slowest, (*watch.read(), number, what)], reverse=True)[:5]

    def add(self, other: Findings) -> None:
        self.outcomes += other.outcomes
        self.slowest = sorted(self.slowest + other.slowest, reverse=True)[:5]
        self.idle += other.idle
        self.beside += other.beside
        self.differs |= other.differs


@dataclass(frozen=True)
class Bench:
    """What everything is tried with."""

    compiler: GrammarCompiler
    words: int
    token_bytes: Callable[[int], bytes]
    findings: Findings

    def compile(self, given: Constraint, number: int) -> GrammarMatcher | str:
        """The matcher, or what came of it."""
        begun = Stopwatch(children())
        try:
            return self.compiler.matcher(given)
        except GrammarError:
            return "refused"
        except Exception as error:
            return f"failed ({type(error).__name__})"
        finally:
            self.findings.note(begun, number, "to compile")

    def walk(self, matcher: GrammarMatcher, chance: Random, number: int) -> tuple[str, bytes]:
        """(what came of it, the text of the tokens)"""
        mask, text = np.zeros(self.words, np.int32), b""
        for _ in range(WALK):
            begun = Stopwatch()
            matcher.fill(mask)
            bits = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            if not len(bits):
                return ("stuck at a limit" if matcher.error else "no token may follow"), text
            token = int(bits[chance.randrange(len(bits))])
            if matcher.accept([token]) != 1:
                matcher.fill(mask)  # some limits are told of then
                return ("stuck at a limit" if matcher.error else "refuses what it allowed"), text
            self.findings.note(begun, number, "for a mask")
            text += self.token_bytes(token)
            if matcher.ended:
                return "ended", text
        return "walked", text


def try_constraint(bench: Bench, chance: Random, number: int) -> tuple[str, str]:
    given = random_constraint(chance)
    found = bench.compile(given, number)
    return given.kind, found if isinstance(found, str) else bench.walk(found, chance, number)[0]


class DefinedTools(msgspec.Struct):
    tools: list[ToolDefinition]
    tool_choice: str | ToolChoice | None = None


def try_tools(bench: Bench, chance: Random, number: int) -> tuple[str, str]:
    body, name = random_tools(chance), chance.choice([None, *TOOL_CALL_PARSERS])
    parallel, kind = chance.random() < 0.7, name or "no parser"
    try:
        offered = offered_tools(msgspec.convert(body, DefinedTools))
        calls = ToolCalls(offered=offered, form=answer_format(name, None), parallel=parallel)
        syntax = calls.syntax(None)
    except (msgspec.ValidationError, BadRequest):
        return kind, "refused"
    outcome, text = "free", random_answer(chance)
    if syntax.constraint is not None:
        found = bench.compile(syntax.constraint, number)
        if isinstance(found, str):
            return kind, found
        outcome, walked = bench.walk(found, chance, number)
        text = walked.decode(errors="ignore")
    options = ParseOptions(
        tools=offered.schemas, inputs=offered.inputs, most_calls=None if parallel else 1
    )
    return kind, read_alike(bench, chance, number, syntax.form, options, text) or outcome


def try_answer(bench: Bench, chance: Random, number: int) -> tuple[str, str]:
    name = chance.choice([None, *TOOL_CALL_PARSERS])
    form = answer_format(name, chance.choice([None, *REASONING_PARSERS]))
    options = ParseOptions(
        tools=TOOLS if chance.random() < 0.9 else {},
        inputs=chance.sample(list(TOOLS), 1) if chance.random() < 0.3 else (),
        separate_reasoning=chance.random() < 0.9,
        stream_reasoning=chance.random() < 0.8,
        inside=chance.random() < 0.2,
        forwarded=chance.random() < 0.2,
        most_calls=chance.choice([None, None, 1]),
    )
    wrong = read_alike(bench, chance, number, form, options, random_answer(chance))
    return name or "no parser", wrong or "read alike"


def read_alike(
    bench: Bench, chance: Random, number: int, form: ParserFormat, options: ParseOptions, text: str
) -> str:
    """What is wrong with how an answer is read, whole and in pieces."""
    begun = Stopwatch()
    try:
        whole = read_answer(form, options, [text])
        cut = [random_cuts(chance, text) for _ in range(3)]
        others = [read_answer(form, options, pieces) for pieces in (list(text), *cut)]
    except Exception as error:
        return f"failed ({type(error).__name__})"
    finally:
        bench.findings.note(begun, number, "to read five times")
    if any(other != whole for other in others):
        return "failed (cuts differ)"
    unknown = {name for name, _ in whole.calls} - set(options.tools)
    return "failed (unknown function)" if unknown and not options.forwarded else ""


def read_answer(form: ParserFormat, options: ParseOptions, pieces: list[str]) -> Parsed:
    parser = AnswerParser(form, options)
    events = [event for piece in pieces for event in parser.push(piece)]
    return gathered(events + parser.finish())


MAKERS = {"constraints": random_constraint, "tools": random_tools, "answers": random_answer}
TRIALS = {"constraints": try_constraint, "tools": try_tools, "answers": try_answer}


def torture(kind: str, backend: str, seed: int, numbers: range, told: Connection) -> None:
    """In the child."""
    config = resolve_arguments({"grammar_backend": backend})
    compiler = grammar_compiler(config)
    assert compiler is not None
    words = mask_words(config.facts.vocabulary)
    canary = Canary(compiler.matcher(Constraint(kind=JSON_SCHEMA, text=CANARY)), words)
    findings = Findings(idle=canary.idle(5.0))
    bench = Bench(compiler, words, load_encoder(config.source).token_bytes, findings)
    canary.start()
    for number in numbers:
        told.send(number)
        outcome = TRIALS[kind](bench, Random(f"{seed}/{number}"), number)
        findings.outcomes[outcome] += 1
        if outcome[1].startswith(WRONG):
            print(f"number {number}: {outcome}", flush=True)
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


def watch(kind: str, backend: str, seed: int, numbers: range) -> tuple[Findings, int, str]:
    """(what came of a child, the number of the last constraint, why it ended too early)"""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=torture, args=(kind, backend, seed, numbers, there))
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
    parser.add_argument("--of", choices=TRIALS, default="constraints")
    parser.add_argument("--show", type=int, help="print what this number is made of, and end")
    args = parser.parse_args()
    if args.show is not None:
        print(MAKERS[args.of](Random(f"{args.seed}/{args.show}")))
        return 0
    findings, lost = Findings(), list[str]()
    first, end = args.first, args.first + args.count
    while first < end:
        found, last, why = watch(args.of, args.backend, args.seed, range(first, end))
        findings.add(found)
        if why:
            lost.append(f"number {last} {why}")
        first = last + 1
    return report(findings, lost)


def report(findings: Findings, lost: list[str]) -> int:
    for (kind, outcome), count in sorted(findings.outcomes.items()):
        print(f"{kind:<15} {outcome:<25} {count}")
    for seconds, spent, number, what in findings.slowest:
        print(f"{seconds:.3f} s ({spent:.3f} s of processors) {what}: number {number}")
    for name, gaps in (("alone", findings.idle), ("beside", findings.beside)):
        if len(gaps) > 1:
            ms = [1e3 * x for x in (statistics.median(gaps), quantile(gaps), max(gaps))]
            print(f"canary {name}: median {ms[0]:.1f} ms, p99 {ms[1]:.1f} ms, most {ms[2]:.1f} ms")
    wrong = [outcome for outcome in sums(findings.outcomes) if outcome.startswith(WRONG)]
    slow = [f"{at} took {spent:.1f} s" for _, spent, at, _ in findings.slowest if spent > HANG]
    for what in (*lost, *wrong, *slow, *(["the canary's tokens differ"] * findings.differs)):
        print("WRONG:", what)
    return int(bool(lost or wrong or slow or findings.differs))


WRONG = ("failed", "refuses", "no token")


def quantile(gaps: list[float]) -> float:
    return statistics.quantiles(gaps, n=100)[98]


if __name__ == "__main__":
    sys.exit(main())
