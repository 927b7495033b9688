"""`vivace bench scheduler`: what deciding costs, without any model.

Measures the wall time of `Scheduler.plan` and `Scheduler.commit` in steady decoding: every row
streams one token per step, so every step makes one delta per row, takes pages at page boundaries
and books metrics. The executor is a null one that answers at once (its time is not counted); no
message is encoded or sent. Requests start with staggered lengths, so page boundaries are spread
over the steps as in real traffic.

With `--drafts` every row has so many behind its token, of which half are right on average, or as
many as `--accepted` says with all drafts in each step; without it widths follow from costs as on a
device on which they pay. Rounds with drafts and without are measured in turn then, so that their
ratio is that of one machine at one time.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from vivace.arguments import ArgumentParser, number_between
from vivace.engine.scheduler import Scheduler
from vivace.engine.settings import EngineSettings
from vivace.protocol.messages import Capacity, Request, SamplingParams
from vivace.protocol.metrics import StepCosts
from vivace.protocol.step import StepPlan, StepResult, growth

_PROMPT = 64
_VOCABULARY = 32000
_TOKEN = 7
MOST_DRAFTS = 63
ROUNDS = 5
"""with drafts, and as many without"""
STEP_COSTS = StepCosts(tokens=[1, 8192], seconds=[1e-2, 1.1e-2])
"""of a device on which drafts pay"""

Row = dict[str, float]


class NullExecutor:
    """Every span draws the same token where it reaches the end; of its drafts `accepted` are right,
    None: a number that goes round. Steps take the time that `STEP_COSTS` says, of `now` only."""

    def __init__(self, accepted: int | None = None) -> None:
        self.now = 0.0
        """seconds"""
        self._accepted = accepted
        self._missing: dict[int, int] = {}
        self._turn = 0

    def run(self, plan: StepPlan) -> StepResult:
        self.now += float(np.interp(sum(plan.counts), STEP_COSTS.tokens, STEP_COSTS.seconds))
        missing = self._missing
        for join in plan.joins:
            missing[join.row] = len(join.tokens) - join.cached
        tokens: list[list[int]] = []
        advanced: list[int] = []
        for row, count in zip(plan.rows, plan.counts, strict=True):
            left = missing[row] - count
            if left > 0:
                tokens.append([])
                missing[row] = left
                advanced.append(count)
                continue
            self._turn += 1
            right = (
                self._turn % (1 - left) if self._accepted is None else min(self._accepted, -left)
            )
            tokens.append([_TOKEN] * (1 + right))
            advanced.append(count + left + right)
            missing[row] = 1
        return StepResult(number=plan.number, advanced=advanced, tokens=tokens)


def run(
    rows: Sequence[int] = (16, 64, 256, 1024),
    steps: int = 300,
    *,
    page_size: int = 16,
    depth: int = 1,
    drafts: int = 0,
    accepted: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Row]:
    """One result per number of rows; times are milliseconds (see the module for what is in them).

    `accepted`: of the drafts of a row in each step; None: half on average.
    Keys: rows, steps, page_size, depth, drafts, plan_median_ms, plan_p99_ms, commit_median_ms,
    commit_p99_ms, total_median_ms, total_p99_ms, tokens_per_second; with drafts ratio, of the total
    to that without.
    """
    shapes = (Shape(count, steps, page_size, depth, drafts, accepted) for count in rows)
    measure = _measure_in_turn if drafts else _measure
    return [measure(shape, clock) for shape in shapes]


@dataclass(frozen=True, slots=True)
class Shape:
    rows: int
    steps: int
    page_size: int
    depth: int
    drafts: int
    accepted: int | None


def _measure_in_turn(shape: Shape, clock: Callable[[], float]) -> Row:
    """The round with drafts whose total is the median, and `ratio` to the median of the others."""
    plain = replace(shape, drafts=0, accepted=None)
    pairs = [(_measure(plain, clock), _measure(shape, clock)) for _ in range(ROUNDS)]
    without, drafted = (sorted(rows, key=_total) for rows in zip(*pairs, strict=True))
    median = drafted[ROUNDS // 2]
    return {**median, "ratio": _total(median) / _total(without[ROUNDS // 2])}


def _total(row: Row) -> float:
    return row["total_median_ms"]


def _measure(shape: Shape, clock: Callable[[], float]) -> Row:
    rows, steps = shape.rows, shape.steps
    executor = NullExecutor(shape.accepted)
    scheduler = _loaded_scheduler(shape, lambda: executor.now)
    _until_all_decode(scheduler, executor, rows)
    plans: list[float] = []
    commits: list[float] = []
    tokens = 0
    for _ in range(steps):
        start = clock()
        plan = scheduler.plan(True)
        planned = clock()
        assert plan is not None and len(plan.rows) == rows
        result = executor.run(plan)
        landed = clock()
        scheduler.commit(plan, result)
        deltas = scheduler.take_deltas()
        commits.append(clock() - landed)
        tokens += sum(map(len, result.tokens))
        plans.append(planned - start)
        assert len(deltas) == rows
    return _summary(shape, plans, commits, tokens)


def _loaded_scheduler(shape: Shape, now: Callable[[], float]) -> Scheduler:
    rows, page_size = shape.rows, shape.page_size
    stagger = max(page_size, growth(shape.drafts))
    longest = _PROMPT + stagger + (1 + shape.drafts) * (shape.steps + rows) + 64
    capacity = Capacity(
        pages=(longest // page_size + 2) * rows,
        page_size=page_size,
        rows=rows,
        context=longest,
        vocabulary=_VOCABULARY,
        step_costs=STEP_COSTS if shape.drafts else StepCosts(),
    )
    settings = EngineSettings(
        rows=rows,
        depth=shape.depth,
        chunk=8192,
        initial_ratio=0.0,
        num_speculative_tokens=shape.drafts,
        fixed_draft_width=shape.accepted is not None,
    )
    scheduler = Scheduler(settings, capacity, now)
    for index in range(rows):
        length = _PROMPT + index % stagger
        scheduler.add(
            Request(
                key=index,
                rid=str(index),
                tokens=[(index * 31 + position) % _VOCABULARY for position in range(length)],
                sampling=SamplingParams(max_new_tokens=longest, ignore_eos=True),
                stream=True,
            )
        )
    return scheduler


def _until_all_decode(scheduler: Scheduler, executor: NullExecutor, rows: int) -> None:
    while True:
        plan = scheduler.plan(True)
        assert plan is not None
        scheduler.commit(plan, executor.run(plan))
        scheduler.take_deltas()
        if len(plan.rows) == rows and not plan.joins:
            return


def _summary(shape: Shape, plans: list[float], commits: list[float], tokens: int) -> Row:
    totals = [plan + commit for plan, commit in zip(plans, commits, strict=True)]
    row: Row = {name: float(value) for name, value in asdict(shape).items() if value is not None}
    for name, seconds in (("plan", plans), ("commit", commits), ("total", totals)):
        ordered = sorted(seconds)
        row[f"{name}_median_ms"] = statistics.median(ordered) * 1e3
        row[f"{name}_p99_ms"] = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] * 1e3
    row["tokens_per_second"] = tokens / shape.steps / statistics.median(totals)
    return row


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(
        prog="vivace bench scheduler",
        description="Time plan and commit of the scheduler in steady decoding, without a model.",
    )
    parser.add_argument(
        "--rows", type=number_between(1, 1 << 16), nargs="+", default=[16, 64, 256, 1024]
    )
    parser.add_argument(
        "--steps", type=number_between(1, 1 << 16), default=300, help="measured steps per size"
    )
    parser.add_argument("--page-size", type=number_between(1, 1 << 16), default=16)
    parser.add_argument(
        "--drafts",
        type=number_between(0, MOST_DRAFTS),
        default=0,
        help="behind the token of each row",
    )
    parser.add_argument(
        "--accepted",
        type=number_between(0, MOST_DRAFTS),
        help="drafts of each row that are right, in steps with all; default: half",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    options = parser.parse_args(argv)
    if options.accepted is not None and options.accepted > options.drafts:
        parser.error(f"--accepted {options.accepted} is above --drafts {options.drafts}")
    sizes = {"page_size": options.page_size, "drafts": options.drafts}
    results = run(options.rows, options.steps, **sizes, accepted=options.accepted)
    write = sys.stdout.write
    if options.json:
        for row in results:
            write(json.dumps(row) + "\n")
        return 0
    write("Scheduler only: wall time of plan and commit per decode step, ms (null executor,\n")
    write(f"every row streams; page size {options.page_size}, {options.steps} steps each)\n\n")
    against = "   of the total without" if options.drafts else ""
    write("   rows     plan median/p99   commit median/p99    total median/p99     tokens/s")
    write(f"{against}\n")
    for row in results:
        cells = "".join(
            f"   {row[f'{name}_median_ms']:8.3f} {row[f'{name}_p99_ms']:8.3f}"
            for name in ("plan", "commit", "total")
        )
        ratio = f"{row['ratio']:23.2f}" if options.drafts else ""
        write(f"{int(row['rows']):7d}{cells} {row['tokens_per_second']:12,.0f}{ratio}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
