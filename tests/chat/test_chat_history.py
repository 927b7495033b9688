"""What is kept of what was typed: bounded, for nobody else, and never in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from vivace.chat.lines import LONGEST_ENTRY, MOST_ENTRIES, History
from vivace.config.process_environment import state_folder


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_it_is_kept_for_the_next_session_and_for_nobody_else(tmp_path: Path) -> None:
    file, told = tmp_path / "state" / "vivace" / "chat_history", []
    history = History(file, told.append)
    assert history.load() == []
    entries = ["hi", "two\nlines", "é漢", '"quoted"']
    for entry in entries:
        history.add(entry)
    assert History(file, told.append).load() == entries
    assert mode(file) == 0o600 and mode(file.parent) == 0o700
    file.chmod(0o644)
    history.load()
    assert mode(file) == 0o600 and not told


def test_it_is_bounded_and_what_is_damaged_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "chat_history"
    history = History(file, pytest.fail)
    for number in range(MOST_ENTRIES + 5):
        history.add(str(number))
    history.add("x" * (LONGEST_ENTRY + 1))
    with file.open("ab") as more:
        more.write(b'{"no": "text"}\nnot JSON \xff\n')
    kept = history.load()
    assert kept == [str(number) for number in range(5, MOST_ENTRIES + 5)]
    assert len(file.read_bytes().splitlines()) == MOST_ENTRIES and mode(file) == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_of_a_file_that_is_too_large_the_newest_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "chat_history"
    history = History(file, pytest.fail)
    for number in range(100, 200):
        history.add(f"entry {number}")
    monkeypatch.setattr("vivace.chat.lines.LARGEST_FILE", 100)
    kept = history.load()
    assert kept[-1] == "entry 199" and 2 < len(kept) < 10
    assert file.stat().st_size <= 100


def test_trouble_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told: list[str] = []
    history = History(tmp_path / "file" / "chat_history", told.append)
    assert history.load() == []
    history.add("a")
    history.add("b")
    assert len(told) == 1 and "--no-history" in told[0]


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_folder() == tmp_path / "vivace"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert state_folder() == Path("/home/somebody/.local/state/vivace")
