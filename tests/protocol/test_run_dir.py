"""The run directory: private, short, removed, and what a killed server leaves behind."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vivace.protocol.run_dir import PREFIX, new_run_dir, remove_abandoned

KILLED = """
import os, signal, sys
from vivace.protocol.run_dir import new_run_dir
with new_run_dir() as path:
    print(path, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def make_old(path: Path) -> None:
    past = time.time() - 3600
    os.utime(path, (past, past))


def test_it_is_private_short_and_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with new_run_dir() as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert len(os.fsencode(path)) < 60
        assert list(long.iterdir()) == []
    assert not path.exists()


def test_a_killed_server_leaves_nothing_for_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED], env=environment, capture_output=True, text=True, timeout=60
    )
    left = Path(done.stdout.strip())
    assert left.parent == tmp_path and left.exists()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with new_run_dir() as living:
        assert left.exists(), "a young directory may still get its lock"
        make_old(left)
        make_old(living)
        stranger = tmp_path / (PREFIX + "stranger")
        stranger.mkdir()
        make_old(stranger)
        remove_abandoned(tmp_path)
        assert not left.exists() and living.exists() and stranger.exists()
