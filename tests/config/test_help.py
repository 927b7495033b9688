"""`vivace serve --help` shows what works here, `--help-all` everything, in any terminal."""

from __future__ import annotations

import re

import pytest

from vivace.config.config import all_options
from vivace.config.help import help_text
from vivace.config.option import Support
from vivace.config.parsing import parse

FLAG = re.compile(r"(?<![\w`-])--[a-z0-9-]+")


def shown(text: str) -> set[str]:
    """The flags that head an entry."""
    heads = (line for line in text.splitlines() if re.match(r"  -", line))
    return {flag for line in heads for flag in FLAG.findall(line[:100])}


def test_help_shows_what_works_and_help_all_the_rest() -> None:
    works = {o.flag for o in all_options() if o.states["cpu"].kind is Support.WORKS}
    every = {o.flag for o in all_options()}
    little = shown(help_text("vivace serve", "cpu", everything=False, width=100))
    much = shown(help_text("vivace serve", "cpu", everything=True, width=100))
    assert works <= little and not (every - works) & little
    assert every <= much


@pytest.mark.parametrize("width", [40, 60, 80, 100, 300])
@pytest.mark.parametrize("everything", [False, True])
def test_no_line_is_wider_than_the_terminal(width: int, everything: bool) -> None:
    text = help_text("vivace serve", "cpu", everything=everything, width=width)
    body = [
        line
        for line in text.splitlines()
        if width >= 80 or not line.lstrip().startswith(("-", "vivace", "{"))
    ]
    assert max(map(len, body)) <= min(width, 100)


def test_help_fits_on_a_few_screens() -> None:
    assert len(help_text("vivace serve", "cpu", everything=False, width=80).splitlines()) < 260


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--help-all"], ["--port", "x", "--help"]])
def test_help_wins_over_what_else_was_typed(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words, {})
    assert ended.value.code == 0
    assert ("--tp-size" in capsys.readouterr().out) is ("--help-all" in words)
