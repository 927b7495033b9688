"""Looks after the children's progress: first the stacks of who is stuck, then its end."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterable
from typing import Protocol

from vivace.observability.watchdog import PAUSE_SECONDS, Watchdog
from vivace.protocol.heartbeat import IDLE, EngineProgress, FrontendHeartbeat
from vivace.protocol.shared_memory import SharedMemory
from vivace.supervisor.child import Child

log = logging.getLogger(__name__)

STACK_DUMP_SECONDS = 1.0
"""Between asking who is stuck for its stacks and killing it."""
FRONTEND_SOFT_SECONDS = 5.0
FRONTEND_HARD_SECONDS = 30.0
"""A frontend's loop turns every half second; one that does not for so long serves nobody."""

STALL_GRACE_SECONDS = 5.0
"""So long may an engine be stalled while it drains: its requests will not end."""


class Inquiry(Protocol):
    """Finds whom those who are stuck wait for."""

    def begin(self) -> None:
        """Ask those who answer later."""
        ...

    def stopped(self) -> str:
        """Who is stopped, as far as is known now; empty: nobody"""
        ...

    def result(self) -> str:
        """Who is awaited, once others had STACK_DUMP_SECONDS to answer; empty: nobody, or nobody
        can see it"""
        ...


class NoInquiry:
    """Of who waits for nobody."""

    def begin(self) -> None: ...

    def stopped(self) -> str:
        return ""

    def result(self) -> str:
        return ""


NO_INQUIRY = NoInquiry()


class ChildWatch:
    """One child and its watchdog. Times are seconds of one monotonic clock."""

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog
        self._kill_at: float | None = None

    def restart(self, now: float) -> None:
        self._kill_at = None
        self._watchdog.reset(now)

    def check(
        self,
        child: Child,
        beats: int,
        idle: bool,
        now: float,
        inquiry: Inquiry = NO_INQUIRY,
    ) -> None:
        """To be called often, while the child serves."""
        if self._kill_at is not None:
            if now >= self._kill_at:
                stalled = self._watchdog.stalled_seconds(now)
                cause = f": {found}" if (found := inquiry.result()) else ""
                child.kill(f"it made no progress for {stalled:.0f} s{cause}")
            return
        alarm = self._watchdog.check(beats, idle, now)
        if alarm == "quiet":
            return
        log.error(
            "The %s has made no progress for %.1f s; its stacks follow",
            child.name,
            self._watchdog.stalled_seconds(now),
        )
        child.signal(signal.SIGUSR1)  # faulthandler prints the stacks
        if alarm == "hard":
            self._kill_at = now + STACK_DUMP_SECONDS
            inquiry.begin()


class EngineWatch:
    """The engine: says when it is stalled and when it goes on, and ends what stays stuck."""

    def __init__(self, progress: EngineProgress, watchdog: Watchdog) -> None:
        self._progress = progress
        self._child = ChildWatch(watchdog)
        self._stalled_at: float | None = None

    def restart(self, now: float) -> None:
        """A new engine starts, or has become ready."""
        self._stalled_at = None
        self._child.restart(now)

    def expect_reaction(self) -> None:
        """To be called before a command is sent: an engine at rest that takes no note is stalled.
        (Afterwards it may rest again.)"""
        self._progress.mark_asked()

    def check(self, engine: Child, now: float, *, draining: bool, inquiry: Inquiry) -> None:
        seen = self._progress.activity()
        self._child.check(engine, seen.beats, seen.kind == IDLE, now, inquiry)
        self._tell(self._progress.stall(), now, inquiry)
        if (
            draining
            and self._stalled_at is not None
            and now > self._stalled_at + STALL_GRACE_SECONDS
        ):
            engine.kill("it made no progress while requests were drained")

    def _tell(self, stall: str, now: float, inquiry: Inquiry) -> None:
        if stall and self._stalled_at is None:
            self._stalled_at = now
            why = f": {stopped}" if (stopped := inquiry.stopped()) else ""
            log.warning("Stalled: %s%s. /health answers 503 until it goes on", stall, why)
        elif not stall and self._stalled_at is not None:
            log.warning("The engine goes on, %.1f s after that", now - self._stalled_at)
            self._stalled_at = None


class StartWatch:
    """An engine that starts: says who is stopped meanwhile, and who is awaited where it has not got
    on for `limit` seconds (None, 0: whatever it takes). Only who is stopped ends the start: others
    may just be slow. Times are seconds."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._since = self._looked = self._told = 0.0
        self._stopped, self._asked = "", False

    def restart(self, now: float) -> None:
        self._since = self._looked = self._told = now
        self._stopped, self._asked = "", False

    def check(self, engine: Child, now: float, inquiry: Inquiry) -> None:
        """To be called often, until it is ready."""
        if now < self._looked + STACK_DUMP_SECONDS:
            return
        since = now if now > self._looked + PAUSE_SECONDS else max(self._since, engine.progressed)
        if since != self._since:
            self._since, self._told, self._asked = since, since, False
        self._looked = now
        self._tell_stopped(inquiry.stopped())
        if self._asked:
            self._conclude(engine, now, inquiry)
        elif self._limit and now >= self._told + self._limit:
            self._asked = True
            inquiry.begin()

    def _tell_stopped(self, stopped: str) -> None:
        if stopped and stopped != self._stopped:
            log.warning("While the engine starts, %s, and all others wait for it", stopped)
        self._stopped = stopped

    def _conclude(self, engine: Child, now: float, inquiry: Inquiry) -> None:
        stage = f" ({engine.stage})" if engine.stage else ""
        text = f"it has not got on with its start for {now - self._since:.0f} s{stage}"
        if stopped := inquiry.stopped():
            engine.kill(f"{text}: {stopped}")
        elif found := inquiry.result():
            log.error("The %s: %s: %s", engine.name, text, found)
        else:
            log.warning("The %s: %s", engine.name, text)
        self._told, self._asked = now, False


class FrontendWatch:
    """The frontends: a heartbeat each, by place."""

    def __init__(self, memory: SharedMemory) -> None:
        places = range(memory.places)
        self._heartbeats = [FrontendHeartbeat(memory.heartbeat(place)) for place in places]
        self._watches: dict[Child, ChildWatch] = {}

    def check(self, frontends: Iterable[Child], now: float) -> None:
        serving = [child for child in frontends if child.serving]
        for child in self._watches.keys() - serving:
            del self._watches[child]
        for child in serving:
            if child not in self._watches:
                watchdog = Watchdog(hard=FRONTEND_HARD_SECONDS, soft=FRONTEND_SOFT_SECONDS)
                self._watches[child] = ChildWatch(watchdog)
                self._watches[child].restart(now)
            beats = self._heartbeats[child.place].last_beat
            self._watches[child].check(child, beats, False, now)

    def on_exit(self, child: Child) -> None:
        """Its place is empty; nothing is in progress there."""
        self._heartbeats[child.place].end()
