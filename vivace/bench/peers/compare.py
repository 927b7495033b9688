"""Runs the workloads on two or more servers, one after the other, again and again.

All servers stay alive and only one is loaded at a time. Starting them anew for every run would
measure cold caches and cost a minute per vLLM start; an idle server costs memory only, and where
one does not sleep (spinning threads) its CPU time counts as taken by others, so the run is
repeated and, if it stays so, marked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from vivace.bench.backends import BACKENDS
from vivace.bench.environment import cpu_reading, foreign_share, memory_peak
from vivace.bench.http_backends import RequestSettings
from vivace.bench.metrics import calculate_metrics
from vivace.bench.peers.peer import RunningPeer
from vivace.bench.peers.workloads import ComparedWorkload, compared_figures
from vivace.bench.runner import BenchLoad, Outcome, measure_load, with_loop
from vivace.bench.transport import Record
from vivace.bench.workload import BenchRequest

WARMUP_REQUESTS = 8
WARMUP_OUTPUT = 16
PAUSE = 0.5
"""Seconds between two runs, so that one's last work does not fall into the next."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How often, and what counts as disturbed."""

    repetitions: int = 3
    max_foreign: float = 0.06
    """Share of the machine that others may take during a run."""
    retries: int = 4
    """Disturbed runs of one server and workload that are thrown away at most."""
    seed: str = "0"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One workload, once, on one server."""

    server: str
    workload: str
    repetition: int
    metrics: dict[str, float]
    foreign_cpu: float
    """Share of the machine, 0 to 1, taken by processes that are neither server nor client."""
    client_cpu: float
    """CPU seconds of the client per second."""
    disturbed: bool
    faults: list[str] = field(default_factory=list)
    """Failed requests and wrong token counts."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Every run that counts, and those that were thrown away."""

    runs: list[Run]
    thrown_away: list[Run]
    memory: dict[str, int]
    """Peak resident bytes by server, summed over its processes."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    servers: Sequence[RunningPeer],
    workloads: Sequence[ComparedWorkload],
    ids: Sequence[int],
    rules: Rules,
    say: Callable[[str], None] = print,
) -> Comparison:
    """A B A B ...: for each workload and repetition every server gets the same prompts in turn."""
    kept: list[Run] = []
    thrown: list[Run] = []
    for workload in workloads:
        for server in servers:
            warm_up(server, workload, ids, rules)
        for repetition in range(rules.repetitions):
            for server in servers:
                run, disturbed = run_undisturbed(server, workload, ids, rules, repetition, say)
                kept.append(run)
                thrown += disturbed
    memory = {server.peer.name: memory_peak({server.session}) for server in servers}
    return Comparison(runs=kept, thrown_away=thrown, memory=memory)


def warm_up(
    server: RunningPeer, workload: ComparedWorkload, ids: Sequence[int], rules: Rules
) -> None:
    """A part of the workload with other prompts and short answers."""
    queries = workload.queries(ids, f"{rules.seed}/warm-up")[:WARMUP_REQUESTS]
    short = [replace(query, output_len=min(query.output_len, WARMUP_OUTPUT)) for query in queries]
    with_loop(measure_load(build_load(server, workload), short))


def run_undisturbed(
    server: RunningPeer,
    workload: ComparedWorkload,
    ids: Sequence[int],
    rules: Rules,
    repetition: int,
    say: Callable[[str], None],
) -> tuple[Run, list[Run]]:
    """A run in which others took little CPU, and the runs before it that were not so.

    After `retries` disturbed runs the quietest of them counts, marked as disturbed.
    """
    thrown: list[Run] = []
    for attempt in range(rules.retries + 1):
        time.sleep(PAUSE)
        seed = f"{rules.seed}/{repetition}/{attempt}"
        run = one_run(server, workload, workload.queries(ids, seed), rules, repetition)
        say(format_run(run))
        if not run.disturbed:
            return run, thrown
        thrown.append(run)
    quietest = min(thrown, key=lambda run: run.foreign_cpu)
    thrown.remove(quietest)
    return quietest, thrown


def one_run(
    server: RunningPeer,
    workload: ComparedWorkload,
    queries: Sequence[BenchRequest],
    rules: Rules,
    repetition: int,
) -> Run:
    before = cpu_reading({server.session}, time.monotonic())
    outcome = with_loop(measure_load(build_load(server, workload), queries))
    after = cpu_reading({server.session}, time.monotonic())
    foreign = foreign_share(before, after)
    return Run(
        server=server.peer.name,
        workload=workload.name,
        repetition=repetition,
        metrics=compared_figures(workload, calculate_metrics(outcome.records, outcome.duration)),
        foreign_cpu=foreign,
        client_cpu=outcome.client_cpu / max(outcome.duration, 1e-9),
        disturbed=foreign > rules.max_foreign,
        faults=find_faults(outcome),
    )


def build_load(server: RunningPeer, workload: ComparedWorkload) -> BenchLoad:
    return BenchLoad(
        backend=BACKENDS[server.peer.backend],
        base_url=server.base_url,
        settings=RequestSettings(model=server.peer.model),
        concurrency=workload.concurrency,
        warmup=0,
        connection_per_request=server.peer.connection_per_request,
    )


def find_faults(outcome: Outcome) -> list[str]:
    """What a server did wrong: failed requests, answers or prompts of another length."""
    return [text for record in outcome.records if (text := find_fault(record))]


def find_fault(record: Record) -> str:
    if not record.success:
        return f"request {record.query}: {record.error}"
    if record.counted_by_server and record.output_len != record.requested:
        return f"request {record.query}: {record.output_len} tokens, asked {record.requested}"
    if record.prompt_tokens not in (None, record.input_len):
        return (
            f"request {record.query}: prompt of {record.input_len} read as {record.prompt_tokens}"
        )
    return "" if record.counted_by_server else f"request {record.query}: no token count came"


def format_run(run: Run) -> str:
    values = ", ".join(f"{name} {value:.4g}" for name, value in run.metrics.items())
    notes = f"others {run.foreign_cpu:.0%}, client {run.client_cpu:.0%} of a core"
    again = "; DISTURBED" if run.disturbed else ""
    wrong = f"; {len(run.faults)} FAULTS, first: {run.faults[0]}" if run.faults else ""
    head = f"{run.workload}[{run.repetition}] {run.server}"
    return f"{head}: {values} ({notes}{again}{wrong})"
