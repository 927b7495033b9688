"""Answers on the screen while they come."""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Callable
from typing import IO, Protocol

from rich.cells import cell_len
from rich.console import Console

from vivace.chat.layout import CODES, Layout, MarkdownLayout, PlainLayout

REDRAW_SECONDS = 0.05
"""at most so often; nobody reads faster"""
LONGEST_OPEN = 8 << 10
"""characters that may change while an answer grows; a block that is longer is cut"""
REST = 4
"""Between two drawings, in times of what the last one took: however large the answer is, drawing
takes a fifth of the time at most."""


class Screen(Protocol):
    """One answer."""

    def add(self, text: str) -> None: ...

    def end(self) -> None:
        """Show all of it, and begin a new line."""
        ...


def screen_for(console: Console, *, plain: bool) -> Callable[[], Screen]:
    """What makes the screen of an answer: formatted in a terminal, as it comes anywhere else."""
    if not console.is_terminal or console.is_dumb_terminal:
        return lambda: PassingScreen(console.file)
    layout = PlainLayout(console) if plain else MarkdownLayout(console)
    return lambda: FormattedScreen(console.file, layout, lambda: console.size)


class PassingScreen:
    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def add(self, text: str) -> None:
        self._out.write(drop_controls(text))
        self._out.flush()

    def end(self) -> None:
        self._out.write("\n")
        self._out.flush()


class FormattedScreen:
    """Text grows at its end, so what was shown stays where it is: only lines that have changed are
    written anew, all in one piece, and blocks that are complete never again."""

    def __init__(
        self,
        out: IO[str],
        layout: Layout,
        size: Callable[[], tuple[int, int]],
        clock: Callable[[], float] = time.monotonic,
        longest_open: int = LONGEST_OPEN,
    ) -> None:
        self._layout = layout
        self._longest_open = longest_open
        self._lines = ChangingLines(out, size)
        self._clock = clock
        self._next_drawing = -math.inf
        self._text = ""
        """what is not yet complete"""
        self._begun = False
        """a complete block stands above, and the next one keeps away from it"""

    def add(self, text: str) -> None:
        text = drop_controls(text)
        while text:
            room = self._longest_open - len(self._text)
            self._text += text[:room]
            text = text[room:]
            begin = self._clock()
            full = len(self._text) >= self._longest_open
            if full or begin >= self._next_drawing:
                self._draw()
                now = self._clock()
                self._next_drawing = now + max(REDRAW_SECONDS, REST * (now - begin))
            if len(self._text) >= self._longest_open:
                self._cut()

    def end(self) -> None:
        self._draw()

    def _cut(self) -> None:
        """All that is open is one block: its first part stays as it is, the rest begins anew."""
        first, self._text = self._layout.cut(self._text)
        lines = self._compose([first])
        self._lines.show(lines)
        self._lines.settle(len(lines))
        self._begun = False

    def _draw(self) -> None:
        blocks = self._layout.blocks(self._text)
        # A block is complete when the first line of the next one is.
        whole_lines = self._text[: self._text.rfind("\n") + 1]
        complete = max(0, len(self._layout.blocks(whole_lines)) - 1)
        settled = self._compose(blocks[:complete])
        self._lines.show(settled + self._compose(blocks[complete:], above=bool(settled)))
        if complete:
            self._lines.settle(len(settled))
            self._begun = self._begun or bool(settled)
            self._text = "".join(blocks[complete:])

    def _compose(self, blocks: list[str], above: bool = False) -> list[str]:
        lines: list[str] = []
        for block in blocks:
            shown = self._layout.lines(block)
            if shown and self._layout.gap and (lines or above or self._begun):
                lines.append("")
            lines += shown
        return lines


class ChangingLines:
    """Lines at the end of the terminal's output. The cursor rests in the line below them, in any
    column: what is typed (^C) may show there.
    `size`: the terminal's columns and rows."""

    def __init__(self, out: IO[str], size: Callable[[], tuple[int, int]]) -> None:
        self._out = out
        self._size = size
        self._width = size()[0]
        self._shown: list[str] = []

    def show(self, lines: list[str]) -> None:
        """Make them what stands there. What has left the screen at its top stays as it was."""
        width, height = self._size()
        if width != self._width:
            self._remove(width, height)
        pairs = zip(self._shown, lines, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        first = max(same, len(self._shown) - max(height - 1, 1))
        up = len(self._shown) - first
        fewer = len(lines) < len(self._shown)
        if not up and first >= len(lines):
            return
        move = f"\r\x1b[{up}A" if up else "\r"
        pairs = itertools.zip_longest(lines[first:], self._shown[first : len(lines)])
        text = "".join("\n" if line == old else f"{line}\x1b[K\n" for line, old in pairs)
        self._shown = lines
        self._out.write(move + text + ("\x1b[J" if fewer else ""))
        self._out.flush()

    def _remove(self, width: int, height: int) -> None:
        """The terminal has another width, and has broken what is too long for it."""
        self._width = width
        cells = (cell_len(CODES.sub("", line)) for line in self._shown)
        rows = sum(max(1, math.ceil(count / width)) for count in cells)
        self._shown = []
        if rows:
            self._out.write(f"\r\x1b[{min(rows, max(height - 1, 1))}A\x1b[J")

    def settle(self, count: int) -> None:
        """The first `count` lines will not change any more."""
        self._shown = self._shown[count:]


STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""control characters, those that turn the order of what is behind them (a name could show as
another), and halves of surrogate pairs"""


def drop_controls(text: str) -> str:
    """Text without what would steer the terminal, or stop the program that writes it: a server or
    a model said it."""
    return STEERING.sub("", text)


def print_note(console: Console, text: str, *, style: str = "dim") -> None:
    """Print what is no answer: words of ours, in which a server's may be."""
    console.print(drop_controls(text), style=style, markup=False)
