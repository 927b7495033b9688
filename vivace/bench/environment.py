"""Facts about this host, and whose CPU time a measurement took."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROC = Path("/proc")


def host_facts() -> dict[str, Any]:
    """What a reader needs to judge a figure: processor, cores, memory, kernel, load."""
    return {
        "machine": platform.machine(),
        "processor": processor_name(),
        "cores": usable_cores(),
        "memory_bytes": memory_bytes(),
        "system": f"{platform.system()} {platform.release()}",
        "load_average": load_average(),
    }


def instruction_set(server: Mapping[str, Any]) -> str:
    """Whose operations computed, with which instruction set, by a server's own description."""
    states = server.get("internal_states")
    state = states[0] if isinstance(states, list) and states else None
    name = state.get("instructions") if isinstance(state, dict) else None
    return name if isinstance(name, str) and name else "unknown: the server does not say"


def processor_name() -> str:
    for line in read(PROC / "cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    for line in read(PROC / "meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def load_average() -> list[float]:
    try:
        return list(os.getloadavg())
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class CPUReading:
    """CPU seconds up to now: of the whole machine, and of the sessions that are measured."""

    machine: float
    ours: float
    wall: float


def cpu_reading(sessions: set[int], wall: float) -> CPUReading:
    """Read the machine's counter and those of every process in `sessions`, and of this process.

    A session is named by the process id of its leader. Times of children that were waited for are
    included, so a worker that ends during a run is not lost.
    """
    tick = os.sysconf("SC_CLK_TCK")
    fields = read(PROC / "stat").split("\n", 1)[0].split()[1:]
    busy = 0
    if len(fields) >= 8:
        values = [int(field) for field in fields[:8]]
        busy = sum(values) - values[3] - values[4]  # without idle and iowait
    own = os.getpid()
    ours = sum(
        spent
        for process, session, spent in list_processes()
        if process == own or session in sessions
    )
    return CPUReading(machine=busy / tick, ours=ours / tick, wall=wall)


def foreign_share(before: CPUReading, after: CPUReading) -> float:
    """Share of the machine, 0 to 1, that neither the server nor this client took."""
    wall = max(after.wall - before.wall, 1e-9)
    others = (after.machine - before.machine) - (after.ours - before.ours)
    return max(0.0, others / wall / (os.cpu_count() or 1))


def list_processes() -> Iterator[tuple[int, int, int]]:
    """(process id, session id, CPU ticks with those of dead children) of every process."""
    for folder in PROC.glob("[0-9]*"):
        text = read(folder / "stat")
        fields = text.rpartition(")")[2].split()
        if len(fields) > 15:
            yield int(folder.name), int(fields[3]), sum(int(field) for field in fields[11:15])


def memory_peak(sessions: set[int]) -> int:
    """Sum of the peak resident bytes of every process in `sessions` (shared pages count twice)."""
    total = 0
    for process, session, _ in list_processes():
        if session in sessions:
            for line in read(PROC / str(process) / "status").splitlines():
                if line.startswith("VmHWM:"):
                    total += int(line.split()[1]) * 1024
    return total


def read(path: Path) -> str:
    """The file's text, empty when there is none (a process that ended, another system)."""
    try:
        return path.read_text()
    except OSError:
        return ""
