"""Engines whose layers several ranks share, all in one process: each rank has a thread and a worker
of its own, and they meet in shared memory as the ranks of a server do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from descriptors import rank_memories
from engine_under_test import Answer, Engine, Setting

from vivace.config.config import Config
from vivace.config.parallelism import requested_sizes
from vivace.engine.executor import StepWorker, first_stage
from vivace.engine.lockstep import SharedLockstep
from vivace.engine.process_group import ProcessGroupExecutor, RankDeath, RankWorker
from vivace.launch.expert_settings import expert_distribution
from vivace.launch.grammars import grammar_compiler, grammar_processors
from vivace.platforms.cpu.facts import has_kernels
from vivace.platforms.rendezvous import Rendezvous
from vivace.protocol.bells import new_bells
from vivace.protocol.messages import Request
from vivace.protocol.ranks import RankAnswer
from vivace.protocol.shared_memory import words
from vivace.protocol.step import StepPlan
from vivace.protocol.workers import MoveExperts, WorkerCommand
from vivace.worker.build import build_worker

SECONDS = 240.0


class ThreadRank:
    """A `RankLink` to a thread, which answers in the order of what it heard."""

    def __init__(self, rank: int, worker: StepWorker, reporting: int, leads: bool) -> None:
        self.name = f"rank {rank}"
        self._worker = RankWorker(
            worker, reports=rank == reporting, tells_counts=leads, tells_tokens=rank > reporting
        )
        self._thread = ThreadPoolExecutor(1, self.name)
        self._answers: list[Future[RankAnswer]] = []

    def hear(self, message: StepPlan | WorkerCommand) -> None:
        self._answers.append(self._thread.submit(self._worker.answer, message))

    def wait(self) -> RankAnswer:
        return self._answers.pop(0).result(SECONDS)

    def death(self, wait: float = 0.0) -> RankDeath | None:
        return None

    def wake_with(self, ring: Callable[[], None]) -> None: ...

    def close(self) -> None:
        self._thread.shutdown()


class ThreadBroadcast:
    """`moves`: of experts, that were sent; `plans`: with spans"""

    def __init__(self, ranks: Sequence[ThreadRank]) -> None:
        self._ranks = ranks
        self.moves = 0
        self.plans: list[StepPlan] = []

    def send(self, message: StepPlan | WorkerCommand) -> None:
        self.moves += isinstance(message, MoveExperts)
        if isinstance(message, StepPlan) and message.rows:
            self.plans.append(message)
        for rank in self._ranks:
            rank.hear(message)

    def close(self, cause: str = "") -> None: ...


class LayoutEngines:
    """All engines of a configuration; what they share is as in a server."""

    def __init__(self, config: Config, setting: Setting) -> None:
        sizes = requested_sizes(config)
        engines = sizes.dp
        groups = 1 if sizes.dp_attention else engines
        ranks, reporting = sizes.engine_ranks, sizes.reporting_rank
        self._threads = ThreadPoolExecutor(engines)
        built = [
            worker
            for _ in range(groups)
            for worker in build_ranks(config, ranks * engines // groups)
        ]
        self.links: list[ThreadRank] = []
        self._broadcasts: list[ThreadBroadcast] = []
        locksteps: list[SharedLockstep | None] = [None] * engines
        if sizes.dp_attention:
            bells = [new_bells() for _ in range(engines)]
            steps = words(memoryview(bytearray(16 * engines)))
            locksteps = [SharedLockstep(steps, index, bells) for index in range(engines)]
        self._locksteps = [one for one in locksteps if one is not None]
        self.engines: list[Engine] = []
        for index, lockstep in enumerate(locksteps):
            if sizes.dp_attention:
                members = sizes.engine_members(index)
            else:
                members = range(index * ranks, (index + 1) * ranks)
            first, *others = (built[member] for member in members)
            links = [
                ThreadRank(n, worker, reporting, sizes.leads_stage(n))
                for n, worker in enumerate(others, 1)
            ]
            self.links += links
            self._broadcasts.append(ThreadBroadcast(links))
            executor = ProcessGroupExecutor(
                first if sizes.pp == 1 else first_stage(first),
                links,
                self._broadcasts[-1],
                reporting=reporting,
            )
            keeps = index == 0 or not sizes.dp_attention
            experts = expert_distribution(config, executor, first=keeps)
            self.engines.append(
                Engine(first, config, setting, executor, lockstep=lockstep, experts=experts)
            )

    def run(self, requests: list[Request], **how: Any) -> dict[str, Answer]:
        """Each engine has every so manieth request, and takes steps until all are done."""
        company = Company(len(self.engines))

        def serve(index: int) -> dict[str, Answer]:
            engine, mine = self.engines[index], requests[index :: len(self.engines)]
            try:
                return engine.run(mine, **how)
            finally:
                company.keep(engine.idle)

        served = [self._threads.submit(serve, index) for index in range(len(self.engines))]
        found = [one.result(SECONDS) for one in served]
        return {rid: answer for answers in found for rid, answer in answers.items()}

    def moves(self) -> int:
        """Commands to move experts, to all engines"""
        return sum(one.moves for one in self._broadcasts)

    def plans(self) -> list[StepPlan]:
        """With spans, of all engines"""
        return [plan for one in self._broadcasts for plan in one.plans]

    def close(self) -> None:
        for lockstep in self._locksteps:
            lockstep.stop()  # its watcher ends, and may read the bells until then
        for link in self.links:
            link.close()
        self._threads.shutdown()


class Company:
    """Of engines that are done, while others may need them for a step. All leave at once, and only
    while none of them is in a step, where it might wait for one that has left."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._resting = 0
        self._over = False

    def keep(self, idle: Callable[[], object]) -> None:
        while not self._leave():
            idle()

    def _leave(self) -> bool:
        with self._lock:
            self._resting += 1
            self._over |= self._resting == self._size
        time.sleep(0.002)
        with self._lock:
            self._resting -= not self._over
            return self._over


def build_ranks(config: Config, size: int) -> list[StepWorker]:
    """Workers of `size` ranks that compute together, in their order."""
    if size > 1 and not has_kernels():
        pytest.skip("ranks that are threads need the native kernels")
    memories, pool = rank_memories(size), ThreadPoolExecutor(size)

    def build(rank: int) -> StepWorker:
        place = Rendezvous(rank=rank, size=size, meeting="", memory=memories[rank])
        grammars = grammar_processors(config, grammar_compiler(config, checked=True))
        return build_worker(
            *(config, lambda stage, done: None, place if size > 1 else None), processors=grammars
        )

    try:
        return list(pool.map(build, range(size), timeout=SECONDS))
    finally:
        pool.shutdown(wait=False)
