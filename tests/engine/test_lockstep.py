"""Engines that share layers take every step together: real waiting, in threads and processes."""

from __future__ import annotations

import fcntl
import mmap
import os
import random
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from engine_rig import Rig

from vivace.engine.lockstep import MOST_TOKENS, STEPS, SharedLockstep, pack, unpack
from vivace.engine.settings import EngineSettings
from vivace.protocol.bells import new_bells
from vivace.protocol.messages import Deltas
from vivace.protocol.shared_memory import words
from vivace.protocol.step import EngineShare, StepPlan
from vivace.system_calls import open_memory


@contextmanager
def make_lockstep(count: int, steps: int = 0) -> Iterator[list[SharedLockstep]]:
    memory = words(memoryview(mmap.mmap(-1, mmap.PAGESIZE))[: 16 * count])
    bells = [new_bells() for _ in range(count)]
    ends = [SharedLockstep(memory, index, bells, steps) for index in range(count)]
    try:
        yield ends
    finally:
        for end in ends:
            end.stop()


def test_bells_may_have_any_number() -> None:
    """One that an engine with many descriptors has, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("the limit on open files is low")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    bells = new_bells(lambda number: fcntl.fcntl(number, fcntl.F_DUPFD, 1100))
    try:
        memory = words(memoryview(mmap.mmap(-1, mmap.PAGESIZE))[:32])
        rung, all_bells = threading.Event(), [bells, new_bells()]
        end, other = (SharedLockstep(memory, index, all_bells) for index in range(2))
        end.wake_with(rung.set)
        os.eventfd_write(bells.awaited, 1)
        assert rung.wait(10)
        thread = threading.Thread(target=end.agree, args=(EngineShare(1),))
        thread.start()
        other.agree(EngineShare(2))
        thread.join(10)
        assert not thread.is_alive()
        end.stop()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("before", [0, STEPS - 100])
def test_all_know_what_each_computes(before: int) -> None:
    """Also where the numbers of steps begin again."""
    with make_lockstep(4, before) as ends:
        found: dict[int, list[list[EngineShare]]] = {}

        def run(index: int) -> None:
            chance = random.Random(index)
            steps = []
            for step in range(200):
                if chance.random() < 0.05:
                    time.sleep(0.001)
                steps.append(ends[index].agree(make_share(step, index)))
            found[index] = steps

        threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    wanted = [[make_share(step, index) for index in range(4)] for step in range(200)]
    assert all(found[index] == wanted for index in range(4))


def make_share(step: int, index: int) -> EngineShare:
    return EngineShare(1000 * step + index, (step + index) % 2 == 0, (step + index) % 3 == 0)


def test_words_hold_the_largest_step() -> None:
    for share in (EngineShare(MOST_TOKENS, False, True), EngineShare(), EngineShare(1, True)):
        assert unpack(pack(share)) == share
    with pytest.raises(ValueError, match="tokens"):
        pack(EngineShare(MOST_TOKENS + 1))


def test_an_engine_that_is_awaited_is_rung_and_one_that_is_stopped_waits_no_more() -> None:
    with make_lockstep(2) as ends:
        rung, found = threading.Event(), list[list[EngineShare]]()
        ends[1].wake_with(rung.set)
        assert not ends[1].awaited
        waiting = threading.Thread(target=lambda: found.append(ends[0].agree(EngineShare(5))))
        waiting.start()
        assert rung.wait(10)
        assert ends[1].awaited
        assert not ends[0].awaited
        assert not found
        ends[0].stop()
        waiting.join(10)
        assert found == [[EngineShare(), EngineShare()]]


@pytest.mark.parametrize("depth", [1, 2])
def test_loops_in_lockstep_answer_like_alone(depth: int) -> None:
    """Requests come to some of three engines at any time; all compute every step."""
    chance = random.Random(depth)
    with make_lockstep(3) as ends:
        rigs = [Rig(EngineSettings(depth=depth), lockstep=end) for end in ends]
        steps: list[list[StepPlan]] = [[], [], []]
        for rig, seen in zip(rigs, steps, strict=True):
            keep_plans(rig, seen)
        with serve(rigs):
            for key in range(30):
                rig = rigs[chance.choice([0, 0, 1, 2])]
                rig.send(key, [5 + key] * chance.randint(1, 30), chance.randint(1, 20))
                time.sleep(chance.choice([0.0, 0.0, 0.005]))
            for rig in rigs:
                wait_for_answers(rig)
    for rig in rigs:
        for key in rig.answers:
            rig.check(key)
    shared = [[plan.shares for plan in seen if plan.shares] for seen in steps]
    assert shared[0] == shared[1] == shared[2]
    for index, seen in enumerate(steps):
        for plan in seen:
            share = EngineShare(sum(plan.counts), all(count == 1 for count in plan.counts))
            assert plan.shares[index] == share if plan.shares else not plan.rows


@pytest.mark.parametrize("decodes", [1, 2])
def test_prompts_are_computed_in_the_same_steps(decodes: int) -> None:
    """By engines that have begun a step apart: who decodes would wait for the other's chunk."""
    with make_lockstep(2) as ends:
        settings = EngineSettings(chunk=8, stall_target=10.0, continuous_decode_steps=decodes)
        rigs = [Rig(settings, lockstep=end, pages=200, context=400) for end in ends]
        seen = list[StepPlan]()
        keep_plans(rigs[0], seen)
        for rig, length in zip(rigs, (1, 9), strict=True):
            rig.send(0, [5] * length, 100)
            rig.send(1, [7] * 200, 1)
        with serve(rigs):
            for rig in rigs:
                wait_for_answers(rig)
    chunks = [[share.tokens > 1 for share in plan.shares] for plan in seen]
    assert 25 <= sum(map(any, chunks)) <= 33  # 52 and 58 where each goes by its own steps


@contextmanager
def serve(rigs: list[Rig]) -> Iterator[None]:
    ended = threading.Event()

    def run(rig: Rig) -> None:
        while not ended.is_set():
            rig.clock.now += 0.01
            rig.loop.step(rig.loop.wait_timeout())

    threads = [threading.Thread(target=run, args=(rig,)) for rig in rigs]
    for thread in threads:
        thread.start()
    yield
    ended.set()
    for rig in rigs:
        rig.loop.stop()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def keep_plans(rig: Rig, seen: list[StepPlan]) -> None:
    submit = rig.executor.submit

    def keep(plan: StepPlan):
        seen.append(plan)
        return submit(plan)

    rig.executor.submit = keep  # type: ignore[method-assign]


def wait_for_answers(rig: Rig) -> None:
    for _ in range(1000):
        for message in rig.mailbox.collect():
            if isinstance(message, Deltas):
                for delta in message.deltas:
                    rig.answers[delta.key].add(delta, 0.0)
        if all(answer.finish is not None for answer in rig.answers.values()):
            return
        time.sleep(0.01)
    raise AssertionError(rig.scheduler.state())


CHILD = """
import mmap, sys
from vivace.engine.lockstep import SharedLockstep
from vivace.protocol.step import EngineShare
from vivace.protocol.bells import Bells
from vivace.protocol.shared_memory import words
memory, index, *bells = map(int, sys.argv[1:])
pairs = [Bells(*bells[i : i + 2]) for i in range(0, len(bells), 2)]
view = words(memoryview(mmap.mmap(memory, mmap.PAGESIZE))[: 16 * len(pairs)])
end = SharedLockstep(view, index, pairs)
for step in range(300):
    assert end.agree(EngineShare(step)) == [EngineShare(step)] * len(pairs), step
"""


def test_processes_agree() -> None:
    memory = open_memory("lockstep")
    os.ftruncate(memory, mmap.PAGESIZE)
    bells = [new_bells() for _ in range(3)]
    numbers = [number for pair in bells for number in (pair.awaited, pair.arrived)]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, *map(str, (memory, index, *numbers))],
            pass_fds=[memory, *numbers],
        )
        for index in range(3)
    ]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    for pair in bells:
        os.close(pair.awaited)
        os.close(pair.arrived)
    os.close(memory)
