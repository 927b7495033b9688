"""What a frontend's process keeps of large blocks that were freed."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import re
from pathlib import Path
from vivace.platforms.cpu.allocator import return_large_blocks
def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10
assert return_large_blocks()
before = resident()
bytearray(20 << 20)  # from now on glibc would keep smaller ones
bodies = [bytearray() for _ in range(20)]
kept = []
for _ in range(40):  # they grow in turns, and something small lies between them
    for body in bodies:
        body += b"x" * (200 << 10)
        kept.append(b"y" * 600)
assert resident() - before > 150
bodies.clear()
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_blocks_go_back_when_they_are_freed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )
    if "assert return_large_blocks()" in done.stderr:
        pytest.skip("no glibc")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 20, "MiB"
