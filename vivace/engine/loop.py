"""The engine's only loop: receive, plan, submit, commit, send."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from vivace.engine.executor import Executor, ExecutorDied, LocalRank, PendingStep
from vivace.engine.expert_distribution import ExpertDistribution, NoExpertDistribution
from vivace.engine.scheduler import Scheduler
from vivace.engine.step_heartbeat import StepHeartbeat
from vivace.protocol.heartbeat import EngineHeartbeat
from vivace.protocol.message_size import split_deltas
from vivace.protocol.messages import (
    FINISH_ABORT,
    KEY_SHIFT,
    Cancel,
    Command,
    Delta,
    Deltas,
    Drain,
    EngineState,
    Finish,
    FlushCache,
    GetState,
    LastRequest,
    RecordExperts,
    Reply,
    Request,
    ToEngine,
    ToFrontend,
)
from vivace.protocol.step import EngineShare, StepPlan
from vivace.protocol.workers import AddCorpus, CorpusRemoved, GetWorkerState, RemoveCorpus

logger = logging.getLogger("vivace.engine")
ReportLoad = Callable[[int, int], None]
"""(requests that live, tokens they have KV of or wait with)"""
ACCOMPANY = -2
"""number of a step that is only there because other engines take one: not the scheduler's"""


class Mailbox(Protocol):
    """Messages from and to the frontends (protocol/channel.py)."""

    def receive(self, wait: float | None) -> list[ToEngine]:
        """What has come. `wait` seconds for the first one; 0 = do not wait, None = for ever."""
        ...

    def send(self, frontend: int, message: ToFrontend) -> None: ...

    def wake(self) -> None:
        """Let a waiting `receive` return; from any thread."""
        ...


class Lockstep(Protocol):
    """Engines that take every step together, because layers are shared by all of them
    (`NoLockstep` where they are not, `SharedLockstep` in engine/lockstep.py)."""

    @property
    def awaited(self) -> bool:
        """Another engine waits in `agree` for this one."""
        ...

    @property
    def next_step(self) -> int | None:
        """The number that the next step has among all engines. None: there is only this one."""
        ...

    def agree(self, share: EngineShare) -> list[EngineShare]:
        """What each engine computes of the next step, this one's share among them; waits for all.
        No tokens at all: nobody takes a step."""
        ...

    def wake_with(self, ring: Callable[[], None]) -> None:
        """`ring` is called, from any thread, when another engine begins to wait."""
        ...

    def stop(self) -> None:
        """`agree` waits for nobody any more: nobody takes a step. From any thread."""
        ...


class NoLockstep:
    """An engine that waits for no other."""

    awaited = False
    next_step = None

    def agree(self, share: EngineShare) -> list[EngineShare]:
        return []

    def wake_with(self, ring: Callable[[], None]) -> None:
        """Nobody rings."""

    def stop(self) -> None:
        """Nobody is waited for."""


class HeartbeatMailbox:
    """A mailbox that beats whenever the loop comes by for messages."""

    def __init__(self, mailbox: Mailbox, heartbeat: EngineHeartbeat, steps: StepHeartbeat) -> None:
        self._mailbox = mailbox
        self._heartbeat = heartbeat
        self._steps = steps
        self.send = mailbox.send
        self.wake = mailbox.wake

    def receive(self, wait: float | None) -> list[ToEngine]:
        if wait != 0:
            self._heartbeat.idle()
        messages = self._mailbox.receive(wait)
        self._steps.schedule()
        return messages


class Loop:
    """Keeps up to `depth` steps in flight. One thread calls everything but `stop`.

    `epoch` marks every answer; it changes when the engine restarts. `clock`: seconds, monotonic.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        mailbox: Mailbox,
        *,
        depth: int = 1,
        epoch: int = 0,
        clock: Callable[[], float],
        lockstep: Lockstep | None = None,
        report_load: ReportLoad | None = None,
        experts: ExpertDistribution | None = None,
    ) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, not {depth}")
        self._scheduler = scheduler
        self._executor = executor
        self._mailbox = mailbox
        self._depth = depth
        self._epoch = epoch
        self._clock = clock
        self._iterations = 0
        self._in_flight: deque[tuple[StepPlan, PendingStep]] = deque()
        self._commands: deque[Command] = deque()
        self._drain: tuple[int, Drain, float] | None = None
        """ticket, what is asked, deadline"""
        self._silent: set[int] = set()
        """frontends that send no more requests"""
        self._corpora: dict[str, int] = {}
        """name -> the frontend that added it"""
        self._stopped = False
        self._lockstep = lockstep or NoLockstep()
        self._report_load = report_load
        self._experts = experts or NoExpertDistribution()
        executor.wake_with(mailbox.wake)
        self._lockstep.wake_with(mailbox.wake)

    @property
    def local_ranks(self) -> Sequence[LocalRank]:
        """Whose steps these are, besides this process."""
        return self._executor.local_ranks

    def run(self) -> None:
        """Serve until `stop`; ExecutorDied when the device cannot go on."""
        while not self._stopped:
            self.step(self.wait_timeout())
        while self._in_flight:
            self._commit_oldest()
            self._send_deltas()

    def stop(self) -> None:
        """End `run` after the step under way; from any thread or a signal handler."""
        self._stopped = True
        self._lockstep.stop()
        self._mailbox.wake()

    def close(self, cause: str = "") -> None:
        """Behind `run`: the executor ends what it has started. `cause`: as in `Executor`."""
        self._executor.close(cause)

    def wait_timeout(self) -> float | None:
        """Seconds a step may wait for a message; None = nothing else can happen."""
        if self._in_flight or self._commands or self._lockstep.awaited or self._experts.due:
            return 0.0
        moments = [] if self._drain is None else [self._drain[-1]]
        if (moment := self._scheduler.next_moment()) is not None:
            moments.append(moment)
        return max(0.0, min(moments) - self._clock()) if moments else None

    def step(self, wait: float | None) -> bool:
        """Plan and submit a step, or commit the oldest in flight; False when nothing was to do.

        `wait`: seconds for the first message; 0 = do not wait, None = for ever.
        """
        received = self._receive(wait)
        self._scheduler.notify(self._executor.events())
        self._run_commands()
        plan = self._plan()
        worked = plan is not None or bool(self._in_flight)
        if plan is not None:
            self._in_flight.append((plan, self._executor.submit(plan)))
        elif self._in_flight:
            self._commit_oldest()
        if self._report_load is not None and (received or worked):
            self._report_load(*self._scheduler.load())
        self._send_deltas()
        self._answer_drain()
        return received or worked

    # --- steps ------------------------------------------------------------------------------

    def _plan(self) -> StepPlan | None:
        if len(self._in_flight) >= self._depth:
            return None
        if self._in_flight and (self._commands or self._scheduler.isolates):
            return None  # not even a step for the others follows: they wait until all have landed
        waits = self._commands or self._experts.due
        idle, common = not self._in_flight, self._lockstep.next_step
        plan = None if waits else self._scheduler.plan(idle, common)
        moves = self._experts.due and not self._in_flight
        if not (self._lockstep.awaited or moves or (plan is not None and plan.rows)):
            return plan
        shares = self._lockstep.agree(describe_share(plan, moves))
        if self._stopped and not any(share.tokens for share in shares):
            return None  # alone it would wait for the others in the layers they share
        if moves and all(share.moves for share in shares):
            self._experts.rebalance()
            return self._plan()
        if not any(share.tokens for share in shares):
            return plan
        return replace(plan or StepPlan(number=ACCOMPANY), shares=shares)

    def _commit_oldest(self) -> None:
        plan, pending = self._in_flight.popleft()
        try:
            result = pending.result()
        except ExecutorDied:
            raise
        except Exception as error:
            self._recover(plan, error)
            return
        self._experts.commit(result)
        if plan.number != ACCOMPANY:
            self._scheduler.commit(plan, result)

    def _recover(self, plan: StepPlan, error: Exception) -> None:
        """A step failed: forget the steps behind it, and look for the request to blame."""
        logger.error("step %d failed", plan.number, exc_info=error)
        while self._in_flight:
            _, pending = self._in_flight.popleft()
            try:
                pending.result()
            except ExecutorDied:
                raise
            except Exception as skipped:
                logger.debug("dropped behind step %d: %r", plan.number, skipped)
        self._executor.recover()
        if plan.number != ACCOMPANY:
            self._scheduler.fail(plan, error)

    # --- messages ---------------------------------------------------------------------------

    def _receive(self, wait: float | None) -> bool:
        """Take messages, at every `receive_interval`-th iteration while steps are in flight."""
        self._iterations += 1
        if self._in_flight and self._iterations % self._scheduler.settings.receive_interval:
            return False
        messages = self._mailbox.receive(wait)
        for message in messages:
            self._handle(message)
        self._send_deltas()
        return bool(messages)

    def _handle(self, message: ToEngine) -> None:
        if isinstance(message, Request):
            self._add(message)
        elif isinstance(message, Cancel):
            self._scheduler.cancel(message)
        elif isinstance(message, LastRequest):
            self._silent.add(message.frontend)
        elif isinstance(message.body, Drain):
            self._drain = message.ticket, message.body, self._clock() + message.body.timeout
        else:
            self._commands.append(message)

    def _add(self, request: Request) -> None:
        """The fault boundary at the door: a request the scheduler chokes on ends alone."""
        try:
            self._scheduler.add(request)
        except Exception as error:
            logger.exception("request %s cannot be taken", request.rid)
            self._scheduler.reject(request, error)

    def _send_deltas(self) -> None:
        """One message per frontend, or several small ones."""
        frontends: dict[int, list[Delta]] = {}
        for delta in self._scheduler.take_deltas():
            frontends.setdefault(delta.key >> KEY_SHIFT, []).append(delta)
        for frontend, deltas in frontends.items():
            for message in split_deltas(deltas):
                self._mailbox.send(frontend, Deltas(self._epoch, message))

    # --- control ----------------------------------------------------------------------------

    def _run_commands(self) -> None:
        """Commands see the engine between steps: nothing is in flight, and nothing is planned
        before they are answered."""
        while self._commands and not self._in_flight:
            command = self._commands.popleft()
            self._mailbox.send(command.ticket >> KEY_SHIFT, self._execute(command))

    def _execute(self, command: Command) -> Reply:
        try:
            if isinstance(command.body, FlushCache):
                ok = self._scheduler.flush()
                text = "the prefix cache is empty" if ok else "requests are running or waiting"
                return Reply(command.ticket, ok, text)
            if isinstance(command.body, RecordExperts):
                return self._record_experts(command.ticket, command.body)
            if isinstance(command.body, AddCorpus | RemoveCorpus):
                return self._change_corpora(command.ticket, command.body)
            if isinstance(command.body, GetState):
                return Reply(command.ticket, True, "", self.state())
        except ExecutorDied:
            raise
        except Exception as error:
            logger.exception("command %s failed", type(command.body).__name__)
            return Reply(command.ticket, False, f"{type(error).__name__}: {error}")
        return Reply(command.ticket, False, f"unknown command {type(command.body).__name__}")

    def _change_corpora(self, ticket: int, command: AddCorpus | RemoveCorpus) -> Reply:
        """Who added one tells the next engine of it, so it hears of a removal, too."""
        states = self._executor.control(command)
        if refused := next((state.refused for state in states if state.refused), ""):
            return Reply(ticket, False, refused)
        if isinstance(command, AddCorpus):
            self._corpora[command.name] = ticket >> KEY_SHIFT
        elif (owner := self._corpora.pop(command.name, None)) is not None:
            self._mailbox.send(owner, CorpusRemoved(command.name))
        return Reply(ticket, True)

    def _record_experts(self, ticket: int, command: RecordExperts) -> Reply:
        try:
            return Reply(ticket, True, self._experts.execute(command))
        except (ValueError, OSError) as error:
            status = 500 if isinstance(error, OSError) else 400
            return Reply(ticket, False, str(error), status=status)

    def state(self) -> EngineState:
        state = self._scheduler.state()
        state.executor = type(self._executor).__name__
        state.workers = self._executor.control(GetWorkerState())
        return state

    def _answer_drain(self) -> None:
        """It is over when nothing lives and nothing can come; what lives at its limit is ended."""
        if self._drain is None:
            return
        ticket, drain, deadline = self._drain
        live = self._scheduler.busy or bool(self._in_flight)
        awaited = not self._silent.issuperset(drain.frontends)
        if (live or awaited) and self._clock() < deadline:
            return
        self._drain = None
        limit = f"the limit of {drain.timeout:g} s"
        message = f"the server is shutting down, and the request did not end within {limit}"
        ended = self._scheduler.end_all(
            Finish(FINISH_ABORT, message=message, status=503, retry_after=1.0)
        )
        self._send_deltas()
        text = f"{ended} requests were ended at {limit}" if ended else "no running requests"
        self._mailbox.send(ticket >> KEY_SHIFT, Reply(ticket, not ended, text))


def describe_share(plan: StepPlan | None, moves: bool) -> EngineShare:
    counts = plan.counts if plan is not None else []
    return EngineShare(sum(counts), counts.count(1) == len(counts), moves)
