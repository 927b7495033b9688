"""Start, watch, restart and stop the processes of one server.

One thread, one selector: children's messages and deaths, signals and the clock come in, commands
to children go out. A child's death is seen at once (its control socket closes), whatever killed it.
"""

from __future__ import annotations

import logging
import selectors
import signal
import time
from collections.abc import Iterable
from typing import Literal

from vivace.protocol.message_socket import SocketClosed
from vivace.protocol.messages import Draining, EngineDown, Ready, Reply
from vivace.protocol.ranks import NodePresence, RankStates
from vivace.supervisor import signals
from vivace.supervisor.child import FAILED, Child, kill_all
from vivace.supervisor.engines import Engines, EngineSlot
from vivace.supervisor.frontends import Frontends
from vivace.supervisor.joined_nodes import JoinedNodes
from vivace.supervisor.messages import (
    Failure,
    LiveRequests,
    Progress,
    Serving,
    Setup,
    Started,
    StartupStages,
    Stop,
    Warm,
    WarmUp,
)
from vivace.supervisor.output import Outputs
from vivace.supervisor.plan import WARMING_UP, Hooks, Plan

log = logging.getLogger(__name__)

Phase = Literal["starting", "serving", "draining", "stopping"]
STOP_GRACE_SECONDS = 5.0
DRAIN_REPLY_SECONDS = 1.0  # for the engine to say that it has ended what did not end in time
LAST_STEP_SECONDS = 1.0  # for engines whose last step may wait for one that has stopped before it
SHUTDOWN_NOTICE_SECONDS = 1.0  # for the frontends to tell their clients that the server stops


class Supervisor:
    """Runs a plan until it is told to stop or cannot go on; `run` returns the exit code.

    `engine`: a child spawned ahead, so that it imports while the configuration is worked out;
    `ray`: one without which there are no other nodes. Who has started it ends it."""

    def __init__(
        self, plan: Plan, hooks: Hooks, engine: Child | None = None, ray: Child | None = None
    ) -> None:
        self._plan = plan
        self._ray = ray
        self._first_engine = engine  # of the first slot
        self._hooks = hooks
        self._phase: Phase = "starting"
        self._engines = Engines(plan)
        self._frontends = Frontends(plan)
        self._warm_up_sent = False
        self._tools: list[str] = []
        """what tool servers have, in words"""
        self._selector = selectors.DefaultSelector()
        self._outputs = Outputs(self._selector, hooks.write)
        self._deadline: float | None = None
        """when the present phase is cut short"""
        self._drained_by = 0.0  # when the engine is to end what it still computes
        self._signals = 0
        self._code: int | None = None
        self._nodes = JoinedNodes(hooks.farewell)
        self._failed = ""  # what the server ends of, where nobody has stopped it

    def run(self) -> int:
        with signals.handle_signals(self._selector, self._on_signal):
            try:
                for slot in self._engines.slots:
                    self._start_engine(slot, self._first_engine if slot.index == 0 else None)
                self._start_frontends(time.monotonic())
                if self._ray is not None:
                    self._follow(self._ray)
                while self._phase != "stopping" or self._children():
                    for key, _ in self._selector.select(self._plan.tick):
                        key.data()
                    self._tick(time.monotonic())
            finally:
                self._kill_everything()
        code = self._code or 0
        self._nodes.end(self._failed, code if self._failed else 0)
        return code

    # -- children ---------------------------------------------------------------------------------

    def _start_engine(self, slot: EngineSlot, engine: Child | None = None) -> None:
        started = self._engines.start(slot, engine)
        if started is not None:
            self._begin(*started)

    def _start_frontends(self, now: float) -> None:
        for child, setup in self._frontends.start_due(now):
            self._begin(child, setup)
            self._warm_up_sent = False  # whoever was warming up may be the dead one
            for message in self._engines.known():  # before it serves: its first client finds one
                child.control.send(message)
            if self._phase == "serving":
                child.control.send(Started())

    def _begin(self, child: Child, setup: Setup) -> None:
        self._follow(child)
        child.begin(setup)

    def _follow(self, child: Child) -> None:
        self._selector.register(child.control, selectors.EVENT_READ, lambda: self._listen(child))
        self._outputs.follow(child)

    def _listen(self, child: Child) -> None:
        try:
            messages = child.control.receive()
        except SocketClosed:
            self._reap(child)
            return
        for message in messages:
            match message:
                case Progress():
                    child.stage, child.progressed = message.stage, time.monotonic()
                    if child.index == 0 or child.role != "engine":  # the others do the same
                        self._hooks.progress(message.stage, message.fraction)
                case StartupStages():
                    self._hooks.timed(child.name, message.stages)
                case Failure():
                    child.failure, child.passing = message.text, message.passing
                case NodePresence():
                    self._nodes.hear(message)
                case RankStates():
                    self._engines.hear(message)
                case Ready() | Serving() if self._read_other_files(child):
                    pass
                case Ready():
                    self._engine_is_ready(child, message)
                case Serving():
                    self._frontends.on_serving(child)
                    self._tools = self._tools or message.tools
                    if self._phase == "draining":
                        child.control.send(Draining())
                    self._finish_start_if_all_serve()
                case Warm():
                    self._on_warm(message)
                case LiveRequests():
                    child.live = message.count
                    self._stop_if_unused()
                case Reply():
                    self._on_drained(child, message)

    def _read_other_files(self, child: Child) -> bool:
        """Looking before one is started again is not enough: they may change until it has."""
        is_engine = child.role == "engine"
        again = self._engines.is_again(child) if is_engine else child.index >= self._plan.frontends
        changed = self._plan.changed_files() if again else ""
        if changed:
            child.kill("it has read other files")
            self._fail(f"the {child.name} is not used. {changed}")
        return bool(changed)

    def _engine_is_ready(self, engine: Child, ready: Ready) -> None:
        slot = self._engines.find(engine)
        if slot is None:
            return
        self._engines.on_ready(slot, ready)
        self._frontends.broadcast(ready)
        if self._phase == "draining":
            self._drain_engine(slot)
        self._finish_start_if_all_serve()

    def _finish_start_if_all_serve(self) -> None:
        """Once engine and frontends are there: warm up, then say that the server is ready."""
        loaded = self._phase == "starting" and self._engines.all_ready
        if not loaded or not self._frontends.all_serve:
            return
        if self._plan.warm_up and not self._warm_up_sent:
            self._warm_up_sent = True
            self._hooks.progress(WARMING_UP, 0.0)
            self._frontends.children[0].control.send(WarmUp())
        elif not self._plan.warm_up:
            self._complete_start()

    def _on_warm(self, warm: Warm) -> None:
        if self._phase == "starting" and warm.problem:
            self._fail(f"the warm-up request failed: {warm.problem}", warm.exit_code)
        elif self._phase == "starting":
            self._complete_start()

    def _complete_start(self) -> None:
        capacity = next((slot.ready.capacity for slot in self._engines.slots if slot.ready), None)
        if capacity is None:  # the engine died behind its answer to the warm-up
            self._warm_up_sent = False
            return
        self._phase = "serving"
        self._hooks.ready()
        self._frontends.broadcast(Started())
        self._hooks.show(capacity, self._tools)

    # -- deaths -----------------------------------------------------------------------------------

    def _reap(self, child: Child) -> None:
        self._selector.unregister(child.control)
        cause = child.cause(self._plan.memory_advice)
        self._outputs.finish(child)
        child.close()
        slot = self._engines.find(child)
        if slot is not None:
            slot.child = slot.ready = None
            self._nodes.on_exit(child)
            self._engine_died(slot, child, cause)
        elif child is self._ray:
            self._nodes_lost(child, cause)
        else:
            self._frontends.remove(child)
            self._frontend_died(child, cause)

    def _engine_died(self, slot: EngineSlot, engine: Child, cause: str) -> None:
        if self._phase == "stopping":
            linked = self._plan.link is not None and not self._frontends.children
            if linked and self._deadline is not None:
                self._deadline = min(self._deadline, time.monotonic() + LAST_STEP_SECONDS)
            return
        name, follows = engine.name, slot.follows
        slot.follows = ""
        self._engines.end_companions(slot)
        if self._phase == "starting" and not (engine.serving or engine.lost_node or follows):
            self._fail(f"the {name} did not start: {cause}", engine.exit_code)
        elif follows:
            down = EngineDown(reason=cause, restarting=not slot.lost, engine=slot.index)
            self._frontends.broadcast(down)
            self._start_again(slot)
        elif self._phase == "draining" and engine.killed_because:
            self._fail(f"the {name} died while draining: {cause}", told=cause)
        elif changed := self._plan.changed_files():
            self._fail(f"the {name} died: {cause}. {changed}", told=f"{cause}. {changed}")
        else:
            self._replace_engine(slot, cause)
            self._stop_if_unused()

    def _nodes_lost(self, ray: Child, cause: str) -> None:
        """Ray ends the other nodes with the process that started them."""
        self._nodes.forget()
        if self._phase != "stopping":
            told = cause if ray.cannot_start else f"the {ray.name} died: {cause}"
            self._fail(told, ray.exit_code)

    def _replace_engine(self, slot: EngineSlot, cause: str) -> None:
        """Unless it died too often. What is found to kill engines does not come back."""
        decision = self._engines.record_death(slot, cause)
        self._frontends.broadcast(decision.engine_down(cause, slot.index))
        if decision.restart:
            self._start_again(slot)
        elif not self._engines.any_left:
            self._fail(f"the engine died: {cause}. {slot.budget.exhausted_note()}")

    def _start_again(self, slot: EngineSlot) -> None:
        for one in self._engines.startable(slot):
            self._start_engine(one)

    def _frontend_died(self, child: Child, cause: str) -> None:
        if self._phase == "stopping":
            return
        if self._phase == "starting" and not child.serving:
            self._fail(f"{child.name} did not start: {cause}", child.exit_code)
            return
        self._engines.frontend_gone(child.index)
        if self._phase == "draining":
            log.error("The %s died while draining: %s%s", child.name, cause, cut_off([child]))
            if child.serving and child.live != 0:
                self._code = FAILED
        elif changed := self._plan.changed_files():
            self._fail(f"the {child.name} died: {cause}. {changed}")
        elif self._frontends.replace(child, cause):
            self._start_frontends(time.monotonic())
        else:
            self._fail(f"{child.name} died: {cause}. No frontend can be started any more")

    def _fail(self, reason: str, code: int = FAILED, *, told: str = "") -> None:
        log.error("The server stops: %s", reason)
        self._code, self._failed = code, told or reason
        self._frontends.broadcast(EngineDown(reason=told or reason, restarting=False))
        self._stop_frontends(SHUTDOWN_NOTICE_SECONDS)

    # -- time -------------------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        self._engines.check(now, draining=self._phase == "draining")
        self._frontends.check(now)
        if self._phase != "stopping":
            for slot in list(self._engines.due(now)):
                self._start_engine(slot)
        if self._phase in ("starting", "serving"):
            self._start_frontends(now)
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            if self._phase == "draining":
                log.warning("The engine did not drain within the limit of %g s", self._plan.drain)
                self._stop_frontends(SHUTDOWN_NOTICE_SECONDS)
            else:
                self._kill_everything()
        if self._phase == "stopping" and not self._frontends.children:
            self._stop_engines(now)

    # -- the end ----------------------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        self._signals += 1
        name = signal.Signals(number).name
        at_once = self._signals > 1 or number == signals.AT_ONCE
        if at_once or self._phase == "starting":
            log.warning("%s: stopping at once%s", name, self._cut_off())
            self._code = 128 + number
        if at_once:
            self._phase = "stopping"
            self._kill_everything()
        elif self._phase == "starting":
            self._frontends.broadcast(Draining())
            self._stop_frontends(SHUTDOWN_NOTICE_SECONDS)
        elif self._phase == "serving":
            log.info("%s: draining requests (send again to exit immediately)", name)
            self._drain()

    def _cut_off(self) -> str:
        """Frontends count their live requests from the drain on; while they serve nobody knows."""
        if self._phase == "serving":
            return "; requests that still run are cut off"
        return cut_off(self._frontends.children)

    def _drain(self) -> None:
        """An engine that still starts is drained when it is ready: it has requests to resume."""
        self._phase = "draining"
        self._drained_by = time.monotonic() + self._plan.drain
        self._deadline = self._drained_by + DRAIN_REPLY_SECONDS
        self._frontends.broadcast(Draining())
        for slot in self._engines.slots:
            self._drain_engine(slot)
        self._stop_if_unused()

    def _drain_engine(self, slot: EngineSlot) -> None:
        left = max(0.0, self._drained_by - time.monotonic())
        self._engines.drain(slot, left, self._frontends.indexes)

    def _stop_if_unused(self) -> None:
        """In a drain, when every engine has drained or is lost, or none serves and nobody waits for
        one."""
        engines = self._engines
        unused = engines.all_drained or not (engines.serve or self._frontends.busy)
        if self._phase == "draining" and unused:
            log.info("Drained: no live requests")
            self._stop_frontends(STOP_GRACE_SECONDS)

    def _on_drained(self, engine: Child, reply: Reply) -> None:
        slot = self._engines.find(engine)
        if self._phase == "draining" and slot is not None:
            slot.drained = True
            log.log(logging.INFO if reply.ok else logging.WARNING, "Drained: %s", reply.message)
            if self._engines.all_drained:
                self._stop_frontends(STOP_GRACE_SECONDS)

    def _stop_frontends(self, grace: float) -> None:
        """First the frontends, so that the last tokens reach the clients; then the engine."""
        self._phase = "stopping"
        self._plan.listener.close()  # who comes when the last frontend has closed it is refused
        self._frontends.broadcast(Stop(grace=grace))
        self._deadline = time.monotonic() + grace + 2
        kill_all(child for child in self._children() if not child.serving)

    def _stop_engines(self, now: float) -> None:
        for slot in self._engines.slots:
            if (engine := slot.serving) is not None:
                engine.serving = False
                engine.control.send(Stop(grace=STOP_GRACE_SECONDS, cause=self._failed))
                self._deadline = now + STOP_GRACE_SECONDS

    def _children(self) -> list[Child]:
        return [*self._frontends.children, *self._engines.children]

    def _kill_everything(self) -> None:
        kill_all(self._children(), "the supervisor ended it")
        for child in self._children():
            child.process.wait()
            self._outputs.finish(child)


def cut_off(frontends: Iterable[Child]) -> str:
    """How many requests these had at last, as far as they have said."""
    live = sum(child.live or 0 for child in frontends)
    return f"; live requests that are cut off: {live}" if live else ""
