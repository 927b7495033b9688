"""Where the start is shown: a terminal with one bar below whole lines, or plain lines elsewhere.

One object owns the terminal. Log lines, the children's lines and the summary pass through it, so
a line never begins inside the bar and the bar never erases a line.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TextIO

from vivace.config.process_environment import process_environment
from vivace.launch.summary import plain_lines, styled_lines
from vivace.terminal import terminal_width, wrap_text

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from vivace.launch.summary import Summary

log = logging.getLogger(__name__)

LINE_SECONDS = 5.0
"""A stage that takes longer than this says how far it is."""


class StartScreen(Protocol):
    """`update` shows how far the start has come, `close` ends that; lines may come at any time."""

    def write(self, text: str, /) -> int:
        """Whole lines, each with its end."""
        ...

    def flush(self) -> None: ...

    @property
    def update(self) -> Callable[[str, float], None]:
        """(stage, fraction of it that is done)"""
        ...

    def show(self, summary: Summary) -> None: ...

    def close(self) -> None: ...


def make_screen(stream: TextIO) -> StartScreen:
    return TerminalScreen(stream) if is_terminal(stream) else PlainScreen(stream)


def is_terminal(stream: TextIO) -> bool:
    """Whether a bar can be drawn there."""
    return stream.isatty() and process_environment().get("TERM", "dumb") != "dumb"


class StageLines:
    """A log line per stage."""

    def __init__(self) -> None:
        self._stage = ""
        self._said = 0.0

    def update(self, stage: str, fraction: float) -> None:
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._said = stage, now
            log.info("%s", stage)
        elif now - self._said > LINE_SECONDS and 0 < fraction < 1:
            self._said = now
            log.info("%s: %.0f %%", stage, 100 * fraction)


class PlainScreen:
    """Lines only."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.update = StageLines().update

    def write(self, text: str, /) -> int:
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def show(self, summary: Summary) -> None:
        self.write("\n".join(plain_lines(summary)) + "\n")
        self.flush()

    def close(self) -> None:
        """Nothing is left open."""


class TerminalScreen:
    """One bar, at the bottom, until the start is over: then it is erased, and the stages of a new
    engine are lines."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._stream = stream
        self._console = Console(file=stream, force_terminal=True)
        self._bar: Bar | None = None
        self.update = self._draw

    def write(self, text: str, /) -> int:
        lines = wrap_text(text.removesuffix("\n"), terminal_width(self._stream))
        if self._bar is None:
            self._stream.write(f"{lines}\n")  # costs far less than rich does
        else:
            self._console.out(lines, highlight=False)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def show(self, summary: Summary) -> None:
        for line in styled_lines(summary, self._console.width):
            self._console.print(line, soft_wrap=True)

    def close(self) -> None:
        self.update = StageLines().update
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _draw(self, stage: str, fraction: float) -> None:
        if self._bar is None:
            self._bar = self._open_bar(stage)
        (task,) = self._bar.tasks
        self._bar.update(task.id, description=stage, completed=fraction)

    def _open_bar(self, stage: str) -> Bar:
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        bar.add_task(stage, total=1.0)
        bar.start()
        return bar
