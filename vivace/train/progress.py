"""How far training is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType, TracebackType
from typing import TextIO

LINE_SECONDS = 20.0
BAR_SECONDS = 0.5


class TrainingProgress:
    """One stage after the other. Ctrl-C is noted in `interrupted`, and pressed again it ends the
    program at once."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file or sys.stderr
        self._stage = ""
        self._told = 0.0
        self._bar = None
        self.interrupted = False

    def __enter__(self) -> TrainingProgress:
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        if self._file.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[text]}"),
                console=Console(file=self._file),
                auto_refresh=False,
            )
            self._task = self._bar.add_task("", total=1.0, text="")
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGINT, self._before)
        if self._bar is not None:
            self._bar.stop()

    def update(self, stage: str, fraction: float, text: str = "") -> None:
        """Now and then; `say` is for what everybody is to see."""
        now, new = time.monotonic(), stage != self._stage
        pause = LINE_SECONDS if self._bar is None else BAR_SECONDS
        if not new and now - self._told < pause:
            return
        self._stage, self._told = stage, now
        if self._bar is None:
            print(f"{stage}: {fraction:4.0%}  {text}", file=self._file, flush=True)
        else:
            self._bar.update(
                self._task, description=stage, completed=fraction, text=text, refresh=True
            )

    def say(self, text: str) -> None:
        if self._bar is None:
            print(text, file=self._file, flush=True)
        else:
            self._bar.console.print(text, highlight=False, markup=False)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
