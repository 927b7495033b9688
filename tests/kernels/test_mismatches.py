"""Tensors that do not fit what stands beside them are refused by every op, and harm nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from every_isa import needs_kernels

PROGRAM = Path(__file__).with_name("mismatches.py")
EXAMPLES = 25
"""of each op, drawn; every change of one tensor comes behind them"""


@needs_kernels
def test_every_op_refuses_by_name_or_takes() -> None:
    command = [sys.executable, str(PROGRAM), str(EXAMPLES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
    counts = [line.rsplit(maxsplit=2) for line in done.stdout.splitlines()]
    assert len(counts) > 25
    for op, refused, tried in counts:
        assert int(refused) >= 0.4 * int(tried), f"{op} took most of {tried} changes"
