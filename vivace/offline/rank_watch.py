"""Looks on at the steps of an engine of several ranks: where one of them hangs, a step never ends.

A server's supervisor replaces such an engine; in a program its ranks are ended, so that the step
raises.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

from vivace.engine.executor import LocalRank
from vivace.observability.awaited_processes import describe_awaited, look_at
from vivace.observability.watchdog import Watchdog

LOOK_SECONDS = 0.5


class RankWatch:
    """`ranks`: of one engine; `seconds`: what a step of it may take, 0: whatever it takes."""

    def __init__(self, ranks: Sequence[LocalRank], seconds: float) -> None:
        self.cause = ""
        """why the ranks were ended"""
        self._ranks = ranks
        self._seconds = seconds
        self._watchdog = Watchdog(hard=seconds, soft=None)
        self._watchdog.reset(time.monotonic())
        self._steps = 0
        self._idle = True
        self._ended = threading.Event()
        if ranks and seconds:
            threading.Thread(target=self._run, name="ranks", daemon=True).start()

    def begin(self) -> None:
        self._steps, self._idle = self._steps + 1, False

    def end(self) -> None:
        self._idle = True

    def close(self) -> None:
        self._ended.set()

    def look(self, now: float) -> bool:
        """Whether the ranks were ended. To be called often; `now`: seconds, monotonic."""
        steps = self._steps
        if self._watchdog.check(steps, self._idle, now) != "hard":
            return False
        who = self._find_awaited()
        if self._steps != steps or self._idle:  # it has come meanwhile
            return False
        self._kill(who)
        return True

    def _run(self) -> None:
        while not self._ended.wait(min(LOOK_SECONDS, self._seconds)):
            if self.look(time.monotonic()):
                return

    def _find_awaited(self) -> str:
        members = {rank.pid: rank.name for rank in self._ranks}
        return describe_awaited([look_at({os.getpid(): "the program", **members})])

    def _kill(self, who: str) -> None:
        self.cause = f"a step that took more than {self._seconds:g} s" + (f": {who}" if who else "")
        for rank in self._ranks:
            rank.kill()
