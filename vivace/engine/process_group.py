"""An executor of several ranks: each runs every plan on its share of the model.

The scheduler knows nothing of them. Rank 0 runs in the engine's process, or where that is on
another node than its engine there (`RemoteWorker`). Its results count, or where the layers are
divided into stages those of the last stage's first rank, which are news to the other stages; the
other ranks say only that they have run a step. They meet in the collectives of the layers they
share, so a rank that does not come makes the others wait: it ends the engine, with its name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NoReturn, Protocol

from msgspec.structs import replace

from vivace.engine.executor import (
    ExecutorDied,
    FailedStep,
    LaunchedStep,
    LocalRank,
    PendingStep,
    StepSkipped,
    StepWorker,
)
from vivace.errors import CannotStart, RankLost, StepRefused
from vivace.protocol.ranks import RankAnswer, StepDone, StepRefusal
from vivace.protocol.step import DrawnTokens, ExecutorEvent, StepPlan, StepResult
from vivace.protocol.workers import WorkerCommand, WorkerState

log = logging.getLogger(__name__)

DYING_SECONDS = 1.0
"""between what others notice of a death and that its process has ended"""
COMPANION_SECONDS = 10.0
"""in which the supervisor ends an engine because another one has died"""


@dataclass(frozen=True)
class RankDeath:
    """`reported`: it ended over an error, and `trace` is where that came from; `noticed`: the error
    is only that another rank has gone; `refused`: it cannot start with what it was given."""

    name: str
    reason: str
    reported: bool
    noticed: bool = False
    refused: bool = False
    trace: str = ""

    @property
    def text(self) -> str:
        return f"{self.name}: {self.reason}"


class Broadcast(Protocol):
    """What all other ranks hear."""

    def send(self, message: StepPlan | WorkerCommand) -> None:
        """To one that has died this does nothing."""
        ...

    def close(self, cause: str = "") -> None:
        """Nothing follows: they end. `cause`: what this engine dies of. The first call counts."""
        ...


class RankLink(Protocol):
    """A rank in another process, which hears what was broadcast."""

    name: str

    def wait(self) -> RankAnswer:
        """The answer to the oldest message that has none. Raises RankLost."""
        ...

    def death(self, wait: float = 0.0) -> RankDeath | None:
        """None while it lives; `wait`: so many seconds it may take to die."""
        ...

    def wake_with(self, ring: Callable[[], None]) -> None:
        """`ring` is called, from any thread, when it dies."""
        ...

    def close(self) -> None: ...


def find_cause(ranks: Sequence[RankLink], wait: float = 0.0) -> str:
    """Which ranks died and why: those that were killed, before those that failed, before those that
    noticed it. Of those that say the same the first one speaks; one trace is in the log. Empty: all
    live. `wait`: so many seconds they may take to die, all together."""
    return describe_deaths(find_deaths(ranks, wait))


def find_deaths(ranks: Sequence[RankLink], wait: float = 0.0) -> list[RankDeath]:
    deadline = time.monotonic() + wait
    found = (rank.death(max(0.0, deadline - time.monotonic())) for rank in ranks)
    return [death for death in found if death is not None]


def describe_deaths(deaths: Sequence[RankDeath]) -> str:
    killed = [death for death in deaths if not death.reported]
    failed = [death for death in deaths if not death.noticed]
    told: dict[str, list[RankDeath]] = {}
    for death in killed or failed or deaths:
        told.setdefault(death.reason, []).append(death)
    if trace := next((death.trace for death in deaths if death.trace), ""):
        log.error("%s", trace.rstrip())
    return ", ".join(
        first.text + (f" (and {len(others)} more ranks)" if others else "")
        for first, *others in told.values()
    )


def end_start(
    ranks: Sequence[RankLink], error: Exception, wait: float, *, companions: bool
) -> NoReturn:
    """`error` ended a start. Raises CannotStart where ranks died of nothing else, otherwise
    ExecutorDied, with which they were. `companions`: as in `ProcessGroupExecutor`."""
    deaths = find_deaths(ranks, wait)
    leave_to_companions(companions, deaths, error)
    cause = describe_deaths(deaths) or f"the ranks did not start: {error}"
    failed = [death for death in deaths if not death.noticed]
    if failed and all(death.refused for death in failed):
        raise CannotStart(cause) from error
    raise ExecutorDied(cause) from error


def leave_to_companions(companions: bool, deaths: Sequence[RankDeath], error: Exception) -> None:
    """Where all there is to say is that others have gone, another engine says why, and the
    supervisor ends this one meanwhile."""
    noticed = isinstance(error, RankLost) and all(death.noticed for death in deaths)
    if companions and noticed:
        time.sleep(COMPANION_SECONDS)


class ProcessGroupExecutor:
    """`worker` is rank 0 of this engine; `ranks` are the others, in order; `broadcast` reaches them
    and `remote`, which is rank 0 where that is elsewhere. `companions`: other engines share layers,
    and end all together: what is their doing is not this one's to tell. `reporting`: the rank whose
    results count."""

    def __init__(
        self,
        worker: StepWorker,
        ranks: Sequence[RankLink],
        broadcast: Broadcast,
        *,
        companions: bool = False,
        reporting: int = 0,
        remote: RankLink | None = None,
        local_ranks: Sequence[LocalRank] = (),
    ) -> None:
        self.capacity = worker.capacity
        self.local_ranks = local_ranks
        self._worker = worker
        self._ranks = ranks
        self._elsewhere = ranks if remote is None else [remote, *ranks]
        """that may die without this process"""
        self._broadcast = broadcast
        self._companions = companions
        self._reporter = ranks[reporting - 1] if reporting else None
        """None: rank 0"""
        self._drawn: list[DrawnTokens] = []
        """that only the reporter's stage knows"""
        self._occupied: set[int] = set()
        self._failed = False

    def submit(self, plan: StepPlan) -> PendingStep:
        if self._failed:
            return FailedStep(StepSkipped(f"step {plan.number} follows a failed step"))
        self._note_rows(plan)
        return self._launch(plan)

    def _note_rows(self, plan: StepPlan) -> None:
        self._occupied.difference_update(plan.leaves)
        self._occupied.update(join.row for join in plan.joins)

    def _launch(self, plan: StepPlan) -> PendingStep:
        if self._drawn:
            plan, self._drawn = replace(plan, drawn=self._drawn), []
        self._broadcast.send(plan)
        try:
            pending = self._worker.run(plan)
        except StepRefused as error:
            if plan.together:  # the others wait for what it computes
                raise self._end(f"a step of several engines was refused: {error}") from error
            self._failed = True
            return RefusedStep(self, plan, error)
        except Exception as error:
            raise self._blame(plan, error) from error
        return GroupStep(self, plan, LaunchedStep(pending))

    def complete(self, plan: StepPlan, pending: PendingStep) -> StepResult:
        """What counts of a step, once all ranks have run it."""
        if self._reporter is None:
            result = self._own_result(plan, pending)
            self._check_done(plan, self._answers(plan), result)
            return result
        answers = self._answers(plan)
        result = next(answer for rank, answer in answers if rank is self._reporter)
        if not isinstance(result, StepResult) or result.number != plan.number:
            raise self._end(f"{self._source} answers {result} to step {plan.number}")
        self._check_done(plan, answers, result)
        first = self._own_result(plan, pending)  # it ends when the last stage does
        if plan.rows:
            come = DrawnTokens(plan.number, result.advanced, result.tokens, result.drafts)
            self._drawn.append(come)
        between = [one.expert_counts for _, one in answers if isinstance(one, StepDone)]
        counts = b"".join((first.expert_counts, *between, result.expert_counts))
        return replace(result, expert_counts=counts)

    def _own_result(self, plan: StepPlan, pending: PendingStep) -> StepResult:
        """What rank 0 has of a step."""
        try:
            return pending.result()
        except Exception as error:
            raise self._blame(plan, error) from error

    @property
    def _source(self) -> str:
        """Whose results count."""
        return "rank 0" if self._reporter is None else self._reporter.name

    def _check_done(
        self, plan: StepPlan, answers: list[tuple[RankLink, RankAnswer]], result: StepResult
    ) -> None:
        for rank, answer in answers:
            if rank is self._reporter:
                continue
            if not isinstance(answer, StepDone) or answer.number != plan.number:
                raise self._end(
                    f"{rank.name} answers {answer} to step {plan.number}, which rank 0 has run"
                )
            if answer.tokens is not None and answer.tokens != result.tokens:
                text = describe_difference(rank.name, plan, answer.tokens, result, self._source)
                raise self._end(text)

    def expect_refusal(self, plan: StepPlan) -> None:
        """Of all ranks; called in the order of submission, as `complete` is."""
        for rank, answer in self._answers(plan):
            if not isinstance(answer, StepRefusal) or answer.number != plan.number:
                raise self._end(
                    f"{rank.name} answers {answer} to step {plan.number}, which rank 0 has refused"
                )

    def _answers(self, asked: StepPlan | WorkerCommand) -> list[tuple[RankLink, RankAnswer]]:
        try:
            return [(rank, rank.wait()) for rank in self._ranks]
        except RankLost as error:
            raise self._blame(asked, error) from error

    def _blame(self, asked: StepPlan | WorkerCommand, error: Exception) -> ExecutorDied:
        return self._end(self._find_cause(asked, error))

    def _find_cause(self, asked: StepPlan | WorkerCommand, error: Exception) -> str:
        """A rank that was killed makes others fail too: it is the cause."""
        what = f"step {asked.number}" if isinstance(asked, StepPlan) else type(asked).__name__
        deaths = find_deaths(self._elsewhere, DYING_SECONDS)
        leave_to_companions(self._companions, deaths, error)
        if deaths:
            return f"{describe_deaths(deaths)} ({what})"
        if isinstance(error, ExecutorDied | RankLost):
            return f"{error} ({what})"
        return f"rank 0 failed in {what}: {type(error).__name__}: {error}"

    def _end(self, cause: str) -> ExecutorDied:
        """The others hear why."""
        self._broadcast.close(cause)
        return ExecutorDied(cause)

    def recover(self) -> None:
        """Empty every row of every rank."""
        leaves, self._failed = sorted(self._occupied), False
        try:
            self._launch(StepPlan(number=-1, leaves=leaves)).result()
        except StepRefused as error:
            raise self._end(f"the ranks do not recover from a refused step: {error}") from error
        self._occupied.clear()

    def events(self) -> list[ExecutorEvent]:
        if deaths := find_deaths(self._elsewhere):
            lost = RankLost(describe_deaths(deaths))
            leave_to_companions(self._companions, deaths, lost)
            raise self._end(str(lost)) from lost
        return self._worker.events()

    def control(self, command: WorkerCommand) -> list[WorkerState]:
        self._broadcast.send(command)
        try:
            states = [self._worker.control(command)]
        except Exception as error:  # others have carried it out, or wait for this one to
            raise self._blame(command, error) from error
        for rank, answer in self._answers(command):
            if not isinstance(answer, WorkerState):
                raise self._end(f"{rank.name} answers {answer} to {type(command).__name__}")
            states.append(replace(answer, rank=len(states)))
        return states

    def wake_with(self, ring: Callable[[], None]) -> None:
        for part in (self._worker, *self._ranks):
            part.wake_with(ring)

    def close(self, cause: str = "") -> None:
        with ExitStack() as parts:  # whatever interrupts one, the others are closed too
            for part in (self._worker, *reversed(self._ranks)):
                parts.callback(part.close)
            self._broadcast.close(cause)


class GroupStep:
    """A step that all ranks run."""

    def __init__(self, group: ProcessGroupExecutor, plan: StepPlan, pending: PendingStep) -> None:
        self._group = group
        self._plan = plan
        self._pending = pending
        self._result: StepResult | None = None
        self.here = False

    def result(self) -> StepResult:
        if self._result is None:
            self._result = self._group.complete(self._plan, self._pending)
        return self._result


class RefusedStep:
    """A step that rank 0 has refused. The others say so behind what they answer to the steps
    before it, which may still be under way."""

    def __init__(self, group: ProcessGroupExecutor, plan: StepPlan, error: StepRefused) -> None:
        self._group = group
        self._plan = plan
        self._error = error
        self.here = False

    def result(self) -> StepResult:
        self._group.expect_refusal(self._plan)
        raise self._error


def describe_difference(
    name: str, plan: StepPlan, tokens: list[list[int]], result: StepResult, source: str
) -> str:
    """Of what a rank has drawn in a step, and the `source` of its result."""
    place = f"in step {plan.number}"
    if len(tokens) != len(result.tokens):
        return f"{name} has {len(tokens)} spans {place}, {source} has {len(result.tokens)}"
    pairs = zip(plan.rows, tokens, result.tokens, strict=True)
    row, theirs, ours = next(pair for pair in pairs if pair[1] != pair[2])
    return f"{name} has drawn {theirs} {place}, row {row}, where {source} has drawn {ours}"


class RankWorker:
    """What a rank does with the messages of rank 0. `reports`: its results count; `tells_counts`:
    of its stage's experts; `tells_tokens`: to be compared."""

    def __init__(
        self,
        worker: StepWorker,
        *,
        reports: bool = False,
        tells_counts: bool = False,
        tells_tokens: bool = False,
    ) -> None:
        self._worker = worker
        self._reports = reports
        self._tells_counts = tells_counts
        self._tells_tokens = tells_tokens

    def answer(self, message: StepPlan | WorkerCommand) -> RankAnswer:
        """Whatever else is raised ends the rank."""
        if not isinstance(message, StepPlan):
            return self._worker.control(message)
        try:
            result = self._worker.run(message).result()
        except StepRefused as error:
            return StepRefusal(message.number, str(error))
        if self._reports:
            return result
        return StepDone(
            message.number,
            tokens=result.tokens if self._tells_tokens else None,
            expert_counts=result.expert_counts if self._tells_counts else b"",
        )
