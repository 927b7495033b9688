"""The pictures and the recorded sessions of the documents, and the tool that records."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LARGEST = 150_000
"""bytes of one picture or recording"""
PICTURES = sorted((DOCS / "pictures").iterdir())
CASTS = sorted((DOCS / "recordings").glob("*.cast"))
LINE = re.compile(r"\w+: (.+?)(?: => .*)?")


def typed(cast: Path) -> list[str]:
    return [
        found[1]
        for found in map(LINE.fullmatch, cast.with_suffix(".txt").read_text().splitlines())
        if found
    ]


def events(cast: Path) -> tuple[dict[str, object], list[tuple[float, str, str]]]:
    head, *rows = map(json.loads, cast.read_text().splitlines())
    return head, [tuple(row) for row in rows]


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_small_and_shown_and_fetches_nothing(picture: Path) -> None:
    data = picture.read_bytes()
    assert len(data) < LARGEST
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    assert any(f"pictures/{picture.name})" in page.read_text() for page in pages)
    if picture.suffix == ".svg":
        addresses = set(re.findall(rb"https?://[\w.]+/", data))
        assert addresses <= {b"http://www.w3.org/"} and b"<script" not in data


@pytest.mark.parametrize("cast", CASTS, ids=lambda path: path.name)
def test_a_recording_plays_and_shows_what_was_typed(cast: Path) -> None:
    head, rows = events(cast)
    assert (head["version"], head["width"]) == (2, 80) and cast.stat().st_size < LARGEST
    times = [time for time, _, _ in rows]
    assert times == sorted(times) and {kind for _, kind, _ in rows} == {"o"}
    shown = re.sub(r"\s", "", "".join(text for _, _, text in rows))
    for words in typed(cast):
        if not words.startswith("^"):
            assert re.sub(r"\s", "", words) in shown, words


def test_two_terminals_are_recorded_with_what_was_waited_for(tmp_path: Path) -> None:
    cast = tmp_path / "session.cast"
    cast.with_suffix(".txt").write_text(
        "a remark\n"
        "one: printf '\\e[1mrea''dy\\e[0m %s\\n' now; sleep 100 => ready now\n"
        "two: seq 30000 | tail -n 1\n"
        "one: ^C\n"
        "one: echo the end\n"
    )
    tool = ROOT / "tools/record.py"
    words = ["nohup", sys.executable, str(tool), str(cast.with_suffix(".txt")), str(cast)]
    command = f"trap '' INT; exec {shlex.join(words)}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    _, rows = events(cast)
    shown = "".join(text for _, _, text in rows)
    order = [shown.index(text) for text in ("\x1b[1mready", " two ", "30000", " one ", "the end\r")]
    assert order == sorted(order) and len(done.stdout.splitlines()) == len(typed(cast))
