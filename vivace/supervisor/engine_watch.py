"""Looks after the engine's progress: first the stacks of a stuck engine, then its end."""

from __future__ import annotations

import logging
import signal

from vivace.supervisor.child import Child
from vivace.supervisor.pulse import Pulse, Watchdog

log = logging.getLogger(__name__)

STACK_DUMP_SECONDS = 1.0
"""Between asking a stuck engine for its stacks and killing it."""


class EngineWatch:
    """Times are seconds of one monotonic clock."""

    def __init__(self, pulse: Pulse, watchdog: Watchdog) -> None:
        self._pulse = pulse
        self._watchdog = watchdog
        self._kill_at: float | None = None

    def restart(self, now: float) -> None:
        """A new engine starts, or has become ready."""
        self._kill_at = None
        self._watchdog.reset(now)

    def look(self, engine: Child, now: float) -> None:
        """To be called often, while the engine serves."""
        if self._kill_at is not None:
            if now >= self._kill_at:
                engine.kill(f"it made no progress for {self._watchdog.stalled(now):.0f} s")
            return
        alarm = self._watchdog.check(*self._pulse.look(), now)
        if alarm == "quiet":
            return
        log.error(
            "The engine has made no progress for %.1f s while it has work; its stacks follow",
            self._watchdog.stalled(now),
        )
        engine.signal(signal.SIGUSR1)  # faulthandler prints the stacks
        if alarm == "hard":
            self._kill_at = now + STACK_DUMP_SECONDS
