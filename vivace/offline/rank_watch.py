"""Looks on at the steps of an engine of several ranks: where one of them hangs, a step never ends.

A server's supervisor replaces such an engine; in a program its ranks are ended, so that the step
raises.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Mapping

from vivace.observability.awaited_processes import describe_awaited, find_members, look_at

LOOK_SECONDS = 0.5


def ranks_of_process() -> dict[int, str]:
    """Of all engines in this process: number -> name."""
    found = find_members([os.getpid()])
    return {pid: name for pid, name in found.items() if pid != os.getpid()}


class RankWatch:
    """`ranks`: number -> name, of processes that are there; `seconds`: what a step may take."""

    def __init__(self, ranks: Mapping[int, str], seconds: float) -> None:
        self.cause = ""
        """why the ranks were ended"""
        self._ranks = ranks
        self._files = [os.pidfd_open(pid) for pid in ranks]
        self._seconds = seconds
        self._begun: float | None = None
        self._ended = threading.Event()
        if ranks and seconds:
            threading.Thread(target=self._run, name="ranks", daemon=True).start()

    def begin(self) -> None:
        self._begun = time.monotonic()

    def end(self) -> None:
        self._begun = None

    def close(self) -> None:
        self._ended.set()
        while self._files:
            os.close(self._files.pop())

    def _run(self) -> None:
        while not self._ended.wait(min(LOOK_SECONDS, self._seconds)):
            begun = self._begun
            if begun is not None and time.monotonic() - begun > self._seconds:
                self._kill()
                return

    def _kill(self) -> None:
        who = describe_awaited([look_at({os.getpid(): "the program", **self._ranks})])
        self.cause = f"a step took more than {self._seconds:g} s" + (f": {who}" if who else "")
        for file in list(self._files):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(file, signal.SIGKILL)
