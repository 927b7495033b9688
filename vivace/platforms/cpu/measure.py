"""How fast the native kernels are, beside what the machine allows: `vivace bench kernels`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from vivace.platforms.cpu.huge_pages import HugePages
from vivace.platforms.cpu.native import Kernels
from vivace.platforms.cpu.native_linear import (
    A8_BLOCKS,
    BLOCKS,
    PANEL,
    NativeLinears,
    PackedWeight,
    Panels,
)

BEYOND_CACHES = 128 << 20
"""bytes of weights that are gone through before one is read again"""
READ_ROW = 1 << 16
"""floats"""
MULTIPLIES = 1 << 16
FLOPS_OF_A_CHAIN = 2 * 16 * 24
"""of `multiply_add`: product and sum, 16 numbers, 24 chains"""
LONGEST = 4e10
"""float operations of one repetition"""
KINDS = {**BLOCKS, **A8_BLOCKS}
"""kind -> (numbers, bytes) of a packed block of one column"""
ANY_BYTE = 0x3C
"""every format reads numbers of ordinary size out of it"""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the cores reach together when they do nothing else."""

    bytes_per_second: float
    """read from memory"""
    flops: float
    """float32, per second"""


@dataclass(frozen=True, slots=True)
class LinearTime:
    """One product of x[rows, inputs] with a weight of `kind`; median of the repetitions."""

    inputs: int
    outputs: int
    kind: str
    rows: int
    seconds: float
    nbytes: int
    """of the weight"""

    @property
    def bytes_per_second(self) -> float:
        return self.nbytes / self.seconds

    @property
    def flops(self) -> float:
        return 2.0 * self.rows * self.inputs * self.outputs / self.seconds


def open_kernels(threads: int) -> Kernels:
    """Raises NoKernels."""
    torch.set_num_threads(1)
    return Kernels(threads)


def measure_limits(kernels: Kernels, repetitions: int) -> Limits:
    rows = 2 * BEYOND_CACHES // (4 * READ_ROW)
    memory, sums = torch.ones(rows, READ_ROW), torch.empty(rows)
    read, multiply = kernels.operation("read", "qqqq"), kernels.operation("multiply_add", "qqq")
    chunks = 4 * kernels.threads
    reading = time_runs(
        lambda: read(rows, memory.data_ptr(), READ_ROW, sums.data_ptr()), repetitions
    )
    multiplying = time_runs(lambda: multiply(chunks, MULTIPLIES, sums.data_ptr()), repetitions)
    return Limits(
        bytes_per_second=memory.nbytes / min(reading),
        flops=chunks * MULTIPLIES * FLOPS_OF_A_CHAIN / min(multiplying),
    )


def linear_times(
    kernels: Kernels,
    shapes: Sequence[tuple[int, int]],
    kinds: Sequence[str],
    rows: Sequence[int],
    repetitions: int,
) -> Iterator[LinearTime]:
    """`shapes`: (inputs, outputs). Kinds whose blocks do not divide the inputs are left out."""
    linears = NativeLinears(kernels)
    for inputs, outputs in shapes:
        for kind in kinds:
            if inputs % KINDS[kind][0]:
                continue
            weights = many(inputs, outputs, kind)
            for count in rows:
                seconds = one_linear(linears, weights, count, repetitions)
                yield LinearTime(inputs, outputs, kind, count, seconds, weights[0].nbytes)


def many(inputs: int, outputs: int, kind: str) -> list[PackedWeight]:
    """Copies of a weight, more than the caches hold."""
    numbers, nbytes = KINDS[kind]
    memory = HugePages()
    size = -(-outputs // PANEL) * PANEL * (inputs // numbers) * nbytes

    def one() -> PackedWeight:
        data = memory.empty(size).fill_(ANY_BYTE)
        return PackedWeight((Panels(kind, data, 0, outputs),), inputs, outputs)

    return [one() for _ in range(-(-BEYOND_CACHES // size))]


def one_linear(
    linears: NativeLinears, weights: Sequence[PackedWeight], rows: int, repetitions: int
) -> float:
    """Median seconds of one product."""
    inputs, outputs = weights[0].inputs, weights[0].outputs
    x, out = torch.ones(rows, inputs), torch.empty(rows, outputs)
    most = max(1, int(LONGEST / (2.0 * rows * inputs * outputs)))
    used = weights[:most]

    def through_all() -> None:
        for weight in used:
            linears.linear(x, weight, out=out)

    return statistics.median(time_runs(through_all, repetitions)) / len(used)


def time_runs(work: Callable[[], None], repetitions: int) -> list[float]:
    """Seconds of each repetition, after one that is not counted."""
    work()
    seconds = []
    for _ in range(repetitions):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return seconds
