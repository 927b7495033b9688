"""Probes of the operating system: scheduler, memory, limits. Values: Ascend parameter guide."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from vivace.doctor.diagnosis import Diagnosis, ProbeOptions
from vivace.doctor.system import System

GOVERNORS = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
MAX_SWAPPINESS = 10
MIGRATION_NS = 50_000
MIGRATION_FILES = (
    "/proc/sys/kernel/sched_migration_cost_ns",
    "/sys/kernel/debug/sched/migration_cost_ns",
)
MIN_OPEN_FILES = 65_536
MIN_PROCESSES = 32_768


def governor(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    files = system.find(GOVERNORS)
    found = {file: file.read_text().strip() for file in files if file.is_file()}
    slow = [file for file, value in found.items() if value != "performance"]
    if not found:
        yield Diagnosis(
            name="cpu-governor", state="ok", found="the machine does not offer a choice"
        )
    elif not slow:
        yield Diagnosis(name="cpu-governor", state="ok", found="performance on every core")
    else:
        yield Diagnosis(
            name="cpu-governor",
            state="warning",
            found=f"{found[slow[0]]} on {len(slow)} of {len(found)} cores",
            why="clocks that go up and down show as jitter of every step",
            mend=f"echo performance | tee {GOVERNORS}",
            writes=tuple((f"/{file.relative_to(system.root)}", "performance") for file in slow),
        )


def swappiness(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    value = system.read("/proc/sys/vm/swappiness")
    if value is None or not value.isdecimal():
        yield Diagnosis(
            name="swappiness", state="unknown", found="/proc/sys/vm/swappiness is missing"
        )
    elif int(value) <= MAX_SWAPPINESS:
        yield Diagnosis(name="swappiness", state="ok", found=value)
    else:
        yield Diagnosis(
            name="swappiness",
            state="warning",
            found=f"{value}, at most {MAX_SWAPPINESS} is wanted",
            why="memory that the device reads may be swapped out",
            mend="sysctl -w vm.swappiness=0",
            writes=(("/proc/sys/vm/swappiness", "0"),),
        )


def numa_balancing(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    value = system.read("/proc/sys/kernel/numa_balancing")
    if value in (None, "0"):
        found = "off" if value == "0" else "this kernel has none"
        yield Diagnosis(name="numa-balancing", state="ok", found=found)
    else:
        yield Diagnosis(
            name="numa-balancing",
            state="warning",
            found="on",
            why="pages move between memory nodes while a step runs",
            mend="sysctl -w kernel.numa_balancing=0",
            writes=(("/proc/sys/kernel/numa_balancing", "0"),),
        )


def migration_cost(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    for file in MIGRATION_FILES:
        value = system.read(file)
        if value is None:
            continue
        if value == str(MIGRATION_NS):
            yield Diagnosis(name="migration-cost", state="ok", found=f"{value} ns")
        else:
            yield Diagnosis(
                name="migration-cost",
                state="note",
                found=f"{value} ns, the guide sets {MIGRATION_NS}",
                why="it says how readily threads change cores",
                mend=f"sysctl -w kernel.sched_migration_cost_ns={MIGRATION_NS}"
                if file.startswith("/proc")
                else f"echo {MIGRATION_NS} | tee {file}",
                writes=((file, str(MIGRATION_NS)),),
            )
        return
    yield Diagnosis(name="migration-cost", state="unknown", found="this kernel does not show it")


def huge_pages(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    file = "/sys/kernel/mm/transparent_hugepage/enabled"
    value = system.read(file)
    if value is None:
        yield Diagnosis(name="huge-pages", state="unknown", found=f"{file} is missing")
        return
    chosen = value.partition("[")[2].partition("]")[0] or value
    if chosen in ("always", "madvise"):
        yield Diagnosis(name="huge-pages", state="ok", found=chosen)
    else:
        yield Diagnosis(
            name="huge-pages",
            state="note",
            found=chosen,
            why="weights in small pages cost lookups of addresses",
            mend=f"echo madvise | tee {file}",
            writes=((file, "madvise"),),
        )


def limits(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield limit(
        "open-files", soft, hard, MIN_OPEN_FILES, "-n", "every connection and shared file counts"
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    yield limit("processes", soft, hard, MIN_PROCESSES, "-u", "threads count as processes")


def limit(name: str, soft: int, hard: int, wanted: int, letter: str, why: str) -> Diagnosis:
    endless = soft == resource.RLIM_INFINITY
    shown = "unlimited" if endless else str(soft)
    if endless or soft >= wanted:
        return Diagnosis(name=name, state="ok", found=shown)
    raisable = hard == resource.RLIM_INFINITY or hard >= wanted
    item = {"-n": "nofile", "-u": "nproc"}[letter]
    lines = f"* - {item} {wanted}\\nroot - {item} {wanted}\\n"
    for_good = f"printf '{lines}' | sudo tee /etc/security/limits.d/vivace-{item}.conf"
    how = f"ulimit {letter} {wanted}" if raisable else f"{for_good}; then log in again"
    return Diagnosis(
        name=name, state="warning", found=f"{shown}, {wanted} is wanted", why=why, mend=how
    )


def cores(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    """A container may have fewer cores than the machine, which programs that count do not see."""
    quota = (system.read("/sys/fs/cgroup/cpu.max") or "max").split()
    online = len(system.find("/sys/devices/system/cpu/cpu[0-9]*"))
    if len(quota) == 2 and quota[0].isdecimal() and quota[1].isdecimal() and online:
        allowed = int(quota[0]) / int(quota[1])
        if allowed < online:
            yield Diagnosis(
                name="cores",
                state="note",
                found=f"the container may use {allowed:g} of {online} cores",
                why="more computing threads than that wait for one another",
                mend=f"vivace serve --cpu-threads {max(1, int(allowed))}",
            )
            return
    yield Diagnosis(name="cores", state="ok", found=f"{online or 'all'} usable")


PROBES = (governor, swappiness, numa_balancing, migration_cost, huge_pages, limits, cores)
