"""CPU facts from a made-up machine, and what detect says."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from vivace.platforms.cpu import facts
from vivace.platforms.errors import PlatformError
from vivace.platforms.platform import (
    PlatformFacts,
    PlatformSettings,
    detect,
    load_platform,
)

MEMINFO = "MemTotal:  8000 kB\nMemFree: 100 kB\nMemAvailable: 6000 kB\n"
CPUINFO = "model name\t: A CPU\nflags\t\t: sse avx2 avx512f avx512_bf16\n"


@pytest.fixture
def machine(tmp_path):
    """make(path=text, ...) writes files below a made-up root and returns the root."""

    def make(files):
        for path, text in {"proc/meminfo": MEMINFO, "proc/cpuinfo": CPUINFO, **files}.items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    return make


def test_memory_without_a_container(machine):
    assert facts.memory(machine({})) == (8000 * 1024, 6000 * 1024)


def test_memory_is_cut_to_the_container(machine):
    files = {
        "proc/self/cgroup": "0::/box\n",
        "sys/fs/cgroup/box/memory.max": "4096000\n",
        "sys/fs/cgroup/box/memory.current": "96000\n",
    }
    assert facts.memory(machine(files)) == (4096000, 4000000)


def test_memory_of_the_first_cgroup_version(machine):
    files = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "2048000",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "48000",
    }
    assert facts.memory(machine(files)) == (2048000, 2000000)


@pytest.mark.parametrize(
    ("limited", "pages"), [(resource.RLIMIT_AS, 100), (resource.RLIMIT_DATA, 20)]
)
def test_memory_is_cut_to_what_this_process_may_map(machine, monkeypatch, limited, pages):
    files = {"proc/self/statm": "100 50 30 1 0 20 0\n"}
    mapped = pages * os.sysconf("SC_PAGE_SIZE")
    endless = resource.RLIM_INFINITY
    limits = {limited: (5_000_000, endless)}
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits.get(which, (endless, endless)))
    assert facts.memory(machine(files)) == (5_000_000, 5_000_000 - mapped)


def test_memory_is_cut_to_what_the_system_promises(machine):
    files = {
        "proc/meminfo": "MemTotal: 8000 kB\nMemAvailable: 6000 kB\n"
        "CommitLimit: 5000 kB\nCommitted_AS: 3000 kB\n",
        "proc/sys/vm/overcommit_memory": "2\n",
    }
    assert facts.memory(machine(files)) == (5000 * 1024, 2000 * 1024)
    assert facts.memory(machine({**files, "proc/sys/vm/overcommit_memory": "0\n"})) == (
        8000 * 1024,
        6000 * 1024,
    )


def test_pages_of_files_are_available(machine):
    """A container that has read its model is not out of memory."""
    files = {
        "proc/self/cgroup": "0::/box\n",
        "sys/fs/cgroup/box/memory.max": "4096000\n",
        "sys/fs/cgroup/box/memory.current": "4000000\n",
        "sys/fs/cgroup/box/memory.stat": "anon 400000\ninactive_file 3000000\nactive_file 600000\n",
    }
    assert facts.memory(machine(files)) == (4096000, 3696000)
    first = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "2048000",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "2000000",
        "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 1500000\n",
    }
    assert facts.memory(machine({**files, **first})) == (2048000, 1548000)


def test_the_tightest_group_counts(machine):
    files = {
        "proc/self/cgroup": "3:cpu:/x\n4:memory:/slice/box\n0::/slice/box\n",
        "sys/fs/cgroup/slice/box/memory.max": "max\n",
        "sys/fs/cgroup/slice/memory.max": "3000000\n",
        "sys/fs/cgroup/slice/memory.current": "1000000\n",
    }
    assert facts.memory(machine(files)) == (3000000, 2000000)
    files |= {
        "sys/fs/cgroup/memory/slice/memory.limit_in_bytes": "2500000\n",
        "sys/fs/cgroup/memory/slice/memory.usage_in_bytes": "2000000\n",
    }
    assert facts.memory(machine(files)) == (2500000, 500000)


def test_no_limit_is_no_limit(machine):
    files = {
        "sys/fs/cgroup/memory.max": "max\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str((1 << 63) - 4096),
    }
    assert facts.memory(machine(files))[0] == 8000 * 1024


def test_cores_follow_affinity_and_quota(machine):
    allowed = len(os.sched_getaffinity(0))
    assert facts.cores(machine({})) == allowed
    half = machine({"sys/fs/cgroup/cpu.max": "50000 100000\n"})
    assert facts.cores(half) == 1
    unlimited = machine({"sys/fs/cgroup/cpu.max": "max 100000\n"})
    assert facts.cores(unlimited) == allowed


def test_features_and_dtypes(machine):
    known = facts.features(machine({}))
    assert known == {"avx2", "avx512f", "avx512_bf16"}
    assert facts.dtypes(known)[0] == "bfloat16"
    assert facts.dtypes(known - {"avx512_bf16"})[0] == "float32"
    arm = machine({"proc/cpuinfo": "Features\t: fp asimd bf16 i8mm\n"})
    assert facts.dtypes(facts.features(arm))[0] == "bfloat16"


def test_a_machine_without_proc(tmp_path):
    total, available = facts.memory(tmp_path)
    assert total >= available > 0
    assert facts.features(tmp_path) == frozenset()


def test_detect_describes_this_machine():
    found = detect(None)
    assert found == PlatformFacts(
        name="cpu",
        device_name=found.device_name,
        memory_bytes=found.memory_bytes,
        available_bytes=found.available_bytes,
        cores=found.cores,
        features=found.features,
        dtypes=found.dtypes,
        cpu_kernels=True,
        on_cores=True,
        ray_device_key="CPU",
        overlap=False,
        chunked_prefill_size=1024,
        max_running_requests=256,
    )
    assert found.memory_bytes >= found.available_bytes > 0
    assert set(found.dtypes) == {"float32", "bfloat16", "float16"}


@pytest.mark.parametrize("device", ["cuda", "npu", "cuda:1", "tpu"])
def test_other_devices_are_refused_with_a_reason(device):
    with pytest.raises(PlatformError, match=f"--device {device}:"):
        detect(device)


def test_only_the_cpu_can_be_loaded():
    foreign = PlatformFacts(name="npu", device_name="", memory_bytes=1, available_bytes=1, cores=1)
    with pytest.raises(PlatformError, match="npu"):
        load_platform(foreign, PlatformSettings())


def test_detection_needs_no_torch():
    code = (
        "import sys; from vivace.platforms.platform import detect; detect(None); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
