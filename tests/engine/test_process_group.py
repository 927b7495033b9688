"""One engine of several ranks, on oracles: refusals of all, deaths of one, steps with others."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from engine_rig import VOCABULARY, Rig
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.engine.executor import ExecutorDied, StepWorker
from vivace.engine.oracle import Faults, InjectedFault, OracleWorker
from vivace.engine.oracle_drafts import OracleDrafts
from vivace.engine.process_group import (
    COMPANION_SECONDS,
    ProcessGroupExecutor,
    RankDeath,
    RankWorker,
    end_start,
)
from vivace.engine.remote_worker import RemoteWorker
from vivace.engine.settings import EngineSettings
from vivace.errors import RankLost, StepRefused
from vivace.launch.faults import with_rank_fault
from vivace.protocol.messages import Capacity, Command, GetState
from vivace.protocol.ranks import RankAnswer
from vivace.protocol.step import EngineShare, StepPlan, StepResult
from vivace.protocol.workers import (
    AddCorpus,
    GetWorkerState,
    MoveExperts,
    WorkerCommand,
    WorkerState,
)

RANKS = 3
CAPACITY = Capacity(pages=8, page_size=4, rows=2, context=32, vocabulary=VOCABULARY)


class RefusingWorker(OracleWorker):
    """Refuses what the oracle's faults would fail at: on every rank the same."""

    def run(self, plan: StepPlan):
        try:
            return super().run(plan)
        except InjectedFault as error:
            raise StepRefused(str(error)) from error


class FakeRank:
    """A rank in the same process; `dies_at`: the number of the step that it does not survive."""

    def __init__(
        self, name: str, worker: StepWorker, dies_at: int | None = None, tells: bool = False
    ) -> None:
        self.name = name
        self.dead = False
        self.plans: list[StepPlan] = []
        self.ring: Callable[[], None] = lambda: None
        self._worker = RankWorker(worker, tells_tokens=tells)
        self._dies_at = dies_at
        self._answers: list[RankAnswer] = []

    def hear(self, message: StepPlan | WorkerCommand) -> None:
        if isinstance(message, StepPlan):
            self.plans.append(message)
            self.dead = self.dead or message.number == self._dies_at
        if not self.dead:
            self._answers.append(self._worker.answer(message))

    def wait(self) -> RankAnswer:
        if not self._answers:
            raise RankLost(f"{self.name}: killed by SIGKILL")
        return self._answers.pop(0)

    def death(self, wait: float = 0.0) -> RankDeath | None:
        return RankDeath(self.name, "killed by SIGKILL", reported=False) if self.dead else None

    def wake_with(self, ring: Callable[[], None]) -> None:
        self.ring = ring

    def close(self) -> None: ...


class FakeBroadcast:
    """Tells ranks of the same process at once."""

    def __init__(self, ranks: list[FakeRank]) -> None:
        self._ranks = ranks
        self.causes: list[str] = []
        """what they were told that their engine dies of"""

    def send(self, message: StepPlan | WorkerCommand) -> None:
        for rank in self._ranks:
            rank.hear(message)

    def close(self, cause: str = "") -> None:
        self.causes.append(cause)


class Group:
    """Builds the executor of a rig, and keeps its ranks."""

    def __init__(
        self,
        *,
        dies_at: int | None = None,
        differs: bool = False,
        tells: bool = False,
        odd: int = 0,
    ) -> None:
        """`odd`: steps after which rank 1 draws other tokens."""
        self._tells, self._odd = tells, odd
        self.ranks: list[FakeRank] = []
        self.broadcast = FakeBroadcast(self.ranks)
        self._dies_at, self._differs = dies_at, differs

    def __call__(self, capacity: Capacity, eos_rate: float, faults: Faults) -> ProcessGroupExecutor:
        def worker(found: Faults) -> OracleWorker:
            how = {"eos_rate": eos_rate, "faults": found, "draft": OracleDrafts(VOCABULARY)}
            return RefusingWorker(capacity, VOCABULARY, **how)

        for rank in range(1, RANKS):
            dies_at = self._dies_at if rank == 2 else None
            own = Faults() if self._differs and rank == 1 else Faults(**vars(faults))
            fault = f"rank-differs@{self._odd}" if self._odd else ""
            runner = with_rank_fault(worker(own), fault, rank)
            self.ranks.append(FakeRank(f"rank {rank}", runner, dies_at, self._tells))
        return ProcessGroupExecutor(worker(faults), self.ranks, self.broadcast)


@settings(max_examples=20)
@given(
    prompts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    depth=st.integers(1, 3),
    width=st.integers(0, 2),
)
def test_ranks_get_every_plan_and_answers_are_the_oracles(
    prompts: list[int], depth: int, width: int
) -> None:
    group = Group()
    rig = Rig(
        EngineSettings(depth=depth, chunk=16, num_speculative_tokens=width),
        executor=group,
    )
    for key, length in enumerate(prompts):
        rig.send(key, [5 + key] * length, 9)
    rig.run()
    for key in range(len(prompts)):
        rig.check(key)
    assert group.ranks[0].plans == group.ranks[1].plans
    assert rig.loop.state().executor == "ProcessGroupExecutor"
    assert len(rig.loop.state().workers) == RANKS


def test_a_refused_step_is_undone_on_all_ranks_and_its_request_found() -> None:
    rig = Rig(EngineSettings(depth=2), executor=Group(), faults=Faults(raise_on_keys={1}))
    for key, token in enumerate((5, 11, 7)):
        rig.send(key, [token] * 6, 9)
    rig.run()
    assert rig.answers[1].finish is not None
    assert rig.answers[1].finish.status == 500
    rig.check(0)
    rig.check(2)
    rig.at_rest()


@pytest.mark.parametrize("depth", [2, 3])
def test_a_step_is_refused_while_others_are_under_way(depth: int) -> None:
    rig = Rig(EngineSettings(depth=depth), executor=Group(), faults=Faults(raise_on_keys={1}))
    rig.send(0, [5] * 6, 40)
    for _ in range(2 * depth):
        rig.loop.step(0)
    rig.send(1, [11] * 6, 9)
    rig.run()
    assert rig.answers[1].finish is not None
    assert rig.answers[1].finish.status == 500
    rig.check(0)
    rig.at_rest()


def test_a_step_that_one_rank_alone_runs_ends_the_engine_with_its_name() -> None:
    """Nodes hear that, too."""
    group = Group(differs=True)
    rig = Rig(executor=group, faults=Faults(raise_on_keys={1}))
    rig.send(1, [11] * 6, 9)
    with pytest.raises(ExecutorDied, match="StepDone") as died:
        rig.run()
    assert group.broadcast.causes == [str(died.value)]


@pytest.mark.parametrize("depth", [1, 3])
def test_ranks_that_draw_the_same_tokens_are_compared_without_a_word(depth: int) -> None:
    rig = Rig(EngineSettings(depth=depth, chunk=4), executor=Group(tells=True))
    for key in range(3):
        rig.send(key, [5 + key] * 6, 12)
    rig.run()
    for key in range(3):
        rig.check(key)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("step", [1, 4])
def test_a_rank_that_draws_another_token_is_named_with_step_and_row(step: int, depth: int) -> None:
    group = Group(tells=True, odd=step)
    rig = Rig(EngineSettings(depth=depth), executor=group)
    rig.send(0, [5] * 6, 30)
    with pytest.raises(ExecutorDied) as died:
        rig.run()
    assert group.broadcast.causes == [str(died.value)]
    assert re.search(r"rank 1 has drawn .* in step \d+, row \d+", str(died.value))


def test_nobody_compares_ranks_that_say_nothing() -> None:
    rig = Rig(executor=Group(odd=1))
    rig.send(0, [5] * 6, 30)
    rig.run()
    rig.check(0)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("step", range(8))
def test_a_dead_rank_is_named(step: int, depth: int) -> None:
    rig = Rig(EngineSettings(depth=depth), executor=Group(dies_at=step))
    for key in range(3):
        rig.send(key, [5 + key] * 6, 30)
    with pytest.raises(ExecutorDied, match=r"rank 2: .*SIGKILL"):
        rig.run()


def test_a_rank_that_dies_while_nobody_asks_rings_and_is_named() -> None:
    group = Group()
    rig = Rig(executor=group)
    assert rig.loop.wait_timeout() is None
    group.ranks[0].dead = True
    group.ranks[0].ring()
    with pytest.raises(ExecutorDied, match=r"rank 1: .*SIGKILL"):
        rig.loop.step(None)


@pytest.mark.parametrize("companions", [True, False])
@pytest.mark.parametrize(("own", "noticed"), [(None, True), (True, True), (False, False)])
def test_in_a_start_who_only_noticed_a_death_leaves_the_word_to_other_engines(
    monkeypatch: pytest.MonkeyPatch, companions: bool, own: bool | None, noticed: bool
) -> None:
    """`own`: whether a rank of this engine only noticed it; None: they live."""
    slept: list[float] = []
    monkeypatch.setattr("vivace.engine.process_group.time.sleep", slept.append)
    death = RankDeath("rank 1", "gone", reported=True, noticed=bool(own))
    rank: Any = SimpleNamespace(death=lambda wait=0.0: None if own is None else death)
    error = RankLost("other ranks do not answer any more")
    with pytest.raises(ExecutorDied, match="gone" if own is not None else "answer"):
        end_start([rank], error, 0.0, companions=companions)
    assert slept == [COMPANION_SECONDS] * (companions and noticed)


def test_a_rank_that_is_dead_does_not_answer_commands() -> None:
    group = Group()
    rig = Rig(executor=group)
    group.ranks[1].dead = True
    with pytest.raises(ExecutorDied, match=r"rank 2: .*GetWorkerState"):
        rig.executor.control(GetWorkerState())


def test_a_rank_that_dies_while_all_carry_out_a_command_is_named() -> None:
    """Experts move by all ranks together: the first one only notices."""
    group = Group()
    rig = Rig(executor=group)

    def move(command: WorkerCommand) -> WorkerState:
        raise RankLost("other ranks do not answer any more")

    rig.executor._worker.control = move
    group.ranks[1].dead = True
    with pytest.raises(ExecutorDied, match=r"rank 2: .*MoveExperts"):
        rig.executor.control(MoveExperts([], []))


def test_a_command_that_rank_0_alone_fails_at_ends_the_engine_with_why() -> None:
    """The others have carried it out, and their answers would be taken for those to a step."""
    group = Group()
    rig = Rig(executor=group)

    def add(command: WorkerCommand) -> WorkerState:
        raise MemoryError("no memory for the n-grams of a text")

    rig.executor._worker.control = add
    rig.mailbox.post(Command(ticket=1, body=AddCorpus("a", b"")))
    with pytest.raises(ExecutorDied, match="AddCorpus") as died:
        rig.run()
    assert "rank 0" in str(died.value) and "n-grams" in str(died.value)
    assert group.broadcast.causes == [str(died.value)]


def test_other_nodes_hear_what_the_engine_is_closed_for() -> None:
    group = Group()
    rig = Rig(executor=group)
    rig.loop.close("no vocabulary")
    assert group.broadcast.causes == ["no vocabulary"]


def test_what_rank_0_answers_wrongly_from_another_node_is_told() -> None:
    group, rank = Group(), FakeRank("rank 0 (node 1)", OracleWorker(CAPACITY, VOCABULARY))
    remote = RemoteWorker(rank, CAPACITY)
    executor = ProcessGroupExecutor(remote, [], group.broadcast, remote=rank)
    rank.hear(StepPlan(number=7))
    with pytest.raises(ExecutorDied, match="StepDone"):
        executor.control(GetWorkerState())
    assert "rank 0 (node 1)" in group.broadcast.causes[0]


# steps with other engines


class OtherEngine:
    """Of two engines the other one, which computes as many tokens as it was told, step by step."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.agreed: list[list[int]] = []

    @property
    def next_step(self) -> int:
        return len(self.agreed) + 1

    @property
    def awaited(self) -> bool:
        return bool(self.tokens)

    def agree(self, share: EngineShare) -> list[EngineShare]:
        other = EngineShare(self.tokens.pop(0) if self.tokens else 0, single=False)
        self.agreed.append([share.tokens, other.tokens])
        return [share, other]

    def wake_with(self, ring: Callable[[], None]) -> None:
        self.ring = ring

    def stop(self) -> None: ...


def test_an_engine_steps_with_the_others_also_when_it_has_nothing_to_do() -> None:
    other = OtherEngine([7, 3])
    group = Group()
    rig = Rig(executor=group, lockstep=other)
    assert rig.loop.wait_timeout() == 0.0, "it may not sleep while another one waits"
    rig.run()
    assert other.agreed == [[0, 7], [0, 3]]
    assert [(plan.rows, plan.shares) for plan in group.ranks[0].plans] == [
        ([], [EngineShare(), EngineShare(tokens, single=False)]) for tokens in (7, 3)
    ]
    assert rig.loop.wait_timeout() is None


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_answers_are_the_same_beside_others(depth: int) -> None:
    other = OtherEngine([2] * 25)
    rig = Rig(EngineSettings(depth=depth), executor=Group(), lockstep=other)
    for key in range(3):
        rig.send(key, [5 + key] * 6, 12)
    rig.run()
    for key in range(3):
        rig.check(key)
    rig.at_rest()
    assert not other.tokens


def test_a_result_is_read_once() -> None:
    group = Group()
    rig = Rig(executor=group)
    pending = rig.executor.submit(StepPlan(number=0))
    first: StepResult = pending.result()
    assert pending.result() is first


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_command_is_answered_while_another_engine_steps_on(depth: int) -> None:
    """Nothing may be in flight then, not even a step that is only there for the others."""
    other = OtherEngine([2] * 500)
    rig = Rig(EngineSettings(depth=depth), executor=Group(), lockstep=other)
    rig.send(0, [5] * 6, 12)
    rig.step(4)
    rig.mailbox.post(Command(1, GetState()))
    rig.step(2 * depth + 2)
    assert len(rig.replies) == 1
