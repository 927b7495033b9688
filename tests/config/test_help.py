"""`vivace serve --help` shows what works here, `--help-all` everything, in any terminal."""

from __future__ import annotations

import re

import pytest

from vivace.config.config import all_options
from vivace.config.help import help_text
from vivace.config.option import Support
from vivace.config.parsing import from_arguments, parse
from vivace.config.table import flag_table
from vivace.launch.configure import configure
from vivace.worker.captures import DEFAULT_CAPTURE

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


def test_a_flag_that_computes_its_default_says_so() -> None:
    """Numbers and choices; a path or a name that is not given is none."""
    silent = [
        row.flags
        for row in flag_table("cpu", works="cpu")
        if (row.option.choices or row.option.shape in ("int", "float", "list of int"))
        and not row.default
        and not re.search(r"(?i)\bdefault|\bunset", row.option.help)
    ]
    assert silent == []


def test_the_defaults_in_words_are_those_in_effect() -> None:
    config = configure(from_arguments())
    effective = {
        "max_running_requests": config.schedule.max_running_requests,
        "chunked_prefill_size": config.schedule.chunked_prefill_size,
        "page_size": config.memory.page_size,
        "cuda_graph_max_bs": DEFAULT_CAPTURE,
    }
    helps = {option.name: option.help for option in all_options()}
    for name, value in effective.items():
        assert f"default: {value}" in helps[name]


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
    assert len(help_text("vivace serve", "cpu", everything=False, width=80).splitlines()) < 380


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--help-all"], ["--port", "x", "--help"]])
def test_help_wins_over_what_else_was_typed(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words, {})
    assert ended.value.code == 0
    assert ("--attn-cp-size" in capsys.readouterr().out) is ("--help-all" in words)
