"""The loop: depth, messages per frontend, commands between steps, drain, aborts."""

from __future__ import annotations

import threading

import pytest
from engine_rig import EOS, Rig

from vivace.engine.expert_distribution import NoExpertDistribution
from vivace.engine.loop import Loop
from vivace.engine.result_processor import MAX_PREFIXES, Aborts
from vivace.engine.settings import EngineSettings
from vivace.protocol.channel import LocalMailbox
from vivace.protocol.messages import (
    KEY_SHIFT,
    Cancel,
    Command,
    Deltas,
    Drain,
    FlushCache,
    GetState,
    LastRequest,
    RecordExperts,
    Reply,
    Request,
    SamplingParams,
)
from vivace.protocol.step import StepPlan, StepResult
from vivace.protocol.workers import AddCorpus, CorpusRemoved, RemoveCorpus


def rig_with(**options: object) -> Rig:
    return Rig(EngineSettings(eos_ids=(EOS,), **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_depth_plans_are_in_flight_and_committed_in_order(depth: int) -> None:
    rig = rig_with(depth=depth)
    submitted: list[int] = []
    landed: list[int] = []
    most = 0
    submit = rig.executor.submit

    class Watched:
        def __init__(self, plan: StepPlan) -> None:
            self.plan, self.pending = plan, submit(plan)

        def result(self) -> StepResult:
            landed.append(self.plan.number)
            return self.pending.result()

    def spy(plan: StepPlan) -> Watched:
        nonlocal most
        submitted.append(plan.number)
        most = max(most, len(submitted) - len(landed))
        return Watched(plan)

    rig.executor.submit = spy  # type: ignore[method-assign, assignment]
    rig.send(1, [1, 2], 12, ignore_eos=True)
    rig.run()
    assert submitted == landed == list(range(12))
    assert not rig.loop.step(0), "there is nothing left to do"
    assert most == depth
    rig.check(1)


def test_answers_go_to_the_frontend_that_asked_marked_with_the_epoch() -> None:
    rig = rig_with()
    sent: list[tuple[int, Deltas]] = []
    rig.mailbox.send = lambda frontend, message: sent.append((frontend, message))  # type: ignore[method-assign, assignment]
    rig.loop = Loop(rig.scheduler, rig.executor, rig.mailbox, epoch=7, clock=rig.clock)
    for frontend in (0, 3):
        rig.send(frontend << KEY_SHIFT | 5, [1], 2, ignore_eos=True)
    while rig.loop.wait_timeout() is not None or not sent:
        rig.loop.step(0)
    assert {frontend for frontend, _ in sent} == {0, 3}
    for frontend, deltas in sent:
        assert deltas.epoch == 7
        assert {delta.key >> KEY_SHIFT for delta in deltas.deltas} == {frontend}


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_an_abort_frees_everything_once_the_steps_in_flight_have_landed(depth: int) -> None:
    rig = rig_with(depth=depth, prefix_cache=False)
    for key in (1, 2):
        rig.send(key, [key] * 9, 50, ignore_eos=True)
    rig.step(9)
    rig.cancel(1)
    rig.step(2 * depth)
    state = rig.scheduler.state()
    finish = rig.answers[1].finish
    assert finish is not None and (finish.type, finish.status) == ("abort", None)
    assert state.running == 1
    (survivor,) = rig.scheduler._table.running()
    assert survivor.lease is not None
    assert state.used_tokens == len(survivor.lease.pages) * 4
    rig.run()
    rig.check(2)


def test_what_a_plan_in_flight_mentions_is_held_until_it_has_landed() -> None:
    rig = rig_with(prefix_cache=False)
    rig.send(1, [1] * 9, 50, ignore_eos=True)
    rig.loop._receive(0)
    scheduler = rig.scheduler
    plans = [scheduler.plan(idle=True), scheduler.plan(idle=False)]
    used = scheduler.state().used_tokens
    assert used > 0
    scheduler.cancel(Cancel(keys=[1]))
    for plan in plans:
        assert plan is not None
        assert scheduler.state().used_tokens == used and scheduler.audit() == []
        scheduler.commit(plan, rig.executor.submit(plan).result())
    rig.at_rest()


def test_aborts_of_waiting_requests_by_prefix_and_all() -> None:
    rig = rig_with(rows=1)
    for key, rid in enumerate(["a-1", "a-2", "b-1", "c"]):
        rig.send(key, [key], 30, rid=rid, ignore_eos=True)
    rig.step(3)
    rig.cancel(rid_prefix="a-")
    rig.step(4)
    ended = {key for key, answer in rig.answers.items() if answer.finish is not None}
    assert ended == {0, 1}
    rig.cancel(rid_prefix="")
    rig.step(4)
    assert all(answer.finish is not None for answer in rig.answers.values())
    rig.at_rest()


def test_aborts_come_before_the_requests_they_are_meant_for() -> None:
    """Those of other frontends: they were tokenized, or waited for an engine."""
    rig = rig_with()
    begin = rig.clock.now
    rig.cancel(rid_prefix="a-", when=begin + 1)
    rig.cancel(rid_prefix="a-", when=begin)
    rig.step()
    asked = [("a-1", 0.5), ("a-", 1), ("a-2", 1.5), ("a", 0.5), ("b", 0.5)]
    for key, (rid, after) in enumerate(asked):
        rig.send(key, [key], 3, rid=rid, begin=begin + after)
    rig.run()
    finishes = [answer.finish for answer in rig.answers.values()]
    assert [finish is not None and finish.type == "abort" for finish in finishes] == [
        True, True, False, False, False
    ]  # fmt: skip
    rig.cancel(rid_prefix="", when=begin + 9)
    rig.send(10, [1], 3, begin=begin + 8)
    rig.send(11, [1], 3, begin=begin + 10)
    rig.run()
    ended = [rig.answers[key].finish for key in (10, 11)]
    assert [finish and finish.type == "abort" for finish in ended] == [True, False]
    rig.at_rest()


def test_an_abort_is_not_for_what_began_later() -> None:
    rig = rig_with()
    for key in (0, 1):
        rig.send(key, [key], 30, begin=float(key), ignore_eos=True)
    rig.step(2)
    rig.cancel(rid_prefix="", when=0.5)
    rig.run()
    rig.check(1)
    assert rig.answers[0].finish is not None and rig.answers[0].finish.type == "abort"


def test_only_so_many_aborts_are_remembered() -> None:
    aborts = Aborts()
    for number in range(3 * MAX_PREFIXES):
        aborts.add(Cancel(rid_prefix=f"{number:06}", when=float(number)))
    assert len(aborts._when) == MAX_PREFIXES
    last = f"{3 * MAX_PREFIXES - 1:06}"
    request = Request(key=1, rid=last + "x", tokens=[1], sampling=SamplingParams(), begin=0.0)
    assert aborts.concern(request)


def test_a_client_that_has_its_answer_hears_nothing_more() -> None:
    rig = rig_with(depth=2)
    rig.send(1, [1], 30, ignore_eos=True)
    rig.step(6)
    known = len(rig.answers[1].deltas)
    rig.cancel(1, finished=True)
    rig.run()
    assert len(rig.answers[1].deltas) == known and rig.answers[1].finish is None
    rig.at_rest()


def test_unknown_keys_are_ignored() -> None:
    rig = rig_with()
    rig.cancel(17)
    rig.step()
    rig.at_rest()


def test_commands_wait_until_nothing_is_in_flight() -> None:
    rig = rig_with(depth=3)
    rig.send(1, [1, 2, 3, 4, 5], 20, ignore_eos=True)
    rig.step(7)
    rig.mailbox.post(Command(1, GetState()))
    rig.mailbox.post(Command(2, FlushCache()))
    while len(rig.replies) < 2:
        rig.step()
    state, refused = rig.replies
    assert state.state is not None and state.state.running == 1
    assert state.state.executor == "OracleExecutor" and state.state.audit == []
    assert (refused.ticket, refused.ok) == (2, False)
    rig.run()
    rig.check(1)
    assert rig.scheduler.state().cached_tokens > 0
    rig.mailbox.post(Command(3, FlushCache()))
    rig.run()
    assert rig.replies[-1].ok and rig.scheduler.state().cached_tokens == 0


def test_a_drain_waits_for_the_last_request_of_every_frontend() -> None:
    """Whatever overtakes it: to a new engine they send again what the dead one left."""
    rig = rig_with()
    rig.mailbox.post(Command(5, Drain(timeout=60, frontends=[0, 2])))
    rig.step(3)
    rig.send(1, [1], 10, ignore_eos=True)
    rig.mailbox.post(LastRequest(0))
    rig.run()
    rig.check(1)
    assert rig.replies == []
    rig.send(2 << KEY_SHIFT | 1, [1], 10, ignore_eos=True)
    rig.mailbox.post(LastRequest(2))
    rig.step(3)
    assert rig.replies == []
    rig.run()
    rig.check(2 << KEY_SHIFT | 1)
    assert [(reply.ticket, reply.ok) for reply in rig.replies] == [(5, True)]


@pytest.mark.parametrize("depth", [1, 3])
def test_a_drain_ends_what_runs_and_waits_at_its_deadline(depth: int) -> None:
    rig = rig_with(rows=2, depth=depth)
    for key in (1, 2, 3):
        rig.send(key, [key], 150, ignore_eos=True)
    rig.step(3)
    rig.mailbox.post(Command(5, Drain(timeout=0.05, frontends=[])))
    rig.step(10)
    for key in (1, 2, 3):
        finish = rig.answers[key].finish
        assert finish is not None and (finish.type, finish.status) == ("abort", 503)
        assert finish.retry_after
    assert [(reply.ticket, reply.ok) for reply in rig.replies] == [(5, False)]
    assert rig.replies[0].message.startswith("3 requests")
    rig.run()
    assert rig.scheduler.state().audit == [] and not rig.scheduler.busy


def test_the_mailbox_is_read_every_so_many_turns_while_busy() -> None:
    rig = rig_with(receive_interval=5)
    rig.send(1, [1], 40, ignore_eos=True)
    rig.step()
    rig.step(3)
    assert all(rig.loop.step(0) for _ in range(4)), "a turn that lands a step has done something"
    reads = 0
    receive = rig.mailbox.receive

    def counted(wait: float | None):  # type: ignore[no-untyped-def]
        nonlocal reads
        reads += 1
        return receive(wait)

    rig.mailbox.receive = counted  # type: ignore[method-assign]
    rig.step(20)
    assert reads == 4
    rig.run()
    rig.check(1)


def test_run_serves_until_stopped_from_another_thread() -> None:
    rig = rig_with()
    done = threading.Event()

    def deliver(message: object) -> None:
        if isinstance(message, Deltas) and any(delta.finish for delta in message.deltas):
            done.set()

    mailbox = LocalMailbox(deliver)
    loop = Loop(rig.scheduler, rig.executor, mailbox, depth=2, clock=rig.clock)
    thread = threading.Thread(target=loop.run)
    thread.start()
    request = rig.send(1, [1, 2], 5, ignore_eos=True)
    mailbox.post(request)
    assert done.wait(20)
    loop.stop()
    thread.join(20)
    assert not thread.is_alive()


def test_a_loop_needs_a_depth() -> None:
    rig = rig_with()
    with pytest.raises(ValueError, match="depth"):
        Loop(rig.scheduler, rig.executor, rig.mailbox, depth=0, clock=rig.clock)


def test_who_added_a_corpus_hears_of_its_removal() -> None:
    """It would tell the next engine of it; nobody else does."""
    rig, sent = rig_with(), list[tuple[int, object]]()
    rig.mailbox.send = lambda frontend, message: sent.append((frontend, message))  # type: ignore[method-assign]
    adding, removing = 1 << KEY_SHIFT, 2 << KEY_SHIFT
    for ticket, body in (
        (adding, AddCorpus("a", b"")),
        (removing, RemoveCorpus("a")),
        (removing, RemoveCorpus("of a flag")),
    ):
        rig.mailbox.post(Command(ticket, body))
        rig.run()
    replies = [(1, Reply(adding, True)), (2, Reply(removing, True)), (2, Reply(removing, True))]
    assert sent == [replies[0], (1, CorpusRemoved("a")), *replies[1:]]


@pytest.mark.parametrize(
    ("error", "status"), [(OSError("/x: No space left on device"), 500), (ValueError("none"), 400)]
)
def test_a_file_that_cannot_be_written_is_no_fault_of_who_asks(
    error: Exception, status: int
) -> None:
    rig = rig_with()

    class Failing(NoExpertDistribution):
        def execute(self, command: RecordExperts) -> str:
            raise error

    rig.loop._experts = Failing()
    rig.mailbox.post(Command(1, RecordExperts("dump")))
    rig.run()
    assert rig.replies == [Reply(1, False, str(error), status=status)]
