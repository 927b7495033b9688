"""The kernels on every instruction set that this CPU has, and with several numbers of threads."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import pytest

from vivace.platforms.cpu.native import Kernels, NoKernels

ISAS = ("avx512bf16", "avx512vnni", "avx512", "avx2", "portable", "neondot", "neon")


@cache
def opened(threads: int, isa: str | None = None) -> Kernels | str:
    """The kernels, or why there are none."""
    try:
        return Kernels(threads, isa=isa)
    except NoKernels as reason:
        return str(reason)


def load_kernels(isa: str | None, threads: int = 2) -> Kernels:
    kernels = opened(threads, isa)
    assert isinstance(kernels, Kernels), kernels
    return kernels


def usable(isas: Iterable[str]) -> list[str]:
    return [isa for isa in isas if isinstance(opened(2, isa), Kernels)]


USABLE = usable(ISAS)
FLOATS = usable(("avx512", "avx2", "portable", "neon"))
"""with float kernels of their own; the others add products of integers to one of them"""
EMULATED = "avx512vnni-emulated"
TESTED = [*USABLE, *usable([EMULATED])]
"""with the one that is there for tests only"""
needs_kernels = pytest.mark.skipif(not USABLE, reason=f"no native kernels: {opened(2)}")
each_isa = pytest.mark.parametrize("isa", USABLE or [None])
