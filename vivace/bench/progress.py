"""How far a run is: a bar with the time left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TextIO

from vivace.echo import echo_off

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

BAR_SECONDS = 0.5
LINE_SECONDS = 30.0


@dataclass
class Counter:
    """Answers so far."""

    total: int
    done: int = 0
    failed: int = 0
    tokens: int = 0
    """output tokens of the answers"""

    def add(self, tokens: int, success: bool) -> None:
        self.done += 1
        self.tokens += tokens
        self.failed += not success

    def speed(self, seconds: float) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        if not self.done:  # what comes of an answer is counted when it is complete
            return "none is complete yet"
        return f"{self.tokens / max(seconds, 1e-9):.0f} output tok/s{failed}"


class Display(Protocol):
    pause: float
    """seconds between two updates"""

    def update(self, counter: Counter, seconds: float) -> None: ...

    def close(self, counter: Counter, seconds: float) -> None: ...


class ProgressBar:
    """Requests, time taken, time left, tokens per second."""

    pause = BAR_SECONDS

    def __init__(self, counter: Counter, file: TextIO) -> None:
        self._progress, self._task = open_bar(counter.total, file)
        self._progress.start()

    def update(self, counter: Counter, seconds: float) -> None:
        speed = counter.speed(seconds)
        self._progress.update(self._task, completed=counter.done, speed=speed, refresh=True)

    def close(self, counter: Counter, seconds: float) -> None:
        self.update(counter, seconds)
        self._progress.stop()


class ProgressLines:
    pause = LINE_SECONDS

    def __init__(self, counter: Counter, file: TextIO) -> None:
        self._file = file

    def update(self, counter: Counter, seconds: float) -> None:
        text = f"{counter.done}/{counter.total} requests after {seconds:.0f} s"
        print(f"{text}, {counter.speed(seconds)}", file=self._file, flush=True)

    def close(self, counter: Counter, seconds: float) -> None:
        pass


def open_bar(total: int, file: TextIO) -> tuple[Progress, TaskID]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    # No thread of its own, which would disturb what is measured: the event loop draws.
    progress = Progress(
        MofNCompleteColumn(),
        TextColumn("requests"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[speed]}"),
        console=Console(file=file),
        auto_refresh=False,
    )
    return progress, progress.add_task("", total=total, speed="")


@contextlib.contextmanager
def show_progress(counter: Counter, enabled: bool, file: TextIO | None = None) -> Iterator[None]:
    """Shows the counter on `file` (default: stderr) while the block runs in an event loop, and how
    far it was when it is interrupted."""
    stream = file or sys.stderr
    try:
        with echo_off(stream), drawn(counter, stream) if enabled else contextlib.nullcontext():
            yield
    except asyncio.CancelledError:
        text = f"stopped after {counter.done} of {counter.total} requests; nothing is recorded"
        print(text, file=stream, flush=True)
        raise


@contextlib.contextmanager
def drawn(counter: Counter, stream: TextIO) -> Iterator[None]:
    display: Display = (ProgressBar if stream.isatty() else ProgressLines)(counter, stream)
    started = time.monotonic()

    async def show() -> None:
        while True:
            await asyncio.sleep(display.pause)
            display.update(counter, time.monotonic() - started)

    task = asyncio.get_running_loop().create_task(show())
    try:
        yield
    finally:
        task.cancel()
        display.close(counter, time.monotonic() - started)
