"""The frontends of a server: a place for each, taken by another one when it dies."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from vivace.protocol.messages import Draining, EngineDown, Ready
from vivace.supervisor.child import Child
from vivace.supervisor.messages import Setup, Started, Stop
from vivace.supervisor.plan import SPAWN_RETRY_SECONDS, Plan
from vivace.supervisor.restart_policy import Backoff, FrontendStarts
from vivace.supervisor.watch import FrontendWatch

log = logging.getLogger(__name__)


class Frontends:
    """All of them, whatever becomes of one. Times are seconds of time.monotonic()."""

    def __init__(self, plan: Plan) -> None:
        self.children: list[Child] = []
        self._plan = plan
        self._watch = FrontendWatch(plan.memory)
        self._starts = FrontendStarts(plan.frontends, Backoff(plan.crashes, plan.crash_window))

    @property
    def all_serve(self) -> bool:
        return bool(self.children) and all(child.serving for child in self.children)

    @property
    def indexes(self) -> list[int]:
        """of those that serve"""
        return [child.index for child in self.children if child.serving]

    @property
    def busy(self) -> bool:
        """Whether one serves that has live requests, as far as is known."""
        return any(child.serving and child.live != 0 for child in self.children)

    def start_due(self, now: float) -> Iterator[tuple[Child, Setup]]:
        """Spawn those whose time has come; each is to be told its setup."""
        for index, place in self._starts.take_due(now):
            setup = self._plan.frontend_setup(index, place)
            child = self._plan.spawn("frontend", setup)
            if child is None:
                self._starts.add(place, now + SPAWN_RETRY_SECONDS)
            else:
                self.children.append(child)
                yield child, setup

    def on_serving(self, child: Child) -> None:
        child.serving = True
        self._starts.record_serving()

    def remove(self, child: Child) -> None:
        """It has died."""
        self.children.remove(child)
        self._watch.on_exit(child)

    def replace(self, child: Child, cause: str) -> bool:
        """Have another one started in its place, now or later; False: none comes to serve."""
        wait = self._starts.record_death(child.place, child.serving, time.monotonic())
        if self._starts.hopeless and not self.indexes:
            return False
        when = f"in {wait:.0f} s" if wait else "now"
        log.error("The %s died: %s. Another one is started %s", child.name, cause, when)
        return True

    def broadcast(self, message: Ready | EngineDown | Started | Draining | Stop) -> None:
        for child in self.children:
            child.control.send(message)

    def check(self, now: float) -> None:
        """To be called often: who is stuck is ended."""
        self._watch.check(self.children, now)
