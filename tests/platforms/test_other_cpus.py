"""The tests of the torch platform, of toy models and of the kernels on CPUs that this machine is
not: emulated ones, slowly."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
HOURS = 3600
PLATFORM = ["platforms/test_ops.py", "platforms/test_attention_backends.py"]
MODELS = ["models/test_families.py", "kernels/test_native_ops.py"]


def emulator() -> str:
    if os.environ.get("VIVACE_SLOW_TESTS") != "1":
        pytest.skip("takes half an hour: run with VIVACE_SLOW_TESTS=1")
    found = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
    if not found:
        pytest.skip("needs qemu-user (7.2 or later: earlier ones have no AVX2)")
    return found


def emulated(cpu: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [emulator(), "-cpu", cpu, sys.executable, *(str(word) for word in words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HOURS, cwd=TESTS.parent)


@pytest.mark.slow
@pytest.mark.timeout(HOURS)
@pytest.mark.parametrize(
    ("cpu", "isa"),
    [
        pytest.param("Haswell", "avx2", id="AVX2 only"),
        pytest.param("Nehalem", "portable", id="no AVX at all"),
    ],
)
def test_the_suite_passes_on(cpu: str, isa: str) -> None:
    opened = "from vivace.platforms.cpu.native import Kernels; print(Kernels(1).isa)"
    done = emulated(cpu, "-c", opened)
    assert done.stdout.strip() == isa, done.stderr
    options = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-o", "timeout=0"]
    done = emulated(cpu, *options, *(TESTS / name for name in (*PLATFORM, *MODELS)))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
