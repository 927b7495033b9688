"""Where the time of a start went: the stages of all processes, as a table and as JSON."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from vivace.files import NEVER_WAIT
from vivace.observability.timeline import Stage

log = logging.getLogger(__name__)

SUPERVISOR = "supervisor"
SHORTEST = 0.005
"""seconds of a stage in the table"""


class StartupProfile:
    """Times are shown from the start of the supervisor's process."""

    def __init__(self) -> None:
        self._stages: dict[str, list[Stage]] = {}

    def add(self, process: str, stages: list[Stage]) -> None:
        self._stages[process] = stages

    def table(self) -> list[str]:
        """Without what took no time, in 80 columns."""
        lines = [f"  {'process':12} {'stage':34} {'from':>7} {'to':>7} {'seconds':>8}"]
        rows = [row for row in self.rows() if row["end"] - row["begin"] >= SHORTEST]
        lines += [
            f"  {row['process']:12} {row['stage']:34} {row['begin']:7.2f} {row['end']:7.2f} "
            f"{row['end'] - row['begin']:8.2f}"
            for row in rows
        ]
        return lines

    def write(self, path: Path) -> None:
        """As a list of objects; when the file cannot be written the log says so. A pipe that
        nobody reads is not waited for."""
        data = msgspec.json.format(msgspec.json.encode(self.rows()), indent=2)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NEVER_WAIT
            with os.fdopen(os.open(path, flags, 0o666), "wb", buffering=0) as file:
                file.write(data)
        except OSError as error:
            log.error("--startup-profile-file %s: %s", path, error.strerror)

    def rows(self) -> list[dict]:
        """`process`, `stage`, `begin`, `end`; the supervisor's first, then as they were started."""
        zero = self._stages[SUPERVISOR][0].begin
        order = sorted(self._stages.items(), key=lambda item: item[1][0].begin)
        return [
            {
                "process": process,
                "stage": stage.name,
                "begin": round(stage.begin - zero, 3),
                "end": round(stage.end - zero, 3),
            }
            for process, stages in order
            for stage in stages
        ]
