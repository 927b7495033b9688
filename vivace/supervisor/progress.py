"""How far the start has come: a bar on a terminal, a line per stage elsewhere."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

log = logging.getLogger(__name__)

LINE_SECONDS = 5.0
"""A stage that takes longer than this says how far it is."""


class StartProgress:
    """Shows `update(stage, fraction)`; `close` ends the display."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stage = ""
        self._said = 0.0
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def update(self, stage: str, fraction: float) -> None:
        if self._stream.isatty():
            self._draw(stage, fraction)
        else:
            self._say(stage, fraction)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _say(self, stage: str, fraction: float) -> None:
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._said = stage, now
            log.info("%s", stage)
        elif now - self._said > LINE_SECONDS and 0 < fraction < 1:
            self._said = now
            log.info("%s: %.0f %%", stage, 100 * fraction)

    def _draw(self, stage: str, fraction: float) -> None:
        if self._bar is None:
            self._bar = open_bar(self._stream)
            self._bar.start()
        if self._task is None or stage != self._stage:
            if self._task is not None:
                self._bar.update(self._task, completed=1.0)
            self._stage = stage
            self._task = self._bar.add_task(stage, total=1.0)
        self._bar.update(self._task, completed=fraction)


def open_bar(stream: TextIO) -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(file=stream),
        transient=True,
    )
