"""When requests are sent: all at once, by a Poisson process, or at recorded times."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from vivace.bench.errors import BenchError
from vivace.bench.workload import BenchRequest


def arrival_times(
    queries: Sequence[BenchRequest], rate: float, trace: bool, seed: int
) -> list[float]:
    """Seconds after the start of each query, in order.

    Poisson arrivals have exponential gaps of mean 1/rate; the first request comes at 0. The times
    are fixed beforehand, so a late wake-up does not delay everything after it.
    """
    if trace:
        missing = sum(query.at is None for query in queries)
        if missing:
            raise BenchError(f"--use-trace-timestamps: {missing} requests carry no timestamp")
        return [query.at or 0.0 for query in queries]
    if math.isinf(rate):
        return [0.0] * len(queries)
    if rate <= 0:
        raise BenchError(f"--request-rate must be above 0 or inf, not {rate}")
    chance = random.Random(seed)
    times = [0.0]
    while len(times) < len(queries):
        times.append(times[-1] + chance.expovariate(rate))
    return times[: len(queries)]


async def by_arrival(
    queries: Sequence[BenchRequest],
    times: Sequence[float],
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[tuple[int, BenchRequest]]:
    """(index, query), each when it is due, in order of time."""
    start = clock()
    for index in sorted(range(len(queries)), key=lambda i: times[i]):
        wait = start + times[index] - clock()
        if wait > 0:
            await sleep(wait)
        yield index, queries[index]
