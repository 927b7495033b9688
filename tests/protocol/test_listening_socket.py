"""A socket between processes: nobody finds it, nothing is left of it, any folder will do."""

from __future__ import annotations

import errno
import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from vivace.errors import CannotStart
from vivace.protocol import listening_socket
from vivace.protocol.listening_socket import ListeningSocket, listen, new_socket, path


def talk(made: ListeningSocket) -> bytes:
    """What arrives when a frontend says "hello"."""
    with socket.socket(socket.AF_UNIX) as frontend:
        frontend.connect(path(made.file))
        frontend.sendall(b"hello")
        with socket.socket(fileno=os.dup(made.listening)) as engine:
            engine.settimeout(10)
            while True:  # the first to come is the check at the start
                connection, _ = engine.accept()
                with connection:
                    if said := connection.recv(5):
                        return said


def close(made: ListeningSocket) -> None:
    os.close(made.listening)
    os.close(made.file)


def test_nothing_is_left_of_it_and_it_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    modes: list[int] = []
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        remove = listening_socket.shutil.rmtree

        def look_and_remove(path: Path, ignore_errors: bool) -> None:
            modes.append(stat.S_IMODE(path.stat().st_mode))
            remove(path, ignore_errors)

        monkeypatch.setattr(listening_socket.shutil, "rmtree", look_and_remove)
        made = listen(new_socket())
        monkeypatch.undo()
        assert list(Path(folder).iterdir()) == [] and modes == [0o700]
    assert talk(made) == b"hello"
    assert talk(made) == b"hello", "for each engine again"
    close(made)


def test_a_folder_with_a_long_path_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    made = listen(new_socket())
    assert talk(made) == b"hello"
    close(made)


def test_it_takes_the_next_place_when_one_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is read-only, full, or missing."""
    real = tempfile.mkdtemp
    taken: list[str] = []

    def make(prefix: str, dir: str) -> str:
        if dir in ("/tmp", "/var/tmp"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        taken.append(dir)
        return real(prefix=prefix, dir=dir)

    monkeypatch.setattr("tempfile.mkdtemp", make)
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("/dev/shm cannot be written here")
    close(listen(new_socket()))
    assert taken[-1] == "/dev/shm"


def test_without_any_place_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(CannotStart, match="set TMPDIR") as caught:
        listen(new_socket())
    assert "/tmp (No space left on device)" in str(caught.value)


def test_a_machine_without_proc_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening_socket, "path", lambda file: f"/nowhere/{file}")
    with pytest.raises(CannotStart, match="mount /proc"):
        listen(new_socket())
