"""What a device is (`PlatformFacts`, torch-free) and what it offers (`Platform`)."""

from __future__ import annotations

import os
import platform as host
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vivace.platforms.attention import AttentionBackend, AttentionShape
    from vivace.platforms.ops.table import Ops

BF16_FEATURES = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""CPU flags (the last is aarch64's) that make bfloat16 products fast."""
CGROUP_MEMORY = Path("/sys/fs/cgroup/memory.max")
CGROUP_CPU = Path("/sys/fs/cgroup/cpu.max")


class DeviceError(ValueError):
    """The wanted device is not there or not supported; the text says what to do."""


@dataclass(frozen=True, kw_only=True)
class PlatformFacts:
    """All that configuration may know about a device. `dtypes` and `page_sizes`: best first."""

    name: str
    device_name: str
    memory_bytes: int
    available_bytes: int
    cores: int
    features: frozenset[str] = frozenset()
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    graphs: bool = False
    page_sizes: tuple[int, ...] = (16,)


class Platform(Protocol):
    """A device behind one vocabulary."""

    facts: PlatformFacts
    ops: Ops

    def attention_backend(self, shape: AttentionShape) -> AttentionBackend: ...


def detect(device: str | None) -> PlatformFacts:
    """The facts of the wanted device (None = the best there is: today the CPU)."""
    if device not in (None, "cpu"):
        raise DeviceError(
            f"--device {device} is not available in this version; it runs on the CPU: --device cpu"
        )
    features = cpu_features()
    fast_bf16 = bool(features & BF16_FEATURES)
    return PlatformFacts(
        name="cpu",
        device_name=cpu_name(),
        memory_bytes=memory_limit(),
        available_bytes=min(memory_line("MemAvailable"), memory_limit()),
        cores=usable_cores(),
        features=features,
        dtypes=("bfloat16", "float32", "float16")
        if fast_bf16
        else ("float32", "bfloat16", "float16"),
        page_sizes=(16, 1),
    )


def cpu_line(*keys: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    found = (line.split(":", 1)[1].strip() for line in lines if line.split(":")[0].strip() in keys)
    return next(found, "")


def cpu_features() -> frozenset[str]:
    return frozenset(cpu_line("flags", "Features").split())


def cpu_name() -> str:
    return cpu_line("model name", "Model") or host.processor() or host.machine()


def memory_line(key: str) -> int:
    """A line of /proc/meminfo in bytes; without one (not Linux) 8 GiB is assumed."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 8 << 30
    found = (int(line.split()[1]) << 10 for line in lines if line.startswith(key + ":"))
    return next(found, 8 << 30)


def memory_limit() -> int:
    """Total memory of this host or, when less, of this container."""
    total = memory_line("MemTotal")
    try:
        text = CGROUP_MEMORY.read_text().strip()
    except OSError:
        return total
    return min(total, int(text)) if text.isdigit() else total


def usable_cores() -> int:
    """Cores this process may run on: affinity, and the container's quota rounded up."""
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        quota, period = CGROUP_CPU.read_text().split()
    except (OSError, ValueError):
        return allowed
    return max(1, min(allowed, -(-int(quota) // int(period)))) if quota.isdigit() else allowed
