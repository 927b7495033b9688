"""CPU facts from /proc, /sys and the scheduler: no torch, no side effects.

Every reader takes the root of the file system, so that tests can give it a made-up machine.
"""

from __future__ import annotations

import math
import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path

from vivace.platforms.platform import PlatformFacts

ROOT = Path("/")
RELEVANT = (
    "avx2",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "avx_vnni",
    "amx_bf16",
    "amx_int8",
    "amx_tile",
    "asimd",
    "asimddp",
    "bf16",
    "i8mm",
    "sve",
)
CACHED = ("active_file", "inactive_file")
"""of memory.stat: pages of files"""
NO_LIMIT = 1 << 60
NEVER_OVERCOMMIT = 2
"""of vm.overcommit_memory"""
BF16_HARDWARE = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def detect() -> PlatformFacts:
    """Of this machine, as far as this process may use it."""
    known = features()
    total, available = memory()
    return PlatformFacts(
        name="cpu",
        device_name=model_name(),
        ray_device_key="CPU",
        memory_bytes=total,
        available_bytes=available,
        cores=cores(),
        features=known | {"kernels"} if has_kernels() else known,
        dtypes=dtypes(known),
        cpu_kernels=True,
        on_cores=True,
        overlap=False,  # the CPU that would plan ahead is the CPU that computes
        chunked_prefill_size=1024,
        max_running_requests=256,  # beyond it the cores are busy and each one waits the longer
    )


def memory(root: Path = ROOT) -> tuple[int, int]:
    """(total, available) bytes: what the machine has, cut to the container's limit and to what this
    process may map.

    Pages of files (a mapped model, above all) count as available: they are read again when needed.
    """
    table = _meminfo(root)
    total = table.get("MemTotal", 0) or _sysconf_memory()
    available = table.get("MemAvailable", table.get("MemFree", total))
    for limit, used in (*_cgroup_memory(root), *_mapped(root)):
        total, available = min(total, limit), min(available, max(0, limit - used))
    return total, available


def cores(root: Path = ROOT) -> int:
    """Cores this process may keep busy: its affinity, cut to the container's quota, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _cgroup_cores(root)
    return max(1, min(allowed or 1, quota or allowed or 1))


KERNELS = Path(__file__).with_name("_kernels.so")


def has_kernels() -> bool:
    """Whether the native kernels were compiled when Vivace was installed."""
    return KERNELS.is_file()


def features(root: Path = ROOT) -> frozenset[str]:
    """Instruction sets of RELEVANT that every core has ("flags" on x86, "Features" on Arm)."""
    for line in _lines(root / "proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split()) & frozenset(RELEVANT)
    return frozenset()


def model_name(root: Path = ROOT) -> str:
    for line in _lines(root / "proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine() or "CPU"


def dtypes(known: frozenset[str]) -> tuple[str, ...]:
    """Weight dtypes, best first.

    bfloat16 leads only where the CPU multiplies it in hardware. Without (measured on a Skylake
    server core) a bf16 product of 8 rows and more takes 1.3 to 3 times as long as a float32 one,
    and only the bandwidth-bound single row is a little faster. float16 is storage only: its
    products are emulated.
    """
    if known & BF16_HARDWARE:
        return ("bfloat16", "float32", "float16")
    return ("float32", "bfloat16", "float16")


def _meminfo(root: Path) -> dict[str, int]:
    table = {}
    for line in _lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            table[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return table


def _sysconf_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup_memory(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, used without pages of files) of each group of this process that has a limit."""
    for name, in_use, in_files, folders in (
        ("memory.max", "memory.current", CACHED, _cgroup_folders(root)),
        (
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            tuple(f"total_{field}" for field in CACHED),
            _cgroup_folders(root, "memory"),
        ),
    ):
        for folder in folders:
            limit = _number(folder / name)
            if limit is not None and limit < NO_LIMIT:
                table = _table(folder / "memory.stat")
                cached = sum(table.get(field, 0) for field in in_files)
                yield limit, max(0, (_number(folder / in_use) or 0) - cached)


def _mapped(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, mapped) of `ulimit -v` and `-d` (LimitDATA= of systemd), and of a system that
    promises no more than it has."""
    pages = _text(root / "proc/self/statm").split()
    for which, place in ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5)):
        limit, _ = resource.getrlimit(which)
        if limit != resource.RLIM_INFINITY:
            yield limit, int(pages[place]) * os.sysconf("SC_PAGE_SIZE") if pages else 0
    if _number(root / "proc/sys/vm/overcommit_memory") == NEVER_OVERCOMMIT:
        table = _meminfo(root)
        yield table.get("CommitLimit", NO_LIMIT), table.get("Committed_AS", 0)


def _cgroup_cores(root: Path) -> int | None:
    """Whole cores of the container's CPU quota (rounded up), None without a quota."""
    for folder in _cgroup_folders(root):
        words = _text(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit() and int(words[1]) > 0:
            return max(1, math.ceil(int(words[0]) / int(words[1])))
        quota = _number(folder / "cpu/cpu.cfs_quota_us")
        period = _number(folder / "cpu/cpu.cfs_period_us")
        if quota and period and quota > 0:
            return max(1, math.ceil(quota / period))
    return None


def _cgroup_folders(root: Path, controller: str = "") -> list[Path]:
    """This process's own group first, then those around it. `controller`: of version 1, which has
    a hierarchy for each."""
    base = root / "sys/fs/cgroup" / controller
    folders = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "?", "")
        own = Path(path.strip("/"))
        if controller in controllers.split(",") and ".." not in own.parts:
            folders += [base / group for group in (own, *own.parents) if group != Path()]
    return [*folders, base]


def _table(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    words = [line.split() for line in _lines(path)]
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
