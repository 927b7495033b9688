"""The engines of a server: each is replaced by another one when it dies."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from vivace.observability.awaited_processes import (
    describe_awaited,
    describe_stopped,
    find_members,
    find_stopped,
    look_at,
)
from vivace.observability.watchdog import Watchdog
from vivace.protocol.channel import SUPERVISOR
from vivace.protocol.heartbeat import EngineHeartbeat, EngineProgress
from vivace.protocol.messages import KEY_SHIFT, Command, Drain, EngineDown, Ready
from vivace.protocol.ranks import RankStates
from vivace.supervisor.child import Child, kill_all
from vivace.supervisor.messages import AskNodes, FrontendGone, Setup
from vivace.supervisor.plan import SPAWN_RETRY_SECONDS, Plan
from vivace.supervisor.restart_policy import CrashAttribution, CrashBudget, RestartDecision
from vivace.supervisor.watch import EngineWatch, StartWatch

log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class EngineSlot:
    """One engine, and those before it. Times are seconds of time.monotonic()."""

    index: int
    heartbeat: EngineHeartbeat
    watch: EngineWatch
    start_watch: StartWatch
    budget: CrashBudget
    child: Child | None = None
    ready: Ready | None = None
    due: float | None = None
    """when to try again to start it"""
    down_since: float | None = None
    lost: bool = False
    """it died too often: none follows"""
    drained: bool = False
    follows: str = ""
    """it was ended because an engine that it shares layers with has died: which"""
    share: int = 0
    """`Setup.share` of those that follow"""

    @property
    def serving(self) -> Child | None:
        return self.child if self.child is not None and self.child.serving else None


@dataclass
class Engines:
    plan: Plan
    slots: list[EngineSlot] = field(init=False)

    def __post_init__(self) -> None:
        plan = self.plan
        self.slots = [
            EngineSlot(
                index=index,
                heartbeat=EngineHeartbeat(plan.memory.engine(index)),
                watch=EngineWatch(
                    EngineProgress(plan.memory, index),
                    Watchdog(hard=plan.watchdog, soft=plan.soft_watchdog),
                ),
                start_watch=StartWatch(plan.watchdog),
                budget=CrashBudget(plan.crashes, plan.crash_window),
            )
            for index in range(len(plan.engines))
        ]
        self._attribution = CrashAttribution([slot.budget for slot in self.slots])
        self._epoch = 0
        self._inquiry = AwaitedInquiry(self)

    @property
    def children(self) -> list[Child]:
        return [slot.child for slot in self.slots if slot.child is not None]

    @property
    def serve(self) -> bool:
        """One does."""
        return any(slot.serving for slot in self.slots)

    def known(self) -> Iterator[Ready | EngineDown]:
        """What a frontend that starts now has not heard."""
        for slot in self.slots:
            if slot.lost:
                yield EngineDown(reason="it died too often", restarting=False, engine=slot.index)
            elif slot.ready is not None:
                yield slot.ready

    @property
    def all_ready(self) -> bool:
        """Those that come at all, of which there is one."""
        return all(slot.ready is not None or slot.lost for slot in self.slots)

    @property
    def any_left(self) -> bool:
        """One serves, or is on its way."""
        return any(not slot.lost for slot in self.slots)

    def find(self, child: Child) -> EngineSlot | None:
        return next((slot for slot in self.slots if slot.child is child), None)

    def start(self, slot: EngineSlot, child: Child | None = None) -> tuple[Child, Setup] | None:
        """Spawn one (or take `child`); it is to be told its setup. None when none can be started
        now: it is tried again. No two lives of engines have the same epoch."""
        slot.watch.restart(time.monotonic())
        slot.start_watch.restart(time.monotonic())
        self._inquiry = AwaitedInquiry(self)  # what nodes said of the last engines is past
        slot.heartbeat.begin()  # what the last engine died of is not this one's doing
        started = self.plan.start_engine(child, slot.index, self._epoch, slot.share)
        if started is None:
            slot.due = time.monotonic() + SPAWN_RETRY_SECONDS
            return None
        slot.child, slot.due = started[0], None
        self._epoch += 1
        return started

    def end_companions(self, slot: EngineSlot) -> None:
        """Those that share layers with one that has died compute nothing any more."""
        ended: list[Child] = []
        for other in self.slots if self.plan.link is not None else ():
            if other.child is not None and not other.follows:
                other.follows = self.title(slot)
                ended.append(other.child)
        kill_all(ended, f"it shares layers with {self.title(slot)}, which has died")

    def startable(self, slot: EngineSlot) -> list[EngineSlot]:
        """Who is started in the place of one that has died: of engines that share layers all
        together, when the last one has ended."""
        if self.plan.link is None:
            return [slot]
        if self.children or any(one.lost for one in self.slots):
            return []
        self.plan.link.drop()
        return self.slots

    def due(self, now: float) -> Iterator[EngineSlot]:
        yield from (slot for slot in self.slots if slot.due is not None and now >= slot.due)

    def is_again(self, child: Child) -> bool:
        """Whether it follows one that died."""
        return child.setup is not None and child.setup.again

    def on_ready(self, slot: EngineSlot, ready: Ready) -> None:
        if slot.child is not None:
            slot.child.serving = True
        slot.ready = ready
        slot.share = slot.share or ready.capacity.free_bytes
        slot.watch.restart(time.monotonic())
        if slot.down_since is not None:
            away = time.monotonic() - slot.down_since
            log.info("%s is back after %.1f s; live requests go on", self.title(slot), away)
            slot.down_since = None

    def title(self, slot: EngineSlot) -> str:
        return f"Engine {slot.index}" if len(self.slots) > 1 else "The engine"

    def record_death(self, slot: EngineSlot, cause: str) -> RestartDecision:
        """What follows from it; told in one line where the server goes on."""
        now = time.monotonic()
        step, spans = slot.heartbeat.fatal_spans()
        decision = self._attribution.record_death(step, spans, now, slot.index)
        slot.lost = not decision.restart
        if slot.lost and self.plan.link is not None:
            for other in self.slots:
                other.lost = True
        if slot.lost and not self.any_left:
            return decision
        note = slot.budget.exhausted_note() if slot.lost else slot.budget.restart_note()
        note = f"{note}: the others go on without it" if slot.lost else note
        company = f", in a step of {len(spans)} requests" if spans else ""
        blame = ". One request is found to kill engines and refused" if decision.refused else ""
        log.error("%s died: %s%s%s. %s", self.title(slot), cause, company, blame, note)
        slot.down_since = slot.down_since or now
        return decision

    def frontend_gone(self, index: int) -> None:
        for child in self.children:
            child.control.send(FrontendGone(index))

    def drain(self, slot: EngineSlot, timeout: float, frontends: list[int]) -> None:
        if (child := slot.serving) is not None:
            slot.watch.expect_reaction()
            drain = Drain(timeout=round(timeout, 1), frontends=frontends)
            child.control.send(Command(ticket=SUPERVISOR << KEY_SHIFT, body=drain))

    @property
    def all_drained(self) -> bool:
        """No engine has anything left to say."""
        return all(slot.drained or slot.lost for slot in self.slots)

    def check(self, now: float, *, draining: bool) -> None:
        """To be called often: who is stuck is ended."""
        self._inquiry.look_anew()
        for slot in self.slots:
            if slot.child is None:
                continue
            if slot.child.serving:
                slot.watch.check(slot.child, now, draining=draining, inquiry=self._inquiry)
            else:
                slot.start_watch.check(slot.child, now, self._inquiry)

    def hear(self, states: RankStates) -> None:
        self._inquiry.hear(states)


class AwaitedInquiry:
    """Whom ranks, and engines that share layers, wait for. Those of this machine can be seen, once
    for all engines that are checked together; those of other nodes are asked for through the
    engines."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._elsewhere: list[RankStates] = []
        self.look_anew()

    def look_anew(self) -> None:
        """What was seen until now is past."""
        self._stopped: list[str] | None = None
        self._seen: RankStates | None = None

    def begin(self) -> None:
        self._elsewhere.clear()
        for child in self._engines.children:
            child.control.send(AskNodes())

    def hear(self, states: RankStates) -> None:
        self._elsewhere.append(states)

    def stopped(self) -> str:
        if self._stopped is None:
            self._stopped = find_stopped(find_members(self._parents(), ""))
        elsewhere = [name for one in self._elsewhere for name in one.stopped]
        found = [*self._stopped, *elsewhere]
        return describe_stopped(found) if found else ""

    def result(self) -> str:
        if self._seen is None:
            self._seen = look_at(find_members(self._parents()))
        return self.stopped() or describe_awaited([self._seen, *self._elsewhere])

    def _parents(self) -> list[int]:
        return [child.process.pid for child in self._engines.children]
