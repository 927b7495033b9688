"""A warning for every garbage collection that holds the process up."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


class PauseWatch:
    """A callback for `gc.callbacks`; logs collections that took `threshold` seconds or longer."""

    def __init__(self, threshold: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._threshold = threshold
        self._clock = clock
        self._started: float | None = None
        self.warned = 0

    def __call__(self, phase: str, details: dict[str, int]) -> None:
        if phase == "start":
            self._started = self._clock()
            return
        if self._started is None:
            return
        seconds = self._clock() - self._started
        self._started = None
        if seconds >= self._threshold:
            self.warned += 1
            log.warning(
                "Garbage collection of generation %d took %.3f s and freed %d objects; "
                "--gc-warning-threshold-secs is %.3f",
                details["generation"],
                seconds,
                details["collected"],
                self._threshold,
            )


def watch_gc(threshold: float) -> PauseWatch | None:
    """Start watching this process; 0 means off and returns None."""
    if threshold <= 0:
        return None
    watch = PauseWatch(threshold)
    gc.callbacks.append(watch)
    return watch
