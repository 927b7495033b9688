"""CPU facts from /proc, /sys and the scheduler: no torch, no side effects.

Every reader takes the root of the file system, so that tests can give it a made-up machine.
"""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

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
BF16_HARDWARE = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def memory(root: Path = ROOT) -> tuple[int, int]:
    """(total, available) bytes: what the machine has, cut to the container's limit."""
    table = _meminfo(root)
    total = table.get("MemTotal", 0) or _sysconf_memory()
    available = table.get("MemAvailable", table.get("MemFree", total))
    limit, used = _cgroup_memory(root)
    if limit is not None:
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    return total, available


def cores(root: Path = ROOT) -> int:
    """Cores this process may keep busy: its affinity, cut to the container's quota, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _cgroup_cores(root)
    return max(1, min(allowed or 1, quota or allowed or 1))


KERNELS = Path(__file__).with_name("_kernels.so")


def kernels_built() -> bool:
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


def _cgroup_memory(root: Path) -> tuple[int | None, int]:
    """(limit or None, used) of the container; cgroup v2, then v1."""
    for limit_file, used_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        for folder in _cgroup_folders(root):
            limit = _number(folder / limit_file)
            if limit is not None and limit < 1 << 60:
                return limit, _number(folder / used_file) or 0
    return None, 0


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


def _cgroup_folders(root: Path) -> list[Path]:
    """This process's own cgroup (v2) first, then the root of the hierarchy."""
    base = root / "sys/fs/cgroup"
    folders = []
    for line in _lines(root / "proc/self/cgroup"):
        hierarchy, _, path = line.split(":", 2) if line.count(":") >= 2 else ("", "", "")
        if hierarchy == "0" and path.strip("/"):
            folders.append(base / path.strip("/"))
    return [*folders, base]


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
