"""Start, watch, restart and stop the processes of one server.

One thread, one selector: children's messages and deaths, signals and the clock come in, commands
to children go out. A child's death is seen at once (the end of its line), whatever killed it.
"""

from __future__ import annotations

import logging
import selectors
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vivace.errors import CANNOT_START
from vivace.protocol.channel import SUPERVISOR
from vivace.protocol.control import Capacity, Command, Down, Drain, Ready, Reply
from vivace.protocol.pulse import EngineProgress, FrontendPulse
from vivace.protocol.request import KEY_SHIFT
from vivace.protocol.shared_memory import SharedMemory
from vivace.supervisor import signals
from vivace.supervisor.budget import CrashBudget
from vivace.supervisor.child import Child, process_command, spawn
from vivace.supervisor.child import Command as SpawnCommand
from vivace.supervisor.line import LineClosed
from vivace.supervisor.messages import (
    Draining,
    Failure,
    FrontendGone,
    Progress,
    Serving,
    Setup,
    Stop,
    Warm,
    WarmUp,
)
from vivace.supervisor.watch import EngineWatch, FrontendWatch, Watchdog

log = logging.getLogger(__name__)

Phase = Literal["starting", "serving", "draining", "stopping"]
FAILED = 1
STOP_GRACE_SECONDS = 5.0
SAME_SIGNAL_SECONDS = 0.3
"""Wrappers such as `timeout` signal a process and then its group: that is one wish, not two."""
FINAL_WORDS_SECONDS = 1.0
"""For the frontends to tell their clients that the server stops."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run. Times are seconds."""

    config: bytes
    frontends: int
    listener: socket.socket
    run_dir: Path
    memory: SharedMemory
    """with a place for each frontend"""
    warm_up: bool
    watchdog: float | None
    soft_watchdog: float | None
    drain: float = 60.0
    crashes: int = 3
    crash_window: float = 600.0
    command: SpawnCommand = process_command
    tick: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """What the user sees of a start: its progress, and the moment it is complete."""

    progress: Callable[[str, float], None]
    ready: Callable[[Capacity], None]


class Supervisor:
    """Runs a plan until it is told to stop or cannot go on; `run` returns the exit code.

    `engine`: a child spawned ahead, so that it imports while the configuration is worked out."""

    def __init__(self, plan: Plan, hooks: Hooks, engine: Child | None = None) -> None:
        self._plan = plan
        self._first_engine = engine
        self._hooks = hooks
        self._phase: Phase = "starting"
        self._epoch = 0
        self._next_index = plan.frontends
        self._engine: Child | None = None
        self._frontends: list[Child] = []
        self._ready: Ready | None = None
        self._warming = False
        self._announced = False
        self._budget = CrashBudget(plan.crashes, plan.crash_window)
        watchdog = Watchdog(hard=plan.watchdog, soft=plan.soft_watchdog)
        self._watch = EngineWatch(EngineProgress(plan.memory), watchdog)
        self._frontend_watch = FrontendWatch(
            [FrontendPulse(plan.memory.pulse(place)) for place in range(plan.memory.places)]
        )
        self._selector = selectors.DefaultSelector()
        self._down_since: float | None = None
        self._deadline: float | None = None
        """when the present phase is cut short"""
        self._signals = 0
        self._deaf_until = 0.0
        self._code: int | None = None

    def run(self) -> int:
        with signals.caught(self._selector, self._on_signal):
            try:
                self._start_engine(self._first_engine)
                for index in range(self._plan.frontends):
                    self._start_frontend(index, place=index)
                while not self._is_over():
                    for key, _ in self._selector.select(self._plan.tick):
                        key.data()
                    self._tick(time.monotonic())
            finally:
                self._kill_everything()
        return self._code or 0

    # -- children ---------------------------------------------------------------------------------

    def _start_engine(self, engine: Child | None = None) -> None:
        frontends = [child.index for child in self._frontends]
        setup = Setup(
            config=self._plan.config,
            run_dir=str(self._plan.run_dir),
            frontends=frontends or list(range(self._plan.frontends)),
            epoch=self._epoch,
            memory=self._plan.memory.descriptor,
        )
        self._watch.restart(time.monotonic())
        engine = engine or spawn("engine", self._plan.command, self._plan.memory.descriptor)
        self._engine = self._begin(engine, setup)

    def _start_frontend(self, index: int, place: int) -> None:
        listener, memory = self._plan.listener.fileno(), self._plan.memory.descriptor
        setup = Setup(
            config=self._plan.config,
            run_dir=str(self._plan.run_dir),
            index=index,
            listener=listener,
            memory=memory,
            place=place,
        )
        child = self._begin(spawn("frontend", self._plan.command, listener, memory), setup)
        if self._ready is not None:  # before it serves: its first client finds an engine
            child.line.send(self._ready)
        self._frontends.append(child)

    def _begin(self, child: Child, setup: Setup) -> Child:
        self._selector.register(child.line, selectors.EVENT_READ, lambda: self._listen(child))
        child.begin(setup)
        return child

    def _listen(self, child: Child) -> None:
        try:
            messages = child.line.receive()
        except LineClosed:
            self._bury(child)
            return
        for message in messages:
            match message:
                case Progress():
                    self._hooks.progress(message.stage, message.fraction)
                case Failure():
                    child.failure = message.text
                case Ready():
                    self._engine_is_ready(child, message)
                case Serving():
                    child.serving = True
                    if self._phase == "draining":
                        child.line.send(Draining())
                    self._announce()
                case Warm():
                    self._warmed(message)
                case Reply():
                    self._drained(message)

    def _engine_is_ready(self, engine: Child, ready: Ready) -> None:
        engine.serving = True
        self._ready = ready
        self._watch.restart(time.monotonic())
        self._tell_frontends(ready)
        if self._down_since is not None:
            seconds = time.monotonic() - self._down_since
            log.info("The engine is back after %.1f s; live requests go on", seconds)
            self._down_since = None
        self._announce()

    def _announce(self) -> None:
        """Once engine and frontends are there: warm up, then say that the server is ready."""
        if self._phase != "starting" or self._ready is None:
            return
        if not all(child.serving for child in self._frontends):
            return
        if self._plan.warm_up and not self._warming:
            self._warming = True
            self._frontends[0].line.send(WarmUp())
        elif not self._plan.warm_up:
            self._complete_start()

    def _warmed(self, warm: Warm) -> None:
        if self._phase != "starting":
            return
        if warm.problem:
            self._give_up(f"the warm-up request failed: {warm.problem}")
        else:
            self._complete_start()

    def _complete_start(self) -> None:
        assert self._ready is not None
        self._announced = True
        self._phase = "serving"
        self._hooks.ready(self._ready.capacity)

    # -- deaths -----------------------------------------------------------------------------------

    def _bury(self, child: Child) -> None:
        self._selector.unregister(child.line)
        cause = child.cause()
        child.close()
        if child is self._engine:
            self._engine = None
            self._engine_died(child, cause)
        else:
            self._frontends.remove(child)
            self._frontend_watch.died(child)
            self._frontend_died(child, cause)

    def _engine_died(self, engine: Child, cause: str) -> None:
        self._ready = None
        if self._phase == "stopping":
            return
        if self._phase == "starting":
            self._give_up(f"the engine did not start: {cause}", failed_start(engine))
        elif self._phase == "draining":
            self._tell_frontends(Down(reason=cause, restarting=False))
            self._give_up(f"the engine died while draining: {cause}")
        elif self._budget.spend(time.monotonic()):
            log.error("The engine died: %s. %s", cause, self._restart_note())
            self._tell_frontends(Down(reason=cause, restarting=True))
            if self._down_since is None:
                self._down_since = time.monotonic()
            self._epoch += 1
            self._start_engine()
        else:
            self._tell_frontends(Down(reason=cause, restarting=False))
            self._give_up(f"the engine died: {cause}. {self._exhausted_note()}")

    def _frontend_died(self, child: Child, cause: str) -> None:
        if self._phase == "stopping":
            return
        if self._phase == "starting" and not child.serving:
            self._give_up(f"{child.name} did not start: {cause}", failed_start(child))
            return
        if self._engine is not None:
            self._engine.line.send(FrontendGone(child.index))
        if self._phase == "draining":
            log.error("The %s died while draining: %s", child.name, cause)
        elif self._budget.spend(time.monotonic()):
            log.error("The %s died: %s. %s", child.name, cause, self._restart_note())
            # A new index: the keys of its predecessor's requests must not come back.
            self._start_frontend(self._next_index, child.place)
            self._next_index += 1
            self._warming = False  # whoever was warming up may be the dead one
        else:
            self._give_up(f"{child.name} died: {cause}. {self._exhausted_note()}")

    def _restart_note(self) -> str:
        return f"Restarting it ({self._budget.spent} of {self._budget.crashes} restarts spent)"

    def _exhausted_note(self) -> str:
        minutes = self._budget.window / 60
        return f"That is more than {self._budget.crashes} deaths in {minutes:.0f} minutes"

    def _tell_frontends(self, message: Ready | Down | Draining | Stop) -> None:
        for frontend in self._frontends:
            frontend.line.send(message)

    def _give_up(self, reason: str, code: int = FAILED) -> None:
        log.error("The server stops: %s", reason)
        self._code = code
        if self._announced:
            self._stop_frontends(FINAL_WORDS_SECONDS)
        else:
            self._phase = "stopping"
            self._kill_everything()

    # -- time -------------------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        if self._engine is not None and self._engine.serving:
            self._watch.look(self._engine, now)
        self._frontend_watch.look(self._frontends, now)
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            if self._phase == "draining":
                log.warning("Requests are still running after %.0f s of draining", self._plan.drain)
                self._stop_frontends(STOP_GRACE_SECONDS)
            else:
                self._kill_everything()
        if self._phase == "stopping" and not self._frontends:
            self._stop_engine(now)

    # -- the end ----------------------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        now = time.monotonic()
        if now < self._deaf_until:
            return
        self._deaf_until = now + SAME_SIGNAL_SECONDS
        self._signals += 1
        name = signal.Signals(number).name
        if self._signals > 1 or self._phase == "starting":
            log.warning("%s: stopping at once", name)
            self._code = 128 + number if self._signals > 1 else 0
            self._phase = "stopping"
            self._kill_everything()
        elif self._phase == "serving":
            log.info("%s: finishing the running requests (again to stop at once)", name)
            self._drain()

    def _drain(self) -> None:
        self._phase = "draining"
        self._tell_frontends(Draining())
        if self._engine is None:
            self._stop_frontends(STOP_GRACE_SECONDS)
            return
        self._deadline = time.monotonic() + self._plan.drain + 1
        ticket = SUPERVISOR << KEY_SHIFT
        self._engine.line.send(Command(ticket=ticket, body=Drain(timeout=self._plan.drain)))

    def _drained(self, reply: Reply) -> None:
        if self._phase == "draining":
            log.info("Drained%s", f": {reply.message}" if reply.message else "")
            self._stop_frontends(STOP_GRACE_SECONDS)

    def _stop_frontends(self, grace: float) -> None:
        """First the frontends, so that the last tokens reach the clients; then the engine."""
        self._phase = "stopping"
        self._tell_frontends(Stop(grace=grace))
        self._deadline = time.monotonic() + grace + 2

    def _stop_engine(self, now: float) -> None:
        if self._engine is not None and self._engine.serving:
            self._engine.serving = False
            self._engine.line.send(Stop(grace=STOP_GRACE_SECONDS))
            self._deadline = now + STOP_GRACE_SECONDS
        elif self._engine is not None and self._deadline is None:
            self._engine.kill()

    def _is_over(self) -> bool:
        return self._phase == "stopping" and self._engine is None and not self._frontends

    def _kill_everything(self) -> None:
        children = [*self._frontends, *([self._engine] if self._engine is not None else [])]
        for child in children:
            child.kill("the supervisor ended it")
        for child in children:
            child.process.wait()


def failed_start(child: Child) -> int:
    """The exit code of a server whose child did not start."""
    return CANNOT_START if child.cannot_start else FAILED
