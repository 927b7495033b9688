"""The run directory: private, short, removed, and what a killed server leaves behind."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vivace.errors import CannotStart
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


def test_it_takes_the_next_place_when_one_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is read-only, full, or missing."""
    real = tempfile.mkdtemp

    def make(prefix: str, dir: str) -> str:
        if dir in ("/tmp", "/var/tmp"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(prefix=prefix, dir=dir)

    monkeypatch.setattr("tempfile.mkdtemp", make)
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("/dev/shm cannot be written here")
    with new_run_dir() as path:
        assert path.parent == Path("/dev/shm")


def test_without_any_place_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(CannotStart, match="set TMPDIR") as caught, new_run_dir():
        pass
    assert "/tmp (No space left on device)" in str(caught.value)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Short enough for a socket's path, which pytest's own folders are not in a worker."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_a_killed_server_leaves_nothing_for_long(
    monkeypatch: pytest.MonkeyPatch, short_folder: Path
) -> None:
    environment = {**os.environ, "TMPDIR": str(short_folder)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED], env=environment, capture_output=True, text=True, timeout=60
    )
    left = Path(done.stdout.strip())
    assert left.parent == short_folder and left.exists()
    monkeypatch.setattr("tempfile.tempdir", str(short_folder))
    with new_run_dir() as living:
        assert left.exists(), "a young directory may still get its lock"
        make_old(left)
        make_old(living)
        stranger = short_folder / (PREFIX + "stranger")
        stranger.mkdir()
        make_old(stranger)
        remove_abandoned(short_folder)
        assert not left.exists() and living.exists() and stranger.exists()
