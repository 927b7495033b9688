"""What is printed: between words on a terminal, one line a message anywhere else."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from terminal import ProcessOnTerminal

from vivace.cli import main
from vivace.config.parsing import parse
from vivace.launch.configure import configure
from vivace.launch.summary import build_summary, plain_lines, styled_lines
from vivace.protocol.messages import Capacity
from vivace.terminal import fill_command, make_console, terminal_width, wrap_line, wrap_text

VIVACE = [sys.executable, "-m", "vivace"]
COMMANDS = (
    ("doctor",),
    ("flags", "sampling"),
    ("flags", "cuda-graph", "--platform", "cuda"),
    ("flags", "no-such-flag-at-all-whatever-the-words-are-that-somebody-may-type"),
    ("serve", "--model-path", "/nowhere/at/all"),
    ("serve", "--enable-lora", "--disaggregation-mode", "prefill", "--tp", "8"),
    ("chat", "--model-path", "/nowhere/at/all", "--url", "http://127.0.0.1:1"),
    ("list",),
    ("serv",),
    ("show",),
    ("--help",),
    ("bench", "--help"),
    ("chat", "--help"),
    ("serve", "--help"),
    ("check", "--help"),
    ("doctor", "--help"),
    ("bench", "serving", "--help"),
    ("bench", "offline", "--help"),
    ("bench", "one-batch", "--help"),
    ("bench", "peers", "--help"),
)
words = st.text(st.characters(codec="ascii", exclude_categories=["C", "Z"]), min_size=1)


@given(st.lists(words, min_size=1), st.integers(20, 120))
def test_words_stay_whole_and_in_order(text: list[str], columns: int) -> None:
    lines = wrap_line(" ".join(text), columns)
    assert " ".join(lines).split() == text
    longest = max(map(len, text)) + 4
    assert max(map(len, lines)) <= max(columns, longest)


@given(st.text(max_size=500))
def test_what_is_no_terminal_gets_what_was_said(text: str) -> None:
    assert wrap_text(text, terminal_width(io.StringIO())) == text


def test_an_indented_line_goes_on_below_its_first_word() -> None:
    text = "head\n      one two three four five"
    assert wrap_text(text, 20) == "head\n      one two three\n      four five"


@pytest.mark.parametrize("name", ["m", "it's", 'a "b" c', "x" * 100, "a, b"])
@pytest.mark.parametrize("columns", [40, 80, 200])
def test_the_command_to_copy_is_one_command(name: str, columns: int) -> None:
    """However it was broken: a shell reads the same words, and the body is JSON."""
    flags = ["--served-model-name", name, "--api-key", "sk-secret"]
    config = configure(parse(flags, {"VIVACE_EXECUTOR": "oracle"}))
    capacity = Capacity(pages=8, page_size=16, rows=4, context=64, vocabulary=100)
    summary = build_summary(config, capacity, "http://127.0.0.1:1")
    (whole,) = [line for line in plain_lines(summary) if line.split()[0] == "try"]
    broken = "\n".join(fill_command(summary.curl, columns))
    for text in (whole.removeprefix("  try"), broken):
        done = subprocess.run(
            ["sh", "-c", f'curl() {{ shift $(($# - 1)); printf %s "$1"; }}\n{text}'],
            capture_output=True,
            check=True,
        )
        assert json.loads(done.stdout)["model"] == name
    rows = [line.plain for line in styled_lines(summary, columns)]
    assert columns < 80 or len(name) > 20 or max(map(len, rows)) <= columns


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_word_is_cut_at_80_columns(command: tuple[str, ...]) -> None:
    with ProcessOnTerminal([*VIVACE, *command], 80) as program:
        program.wait()
        lines = program.terminal.lines()
    assert lines and max(map(len, lines)) <= 80, "the terminal had to break a line"


def test_what_chat_says_in_a_pipe_is_one_line() -> None:
    out, note = (
        io.StringIO(),
        "[cut off after 1024 tokens: " + "or /set max_tokens allows more " * 9,
    )
    make_console(out).print(note, markup=False)
    assert out.getvalue() == note + "\n"


def test_an_error_in_a_pipe_is_one_line() -> None:
    command = ["serve", "--model-path", "/nowhere/" + "at all/" * 20]
    done = subprocess.run([*VIVACE, *command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("size", ["0", "-5", "1", "text", "\u00b2", "9" * 12, ""])
def test_a_size_of_no_terminal_is_forgotten(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "LINES"):
        monkeypatch.setenv(name, size)
    assert main(["version"]) == 0
    assert not {"COLUMNS", "LINES"} & set(os.environ)


def test_a_size_of_a_terminal_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["version"]) == 0
    assert os.environ["COLUMNS"] == "40"
