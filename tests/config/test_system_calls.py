"""Calls that some Pythons lack."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from descriptors import opens_processes

from vivace.system_calls import (
    call,
    fix_size,
    follow_child,
    open_memory,
    open_process,
    send_signal,
)

LACKING = [
    (os, "memfd_create"),
    (os, "pidfd_open"),
    (signal, "pidfd_send_signal"),
]


@pytest.mark.parametrize("lacking", [False, True])
def test_a_python_that_was_built_for_older_systems_does_the_same(
    monkeypatch: pytest.MonkeyPatch, lacking: bool
) -> None:
    for module, name in LACKING if lacking else ():
        monkeypatch.delattr(module, name, raising=False)
    memory = open_memory("test")
    try:
        assert not os.get_inheritable(memory)
        assert Path(f"/proc/self/fd/{memory}").readlink().name.startswith("memfd:test")
        os.ftruncate(memory, 8)
        fix_size(memory)
        with pytest.raises(PermissionError):
            os.ftruncate(memory, 4)
    finally:
        os.close(memory)
    if not opens_processes():
        pytest.skip("this system does not")
    sleeper = subprocess.Popen([sys.executable, "-Sc", "import time; time.sleep(60)"])
    process = open_process(sleeper.pid)
    try:
        assert not os.get_inheritable(process)
        send_signal(process, signal.SIGKILL)
        assert sleeper.wait(20) == -signal.SIGKILL
        with pytest.raises(ProcessLookupError):
            send_signal(process, signal.SIGKILL)
    finally:
        os.close(process)


@pytest.mark.parametrize("folder", ["/dev/shm", "elsewhere"])
def test_memory_where_there_is_no_memfd_create(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str
) -> None:
    """A sandbox may refuse it, so that no program runs that lies in no folder."""
    monkeypatch.setattr(os, "memfd_create", lambda name, flags: refuse(0), raising=False)
    monkeypatch.setattr("vivace.system_calls.IN_MEMORY", folder)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    memory = open_memory("vivace-ranks")
    try:
        os.posix_fallocate(memory, 0, mmap.PAGESIZE)
        fix_size(memory)
        with mmap.mmap(memory, mmap.PAGESIZE):
            shown = Path("/proc/self/maps").read_text()
        assert "memfd:vivace-ranks" in shown and not list(tmp_path.iterdir())
        assert not os.get_inheritable(memory)
    finally:
        os.close(memory)


def refuse(pid: int) -> int:
    raise OSError(errno.ENOSYS, "as before Linux 5.3")


@pytest.mark.parametrize("known", [True, False])
def test_a_child_is_followed(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    if not known:
        monkeypatch.setattr("vivace.system_calls.open_process", refuse)
    sleeper = subprocess.Popen([sys.executable, "-Sc", "import time; time.sleep(60)"])
    child = follow_child(sleeper.pid)
    assert not child.ends(0.05)
    child.kill()
    assert child.ends(20) and child.ends(None)
    assert sleeper.wait(20) == -signal.SIGKILL
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", lambda pid, number: pytest.fail(f"{number} to {pid}"))
        child.kill()  # its number may be another one's
    assert child.ends(None)


def test_what_the_system_does_not_know_is_said() -> None:
    with pytest.raises(OSError) as failed:
        call(-1)
    assert failed.value.errno == errno.ENOSYS
