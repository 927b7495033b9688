"""What steps take on this device, measured with plans like any before the first request."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from vivace.models.loading import ReportProgress
from vivace.protocol.messages import Capacity, SamplingParams
from vivace.protocol.metrics import StepCosts
from vivace.protocol.step import EngineShare, Join, StepPlan, StepResult

MOST_TOKENS = 128
"""of the longest step that is measured; longer ones take as much longer as they are"""
REPEATS = 3
"""of which the fastest counts: others may have met with something else that ran"""


class MeasuredStep(Protocol):
    def result(self) -> StepResult: ...


class TimedWorker(Protocol):
    """`worker.Worker` is one."""

    capacity: Capacity

    def run(self, plan: StepPlan) -> MeasuredStep: ...

    def draft(self, rows: int) -> None: ...


W = TypeVar("W", bound=TimedWorker)


def time_steps(worker: W, engines: int, report: ReportProgress) -> W:
    """The worker, whose capacity tells what steps take. `engines`: as in `measure_steps`."""
    costs = measure_steps(worker, engines, lambda done: report("Timing steps", done))
    worker.capacity = msgspec.structs.replace(worker.capacity, step_costs=costs)
    return worker


def measure_steps(worker: TimedWorker, engines: int, report: Callable[[float], None]) -> StepCosts:
    """Steps of 1, 2, 4 ... tokens, one for each of as many rows; which are empty again behind it.
    `engines`: those that take every step together, all of which measure at once."""
    sizes, seconds, drafts = find_sizes(worker.capacity), list[float](), list[float]()
    for done, size in enumerate(sizes):
        report(done / len(sizes))
        times = [
            run(
                worker,
                StepPlan(number=-1, rows=list(range(size)), counts=[1] * size, joins=joins),
                engines,
            )
            for joins in (new_rows(worker.capacity, size), *[[]] * REPEATS)
        ]
        drafts.append(min(time_drafts(worker, size) for _ in range(REPEATS)))
        worker.run(StepPlan(number=-1, leaves=list(range(size)))).result()
        seconds.append(min(times[1:]))
    return StepCosts(tokens=sizes, seconds=seconds, draft_seconds=drafts)


def find_sizes(capacity: Capacity) -> list[int]:
    """Powers of two for which there are rows, and pages in every group."""
    pages = min([capacity.pages, *(group.pages for group in capacity.others if not group.state)])
    most = min(MOST_TOKENS, capacity.rows, pages // row_pages(capacity))
    return [1 << power for power in range(most.bit_length())]


def row_pages(capacity: Capacity) -> int:
    """That a row needs for a first token, those of the steps behind it, and a draft."""
    return -(-(2 + REPEATS) // capacity.page_size)


def new_rows(capacity: Capacity, count: int) -> list[Join]:
    each = row_pages(capacity)
    pages = [list(range(row * each, (row + 1) * each)) for row in range(count)]
    return [
        Join(
            row=row,
            key=row,
            tokens=[0],
            prompt=1,
            cached=0,
            pages=pages[row],
            others=[[] if group.state else pages[row] for group in capacity.others],
            sampling=SamplingParams(max_new_tokens=capacity.context, temperature=0.0),
        )
        for row in range(count)
    ]


def run(worker: TimedWorker, plan: StepPlan, engines: int) -> float:
    """Seconds that a step takes."""
    if engines > 1:
        plan = msgspec.structs.replace(plan, shares=[EngineShare(len(plan.rows))] * engines)
    started = time.perf_counter()
    worker.run(plan).result()
    return time.perf_counter() - started


def time_drafts(worker: TimedWorker, rows: int) -> float:
    """Seconds that a draft for each of the first rows takes."""
    started = time.perf_counter()
    worker.draft(rows)
    return time.perf_counter() - started
