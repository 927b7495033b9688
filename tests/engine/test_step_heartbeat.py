"""What an engine's heartbeat says of steps: who may be what it dies of, and when it is late."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.engine.executor import CompletedStep, with_heartbeat
from vivace.engine.loop import HeartbeatMailbox
from vivace.engine.step_heartbeat import FACTOR, UNKNOWN, StepHeartbeat, StepTimes, step_work
from vivace.protocol.heartbeat import (
    IDLE,
    MIN_ALLOWANCE,
    SCHEDULING,
    SECOND,
    STEPPING,
    EngineHeartbeat,
    EngineProgress,
    Span,
)
from vivace.protocol.messages import Capacity, LogprobOptions, SamplingParams, ToEngine
from vivace.protocol.shared_memory import SharedMemory, new_descriptor, reserve
from vivace.protocol.step import ExecutorEvent, Join, StepPlan, StepResult
from vivace.protocol.workers import WorkerCommand, WorkerState

CAPACITY = Capacity(pages=8, page_size=16, rows=4, context=64, vocabulary=100)
HOUR = 3600 * SECOND


@pytest.fixture
def memory() -> SharedMemory:
    return reserve(new_descriptor(), 2)


class Mailbox:
    def __init__(self, see: Callable[[], object]) -> None:
        self._see = see

    def receive(self, wait: float | None) -> list[ToEngine]:
        self._see()
        return []

    def send(self, frontend: int, message: object) -> None: ...

    def wake(self) -> None: ...


def test_the_mailbox_tells_rest_from_work(memory: SharedMemory) -> None:
    writer, reader = EngineHeartbeat(memory.engine()), EngineHeartbeat(memory.engine())
    writer.begin()
    seen: list[tuple[int, int]] = []
    mailbox = HeartbeatMailbox(
        Mailbox(lambda: seen.append((reader.read().kind, reader.read().beats))),
        writer,
        StepHeartbeat(writer),
    )
    mailbox.receive(0)
    first = reader.read()
    mailbox.receive(None)
    assert seen[1][0] == IDLE and first.kind != IDLE and reader.read().kind != IDLE
    assert seen[0][1] < first.beats < seen[1][1] < reader.read().beats


# -- steps -----------------------------------------------------------------------------------------


def join(row: int, key: int, tokens: int = 3, logprobs: LogprobOptions | None = None) -> Join:
    return Join(
        row=row,
        key=key,
        tokens=list(range(tokens)),
        prompt=tokens,
        cached=0,
        pages=[row],
        sampling=SamplingParams(),
        logprobs=logprobs,
    )


class Steps:
    """A runner that notes what the heartbeat shows while it runs."""

    capacity = CAPACITY

    def events(self) -> list[ExecutorEvent]:
        return []

    def control(self, command: WorkerCommand) -> WorkerState:
        return WorkerState()

    def wake_with(self, ring: Callable[[], None]) -> None: ...

    def __init__(self, memory: SharedMemory) -> None:
        self.heartbeat = EngineHeartbeat(memory.engine())
        self.seen: list[tuple[int, list[int], int]] = []

    def run(self, plan: StepPlan) -> CompletedStep:
        step, spans = self.heartbeat.fatal_spans()
        self.seen.append((step, [span.key for span in spans], self.heartbeat.read().tokens))
        tokens: list[list[int]] = [[] for _ in plan.rows]
        return CompletedStep(StepResult(number=plan.number, advanced=plan.counts, tokens=tokens))

    def close(self) -> None: ...


def test_every_step_shows_who_is_in_it(memory: SharedMemory) -> None:
    steps = Steps(memory)
    runner = with_heartbeat(steps, StepHeartbeat(EngineHeartbeat(memory.engine())))
    runner.run(StepPlan(number=0, rows=[0, 2], counts=[3, 3], joins=[join(0, 70), join(2, 72)]))
    runner.run(StepPlan(number=1, rows=[0, 2], counts=[1, 1]))
    runner.run(StepPlan(number=2, rows=[0, 2], counts=[1, 1]))
    runner.run(StepPlan(number=3, rows=[2, 0], counts=[1, 3], leaves=[0], joins=[join(0, 71)]))
    runner.run(StepPlan(number=-1, leaves=[0, 2]))
    runner.run(StepPlan(number=4, rows=[1], counts=[3], joins=[join(1, 73)]))
    assert steps.seen == [
        (1, [70, 72], 6),
        (2, [70, 72], 2),
        (3, [70, 72], 2),
        (4, [72, 71], 4),
        (4, [], 0),
        (5, [73], 3),
    ]
    assert steps.heartbeat.fatal_spans()[1] == [], "the step is over"


def test_a_step_that_raises_stays_the_one_to_blame(memory: SharedMemory) -> None:
    steps = Steps(memory)
    runner = with_heartbeat(steps, StepHeartbeat(EngineHeartbeat(memory.engine())))

    def fail(plan: StepPlan) -> CompletedStep:
        raise RuntimeError("no such device any more")

    steps.run = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        runner.run(StepPlan(number=0, rows=[1], counts=[3], joins=[join(1, 9)]))
    assert steps.heartbeat.fatal_spans() == (1, [Span(9, 1)])


# -- how long a step may take ----------------------------------------------------------------------


class LateStep:
    here = False

    def __init__(self, plan: StepPlan) -> None:
        self._plan = plan

    def result(self) -> StepResult:
        tokens: list[list[int]] = [[] for _ in self._plan.rows]
        return StepResult(number=self._plan.number, advanced=self._plan.counts, tokens=tokens)


def test_steps_that_overlap_may_take_as_long_as_all_of_them(memory: SharedMemory) -> None:
    steps = Steps(memory)
    steps.run = LateStep  # type: ignore[method-assign,assignment]
    runner = with_heartbeat(steps, StepHeartbeat(EngineHeartbeat(memory.engine())))
    first = runner.run(StepPlan(number=0, rows=[0], counts=[3], joins=[join(0, 70)]))
    alone = steps.heartbeat.read().allowance
    second = runner.run(StepPlan(number=1, rows=[0], counts=[1]))
    assert steps.heartbeat.read().allowance > alone, "the device has the first to do, too"
    first.result()
    assert [span.key for span in steps.heartbeat.fatal_spans()[1]] == [70], "the second runs"
    second.result()
    assert steps.heartbeat.fatal_spans()[1] == [], "both are over"


def test_messages_between_steps_in_flight_do_not_hide_them(memory: SharedMemory) -> None:
    """A later stage computes while the engine reads messages: it is still in a step."""
    steps, writer = Steps(memory), EngineHeartbeat(memory.engine())
    steps.run = LateStep  # type: ignore[method-assign,assignment]
    in_flight = StepHeartbeat(writer)
    runner = with_heartbeat(steps, in_flight)
    mailbox = HeartbeatMailbox(Mailbox(lambda: None), writer, in_flight)
    pending = [
        runner.run(StepPlan(number=row, rows=[row], counts=[3], joins=[join(row, 70 + row)]))
        for row in range(3)
    ]
    seen: list[tuple[int, list[int], int]] = []
    for step in pending:
        mailbox.receive(0)
        activity = steps.heartbeat.read()
        keys = sorted(span.key for span in steps.heartbeat.fatal_spans()[1])
        seen.append((activity.kind, keys, activity.tokens))
        assert activity.allowance > MIN_ALLOWANCE * SECOND
        step.result()
    assert seen == [(STEPPING, [70, 71, 72], 9), (STEPPING, [71, 72], 6), (STEPPING, [72], 3)]
    mailbox.receive(0)
    assert steps.heartbeat.read().kind == SCHEDULING and not steps.heartbeat.fatal_spans()[1]


def test_nothing_is_known_at_first_then_more_work_may_take_longer() -> None:
    times = StepTimes(2.0)
    assert times.allowance(1) == UNKNOWN
    times.learn(8, 0.1)
    assert times.allowance(8) == times.allowance(1) == 2.0
    assert times.allowance(2048) >= FACTOR * 0.1 * 2048 / 16
    assert step_work([(1024, 8192)], 3) > step_work([(1024, 1024)], 3) > 1024


def test_a_long_prompt_is_allowed_its_time() -> None:
    """Time in proportion to work, learned from small steps only."""
    times = StepTimes(2.0)
    for work in (1, 8, 8):
        times.learn(work, 0.01 * work)
    assert times.allowance(step_work([(8192, 8192)], 0)) > 8192 * 0.01


@pytest.mark.parametrize("known", [False, True], ids=["first", "after others"])
@pytest.mark.parametrize(
    ("logprobs", "slower"),
    [(LogprobOptions(start=0), 8 * 768), (LogprobOptions(start=0, top=20), 8 * 768), (None, 0)],
)
def test_log_probabilities_of_prompts_are_work(
    memory: SharedMemory, logprobs: LogprobOptions | None, slower: int, known: bool
) -> None:
    """Of 256 prompts of three tokens: a step of them is allowed what their logits take."""
    steps, progress = StepHeartbeat(EngineHeartbeat(memory.engine())), EngineProgress(memory)
    for work in (1, 8, 64, 512):
        steps._plain_times.learn(work, 0.01 * work)
        if known:
            steps._scored_times.learn(9 * work, 0.01 * 9 * work)
    rows = list(range(256))
    joins = [join(row, row, logprobs=logprobs) for row in rows]
    steps.begin(StepPlan(number=1, rows=rows, counts=[3] * 256, joins=joins))
    allowance = progress.activity().allowance / SECOND
    assert allowance >= 0.01 * (768 + slower)
    assert bool(slower) == (allowance > 100)


def test_log_probabilities_of_outputs_are_work_of_their_own(memory: SharedMemory) -> None:
    """Steps with them do not make those without look slow, nor the other way round."""
    steps, progress = StepHeartbeat(EngineHeartbeat(memory.engine())), EngineProgress(memory)
    for row, logprobs, seconds in ((0, None, 0.001), (1, LogprobOptions(), 10.0)):
        plan = StepPlan(
            number=row, rows=[row], counts=[1], joins=[join(row, row, logprobs=logprobs)]
        )
        for _ in range(20):
            step = steps.begin(plan)
            step.times.learn(step.work, seconds)
    for row, seconds in ((0, 2.0), (1, 4 * 10.0)):
        steps.begin(StepPlan(number=3 + row, rows=[row], counts=[1]))
        assert progress.activity().allowance / SECOND == pytest.approx(seconds, rel=0.5)
    steps.begin(StepPlan(number=5, rows=[0], counts=[1], leaves=[1]))
    assert not steps._scored


def test_a_stopped_process_is_no_slow_device() -> None:
    times = StepTimes(2.0)
    times.learn(1, 0.02)
    times.learn(1, 20.0)
    assert times.allowance(1) == 2.0
    times.learn(600, 2000.0)
    assert times.allowance(600) < 200.0


def test_a_device_that_became_slow_is_believed_after_a_while() -> None:
    times = StepTimes(2.0)
    times.learn(1, 0.02)
    for _ in range(20):
        times.learn(1, 5.0)
    assert times.allowance(1) >= 5.0


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 100)), max_size=50))
def test_allowances_are_sane(steps: list[tuple[int, float]]) -> None:
    times = StepTimes(2.0)
    for work, seconds in steps:
        times.learn(work, seconds)
    for work in (1, 100, 10**6):
        assert times.allowance(work) >= 2.0
