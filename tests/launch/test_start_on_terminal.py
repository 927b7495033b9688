"""What a user sees of a start: on a terminal, and in a file."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from terminal import ProcessOnTerminal, Terminal

from vivace.commands.serve import READY_LINE
from vivace.launch.screen import TerminalScreen, is_terminal, make_screen
from vivace.platforms.platform import detect
from vivace.supervisor.output import LONGEST_LINE, ChildOutput

BAR = "━"
SERVE = [sys.executable, "-m", "vivace", "serve", "--host", "127.0.0.1", "--port", "0"]
ORACLE = {"VIVACE_EXECUTOR": "oracle"}
STAMP = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d( [a-z]+)?( [A-Z]+)?\] ")


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


words = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=30)
sentences = st.lists(words, min_size=1, max_size=20).map(" ".join)
fractions = st.floats(0, 1)
steps = st.lists(st.one_of(sentences, st.tuples(st.sampled_from(["Loading", "Sizing"]), fractions)))


@settings(max_examples=50, deadline=None)
@given(steps, st.sampled_from([40, 80, 100]))
def test_every_line_is_whole_and_no_bar_stays(steps: list, columns: int) -> None:
    stream, terminal = FakeTerminal(), Terminal(columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("TERM", "xterm")
        screen = make_screen(stream)
        assert isinstance(screen, TerminalScreen)
        for step in steps:
            if isinstance(step, str):
                screen.write(f"{step}\n")
            else:
                screen.update(*step)
        screen.close()
        screen.write("the end\n")
    terminal.feed(stream.getvalue().replace("\n", "\r\n"))
    said = [step.rstrip() for step in steps if isinstance(step, str)]
    lines = terminal.lines()
    assert max(map(len, lines)) <= columns
    assert " ".join(lines).split() == " ".join([*said, "the end"]).split(), "no word is cut"
    assert terminal.cursor_is_shown


@pytest.mark.parametrize("columns", [80, 100])
def test_an_error_at_start_is_whole(columns: int) -> None:
    with ProcessOnTerminal([*SERVE, "--max-total-tokens", "1"], columns, **ORACLE) as server:
        assert server.wait() == 2
        lines = server.terminal.lines()
    assert max(map(len, lines)) <= columns
    (at,) = [index for index, line in enumerate(lines) if "ERROR" in line]
    error = " ".join(" ".join(lines[at:]).split())
    assert STAMP.match(error) and "The server stops: the engine did not start" in error
    assert len(error) > columns
    assert "--max-total-tokens 1" in error and error.endswith("leave it out")
    assert BAR in server.text and server.terminal.cursor_is_shown
    assert not any(BAR in line for line in server.terminal.lines())


@pytest.mark.parametrize("columns", [80, 100])
def test_a_start_and_its_end(columns: int) -> None:
    with ProcessOnTerminal(SERVE, columns, **ORACLE) as server:
        server.wait_for("URL")
        server.wait_for("\n")
        server.process.send_signal(15)
        assert server.wait() == 0
        lines = server.terminal.lines()
        *start, url = lines[: -len(ending(lines))]
    assert max(map(len, lines)) <= columns
    assert url.split()[0] == "URL" and url.split()[1].startswith("http://127.0.0.1:")
    logged = [line for line in start if STAMP.match(line)]
    assert not any("Prefill batch" in line for line in start), "the warm-up is no traffic"
    assert READY_LINE in logged[-1]
    rows = [line.split()[0] for line in start if re.match(r"  \w", line)]
    slow = [] if "kernels" in detect("cpu").features else ["changed", "note", "note"]
    assert rows == ["model", "memory", "limits", "sampling", "device", *slow, "try"]
    assert BAR in server.text and not any(BAR in line for line in server.terminal.lines())


def ending(lines: list[str]) -> list[str]:
    """What was said after the URL."""
    (at,) = [index for index, line in enumerate(lines) if line.split()[0] == "URL"]
    return lines[at + 1 :]


def test_a_file_gets_plain_lines(tmp_path: Path) -> None:
    words = [*SERVE, "--max-total-tokens", "1"]
    environment = {**os.environ, **ORACLE, "FORCE_COLOR": "1", "TERM": "xterm"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and not done.stdout
    lines = done.stderr.splitlines()
    assert [STAMP.match(line) is not None for line in lines] == [True] * len(lines)
    assert "\x1b" not in done.stderr and BAR not in done.stderr


def test_a_terminal_without_control_sequences_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert not is_terminal(FakeTerminal())


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_what_a_child_prints_becomes_harmless_lines(parts: list[bytes]) -> None:
    """However it was cut on its way, and whatever bytes it has."""
    written: list[str] = []
    reader, writer = os.pipe()
    output = ChildOutput(reader, written.append)
    for part in parts:
        os.write(writer, part)
        assert output.forward()
    os.close(writer)
    output.finish()
    whole = b"".join(parts)
    assert all(text.endswith("\n") for text in written), "whole lines only"
    lines = "".join(written).split("\n")[:-1]
    assert len(lines) == whole.count(b"\n") + (not whole.endswith(b"\n") and bool(whole))
    controls = {c for line in lines for c in line if unicodedata.category(c) in ("Cc", "Cs")}
    assert controls <= {"\t"}


def test_a_line_without_end_is_cut() -> None:
    written: list[str] = []
    reader, writer = os.pipe()
    output = ChildOutput(reader, written.append)
    for _ in range(3):
        os.write(writer, b"x" * (LONGEST_LINE // 2 + 1))
        output.forward()
    os.close(writer)
    output.finish()
    assert [len(line) for line in written] == [LONGEST_LINE + 3, LONGEST_LINE // 2 + 2]
