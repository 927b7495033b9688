"""Answers on a terminal: what stands there in the end, and that nothing flickers on the way."""

from __future__ import annotations

import io
import itertools
from typing import Any

import pytest
from chat_kit import MARKDOWN, Terminal
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from vivace.chat.layout import MarkdownLayout, PlainLayout
from vivace.chat.screen import (
    LONGEST_OPEN,
    FormattedScreen,
    PassingScreen,
    drop_controls,
    screen_for,
)

WIDTH = 40
PIECES = [
    "word ", "a **bold** one ", "`code` ", "longer-than-the-whole-line-of-this-terminal-is ", "\n",
    "\n\n", "# Head\n", "- item\n", "  - nested\n", "1. first\n", "> quote\n", "---\n", "===\n",
    "```python\n", "x = 1  # why\n", "```\n", "| a | b |\n|---|---|\n| 1 | 2 |\n", "    indented\n",
    "<b>html</b> ", "Vec<T> ", "*", "**", "`", "#", "[x](http://y) ", "~~gone~~ ", "\t", "é漢 ",
]  # fmt: skip


def console() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=WIDTH, color_system=None)


def shown(
    parts: list[str],
    layout: str,
    *,
    height: int = 500,
    pause: float = 1.0,
    longest_open: int = LONGEST_OPEN,
) -> Terminal:
    """The terminal behind an answer in these parts; `pause`: seconds from one to the next."""
    terminal, now = Terminal(WIDTH, height), [0.0]
    made: Any = (MarkdownLayout if layout == "markdown" else PlainLayout)(console())
    screen = FormattedScreen(
        terminal,  # type: ignore[arg-type]
        made,
        lambda: (WIDTH, height),
        lambda: now[0],
        longest_open,
    )
    for part in parts:
        now[0] += pause
        screen.add(part)
    screen.end()
    return terminal


@pytest.mark.parametrize("layout", ["markdown", "plain"])
@given(text=st.lists(st.sampled_from(PIECES), max_size=25).map("".join), data=st.data())
@settings(max_examples=60, deadline=None)
def test_streamed_or_at_once_the_screen_is_the_same(
    layout: str, text: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    streamed = shown(parts, layout)
    assert streamed.text == shown([text], layout).text
    assert not streamed.rewritten


@pytest.mark.parametrize("layout", ["markdown", "plain"])
def test_token_by_token_nothing_flickers(layout: str) -> None:
    streamed = shown(list(MARKDOWN), layout)
    assert streamed.text == shown([MARKDOWN], layout).text
    assert not streamed.rewritten


@pytest.mark.parametrize("layout", ["markdown", "plain"])
def test_what_the_terminal_echoes_moves_no_line(layout: str) -> None:
    """Ctrl-C shows as ^C where the cursor rests; at a change of width too."""
    for widths in ([], [30]):
        terminal, now = Terminal(WIDTH, 500), itertools.count()
        made: Any = (MarkdownLayout if layout == "markdown" else PlainLayout)(console())
        screen = FormattedScreen(
            terminal,  # type: ignore[arg-type]
            made,
            lambda terminal=terminal: (terminal.width, 500),
            lambda now=now: float(next(now)),
        )
        screen.add("Felix is a ")
        for width in widths:
            terminal.resize(width)
        terminal.write("^C")
        screen.add("member of ")
        terminal.write("^C")
        screen.end()
        assert [line.strip() for line in terminal.text if "^C" not in line] == [
            "Felix is a member of"
        ]


@pytest.mark.parametrize("layout", ["markdown", "plain"])
@given(widths=st.lists(st.integers(12, 60), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_after_a_resize_the_answer_stands_there_once(layout: str, widths: list[int]) -> None:
    """As if the terminal had had its last width from the beginning."""
    words = "Rivers are natural bodies of water that flow from higher to lower ground. ".split(" ")
    parts = [f"{word} " for word in words]

    def answer(resized: list[int]) -> list[str]:
        terminal, rich_console = Terminal(WIDTH, 500), console()
        made: Any = (MarkdownLayout if layout == "markdown" else PlainLayout)(rich_console)
        now = itertools.count()
        screen = FormattedScreen(
            terminal,  # type: ignore[arg-type]
            made,
            lambda: (terminal.width, 500),
            lambda: float(next(now)),
        )
        for number, part in enumerate(parts):
            if number < len(resized):
                rich_console.width = resized[number]
                terminal.resize(resized[number])
            screen.add(part)
        screen.end()
        return terminal.text

    assert answer(widths) == answer(widths[-1:])


@pytest.mark.parametrize(
    "parts", [["text\n", "#", "hashtag\n"], ["text\n", "-", "--\n"], ["1. a\n", "2", ".b\n"]]
)
def test_half_a_line_settles_nothing(parts: list[str]) -> None:
    assert shown(parts, "markdown").text == shown(["".join(parts)], "markdown").text


def test_words_are_not_broken_and_markdown_is_rendered() -> None:
    lines = shown([MARKDOWN], "markdown").text
    assert lines[0].strip() == "Gravity" and lines[1] == "" and "**" not in "".join(lines)
    words = {word for line in lines for word in line.split()}
    assert words == {"Gravity", "It", "is", "a", "force", "that", "pulls", "things", "together",
                     "•", "one", "two"}  # fmt: skip
    assert all(len(line) < WIDTH for line in lines)


def test_html_and_plain_text_lose_nothing() -> None:
    text = "Use Vec<T> and <b>bold</b>.\n\n<div>\nblock\n</div>\n"
    for layout in ("markdown", "plain"):
        together = " ".join(shown([text], layout).text)
        for word in ("Vec<T>", "<b>bold</b>.", "<div>", "block", "</div>"):
            assert word in together


def test_an_answer_longer_than_the_screen() -> None:
    text = "".join(f"line{n} of a long list\n" for n in range(60))
    terminal = shown([text[at : at + 7] for at in range(0, len(text), 7)], "plain", height=10)
    assert terminal.text == [f"line{n} of a long list" for n in range(60)]
    code = "```\n" + text + "```\n"
    terminal = shown([code[at : at + 7] for at in range(0, len(code), 7)], "markdown", height=10)
    assert [line.strip() for line in terminal.text if line] == text.splitlines()


def test_fast_answers_are_not_drawn_for_every_token() -> None:
    class Counting(MarkdownLayout):
        drawn = 0

        def lines(self, block: str) -> list[str]:
            Counting.drawn += 1
            return super().lines(block)

    screen = FormattedScreen(io.StringIO(), Counting(console()), lambda: (WIDTH, 20), lambda: 5.0)
    for letter in "many letters in no time at all":
        screen.add(letter)
    screen.end()
    assert Counting.drawn == 2


def test_where_no_terminal_is_text_passes_as_it_is() -> None:
    out = io.StringIO()
    make = screen_for(Console(file=out), plain=False)
    screen = make()
    assert isinstance(screen, PassingScreen)
    screen.add("**a** ")
    screen.add("\x1b[31mb")
    assert out.getvalue() == "**a** [31mb"
    screen.end()
    assert out.getvalue().endswith("b\n")


def test_answers_cannot_steer_the_terminal() -> None:
    assert drop_controls("a\x1b[2J\x07b\n\tc\x9b") == "a[2Jb\n\tc"
    assert drop_controls("a\u202eb\u2066c\u2069 \u05d0") == "abc \u05d0"


class SlowLayout(PlainLayout):
    """A character takes a tenth of a millisecond to lay out."""

    def __init__(self, now: list[float]) -> None:
        super().__init__(console())
        self._now = now

    def blocks(self, text: str) -> list[str]:
        self._now[0] += len(text) / 10_000
        return [text]


def test_drawing_takes_a_part_of_the_time_however_large_an_answer_is() -> None:
    now = [0.0]
    screen = FormattedScreen(io.StringIO(), SlowLayout(now), lambda: (WIDTH, 20), lambda: now[0])
    waited = 0.0
    for _ in range(2000):
        now[0] += 0.02
        waited += 0.02
        screen.add("word " * 4)
    assert now[0] < 1.5 * waited


# --- what has no end ------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["markdown", "plain"])
@given(text=st.lists(st.sampled_from(PIECES), max_size=40).map("".join), data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_long_block_is_cut_at_the_same_place_however_it_comes(
    layout: str, text: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    streamed = shown(parts, layout, longest_open=60)
    assert streamed.text == shown([text], layout, longest_open=60).text


@pytest.mark.parametrize("layout", ["markdown", "plain"])
def test_nothing_of_a_long_block_is_lost(layout: str) -> None:
    words = [f"word{n}" for n in range(400)]
    for text in (" ".join(words), "\n".join(words), "```py\n" + "\n".join(words) + "\n```\nend"):
        found = " ".join(shown([text], layout, longest_open=200).text).split()
        assert [word for word in found if word.startswith("word")] == words


def test_code_goes_on_as_code_and_a_table_has_its_head_again() -> None:
    code = "```\n" + "# no heading\n" * 40 + "```\n\n**bold**"
    lines = [line.strip() for line in shown([code], "markdown", longest_open=200).text if line]
    assert lines == ["# no heading"] * 40 + ["bold"]
    rows = "".join(f"| {n} | x |\n" for n in range(60))
    lines = shown(["| a | b |\n|---|---|\n" + rows], "markdown", longest_open=200).text
    assert "|" not in "".join(lines)
    assert [word for line in lines for word in line.split() if word.isdigit()] == [
        str(n) for n in range(60)
    ]


ENDLESS = {
    "line": "abc",
    "words": "word ",
    "lists": "- - - - - - - - ",
    "deep lists": "".join(" " * n + "- a\n" for n in range(0, 200, 2)),
    "quotes": ">>>>>>>>>>>>>>>>>>>> a\n",
    "table": "|" + "a|" * 300 + "\n|" + "-|" * 300 + "\n" + ("|" + "b|" * 300 + "\n") * 100,
    "emphasis": "*a **b ",
    "brackets": "[[[[[[[[",
    "links": "[a](b",
    "ticks": "`" * 5 + " " + "`" * 7,
    "entities": "&amp;&#x41;",
    "html": "<a <b ",
    "code": "```\nx\n",
}


@pytest.mark.parametrize("layout", ["markdown", "plain"])
@pytest.mark.parametrize("name", ENDLESS)
def test_what_is_laid_out_at_once_has_a_limit(layout: str, name: str) -> None:
    """However long a block or a piece of it is; so a ctrl-c behind it waits for little."""
    sizes: list[int] = []

    class Watched(MarkdownLayout if layout == "markdown" else PlainLayout):  # type: ignore[misc]
        def blocks(self, text: str) -> list[str]:
            sizes.append(len(text))
            return super().blocks(text)

        def lines(self, block: str) -> list[str]:
            sizes.append(len(block))
            return super().lines(block)

    out = io.StringIO()
    screen = FormattedScreen(out, Watched(console()), lambda: (WIDTH, 20), lambda: 0.0)
    text = (ENDLESS[name] * (2 * LONGEST_OPEN))[: 2 * LONGEST_OPEN]
    screen.add(text)
    screen.end()
    assert max(sizes) <= LONGEST_OPEN
    assert len(out.getvalue()) < 200 * len(text)
