"""What the program writes in places of its own choosing goes nowhere else, and never waits."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from vivace import completion
from vivace.chat.lines import History
from vivace.files import open_own_file
from vivace.launch.startup_profile import SUPERVISOR, StartupProfile
from vivace.observability import crash_dump
from vivace.observability.timeline import Stage
from vivace.server.request_log import FILE_NAME, LineFile

APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


def write_history(folder: Path) -> str:
    told: list[str] = []
    History(folder / "chat_history", told.append).add("what was typed")
    return "".join(told)


def write_completion(folder: Path) -> str:
    assert completion.install("bash", folder / "vivace") == 1
    return ""


def write_request_log(folder: Path) -> str:
    with pytest.raises(OSError) as caught:
        LineFile(folder / FILE_NAME)
    return str(caught.value)


def write_crash_dump(folder: Path) -> str:
    with pytest.raises(OSError) as caught:
        crash_dump.save(folder / "dump.jsonl", b"requests")
    return str(caught.value)


WRITERS: dict[str, Callable[[Path], str]] = {
    "chat_history": write_history,
    "vivace": write_completion,
    FILE_NAME: write_request_log,
    "dump.part": write_crash_dump,
}


@pytest.mark.parametrize("name", WRITERS)
def test_links_are_not_followed_and_pipes_not_waited_for(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep this")
    precious.chmod(0o644)
    puts: dict[str, Callable[[Path], None]] = {
        "a link": lambda place: place.symlink_to(precious),
        "not a regular file": os.mkfifo,
    }
    for number, (reason, put) in enumerate(puts.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        put(folder / name)
        said = WRITERS[name](folder)
        assert reason in said + capsys.readouterr().err
    assert precious.read_text() == "keep this" and precious.stat().st_mode & 0o777 == 0o644


def test_a_link_to_nothing_creates_nothing(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="link"):
        open_own_file(tmp_path / "link", APPEND)
    assert not (tmp_path / "made").exists()


def test_a_history_with_a_reader_at_a_pipe_is_no_history(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "chat_history")
    reader = os.open(tmp_path / "chat_history", os.O_RDONLY | os.O_NONBLOCK)
    assert "not a regular file" in write_history(tmp_path)
    assert os.read(reader, 100) == b""
    os.close(reader)


def test_a_profile_for_a_pipe_that_nobody_reads_does_not_hold_the_start_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "pipe")
    profile = StartupProfile()
    profile.add(SUPERVISOR, [Stage("configuration", 10.0, 11.0)])
    profile.write(tmp_path / "pipe")
    assert "--startup-profile-file" in caplog.text


@pytest.mark.parametrize(
    "line", [b"[" * 100_000, b'"\\ud800"', b'"a\\u0000b"', b"1" * 100_000, b"\xff\xfe"]
)
def test_a_damaged_history_does_not_end_the_chat(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "chat_history").write_bytes(line + b'\n"good"\n')
    assert History(tmp_path / "chat_history", pytest.fail).load() == ["good"]
