"""What a process did while it started, stage by stage; the clock is the same for all processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec


class Stage(msgspec.Struct, frozen=True, array_like=True):
    """`begin` and `end` in seconds since the machine was booted."""

    name: str
    begin: float
    end: float


def boot_clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def process_start() -> float:
    """When this process was started, to a hundredth of a second; by `boot_clock`. Without /proc,
    which the start asks for a little later: now."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return boot_clock()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


class Timeline:
    """One stage after the other, the first one from the start of the process."""

    def __init__(self, first: str, clock: Callable[[], float] = boot_clock) -> None:
        self._clock = clock
        self._begun = [(first, process_start())]

    def begin(self, name: str) -> None:
        """A stage begins and the one before it ends, unless it goes on."""
        if self._begun[-1][0] != name:
            self._begun.append((name, self._clock()))

    def stages(self) -> list[Stage]:
        """Up to now."""
        ends = [*(begin for _, begin in self._begun[1:]), self._clock()]
        return [
            Stage(name, begin, end) for (name, begin), end in zip(self._begun, ends, strict=True)
        ]
