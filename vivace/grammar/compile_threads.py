"""Threads that compile: one that is less urgent than streams, and where a machine leaves that one
no time, another that is as urgent as they are. Clients take turns, so nobody is behind a crowd."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial

from vivace.grammar.backend import GrammarError, GrammarMatcher
from vivace.grammar.compiled import Compiled
from vivace.grammar.limits import STACK

URGENT = None
"""instead of a client: a step waits for it"""
MAX_SECONDS = 30.0
"""by the clock: behind these the machine is to blame, and the request may come again"""
PATIENCE = 3.0
"""seconds in which a job has had no processor: behind these it is begun again, as urgently as
streams"""
ALARM_SLACK = 0.1


@dataclass(frozen=True)
class SpentTime:
    """Seconds of processor time, and by the clock."""

    cpu: float
    wall: float

    @property
    def waited(self) -> float:
        return self.wall - self.cpu


NOTHING = SpentTime(cpu=0.0, wall=0.0)
Watch = Callable[[], Callable[[], SpentTime]]


def watch_thread() -> Callable[[], SpentTime]:
    """What the thread that calls it spends from now on, which any thread may ask while it lives."""
    clock = time.pthread_getcpuclockid(threading.get_ident())
    cpu, wall = time.clock_gettime(clock), time.monotonic()
    return lambda: SpentTime(cpu=time.clock_gettime(clock) - cpu, wall=time.monotonic() - wall)


@dataclass(frozen=True)
class CompileJob:
    make: Callable[[], GrammarMatcher]
    made: Compiled

    @property
    def waits(self) -> bool:
        """Nobody has begun it, and somebody wants it."""
        return not (self.made.running() or self.made.done())


class CompileQueue:
    """Any thread calls it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._urgent: deque[CompileJob] = deque()
        self._turns: dict[int, deque[CompileJob]] = {}
        """by client; the first one is next"""

    def put(self, job: CompileJob, client: int | None) -> None:
        """Also again, for another client: it is compiled when the first one's turn comes."""
        with self._lock:
            jobs = self._urgent if client is None else self._turns.setdefault(client, deque())
            jobs.append(job)

    def next(self) -> CompileJob | None:
        with self._lock:
            while self._urgent:
                if (job := self._urgent.popleft()).waits:
                    return job
            while self._turns:
                client = next(iter(self._turns))
                jobs = self._turns.pop(client)
                job = jobs.popleft()
                if jobs:
                    self._turns[client] = jobs  # behind the others
                if job.waits:
                    return job
        return None


class CompileThreads:
    """Jobs in the order of their queue."""

    def __init__(
        self,
        begin: Callable[[], None],
        between: Callable[[], None],
        watch: Watch,
        starting: threading.Lock,
    ) -> None:
        """`begin`: called by the usual thread before each job; `between`: before and behind each;
        `starting`: of all that begin such threads"""
        self._begin, self._between, self._watch = begin, between, watch
        self._starting = starting
        self.ring: Callable[[], None] = lambda: None
        """called when a job is done, and when one takes long: the engine may be asleep"""
        self._queue = CompileQueue()
        self._usual: CompileJob | None = None
        """what the usual thread is making"""
        self._spent: dict[Compiled, Callable[[], SpentTime]] = {}
        """on what is being made, since it was begun first"""
        self._urgent: threading.Thread | None = None

    def submit(
        self, make: Callable[[], GrammarMatcher], made: Compiled, client: int | None
    ) -> None:
        """For a thread, when it is the client's turn."""
        self._queue.put(CompileJob(make, made), client)
        self._threads.submit(self._work)
        if self._stuck:
            self._begin_urgent(None)

    def spent(self, made: Compiled) -> SpentTime:
        """Nothing before its turn: others may be before it."""
        found = self._spent.get(made)
        with suppress(OSError):  # its thread has just ended, and so has the clock of that
            return found() if found else NOTHING
        return NOTHING

    def hurry(self) -> None:
        """Something is waited for: what the usual thread has had no processor for is begun again,
        by a thread that is as urgent as the one that calls."""
        job = self._usual
        if job is not None and self.spent(job.made).waited > PATIENCE:
            self._begin_urgent(None if job.made.done() else job)

    # -- the usual thread --------------------------------------------------------------------------

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        """Begun with the first constraint."""
        threads = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        with deep_stack(self._starting):
            threads.submit(self._work)
        return threads

    def _work(self) -> None:
        """Until nobody waits."""
        self._between()
        while (job := self._queue.next()) is not None:
            if job.made.set_running_or_notify_cancel():
                self._usual = job
                self._begin()
                self._finish(job)
            self._between()

    def _finish(self, job: CompileJob) -> None:
        alarms = [
            threading.Timer(seconds + ALARM_SLACK, self.ring) for seconds in (PATIENCE, MAX_SECONDS)
        ]
        try:
            self._spent.setdefault(job.made, self._watch())
            for alarm in alarms:
                alarm.daemon = True
                alarm.start()
            made = job.make()
            self._leave(job)
            with suppress(InvalidStateError):  # the other thread was quicker
                job.made.set_result(made)
        except BaseException as error:
            self._leave(job)
            with suppress(InvalidStateError):
                job.made.set_exception(error)
        finally:
            for alarm in alarms:
                alarm.cancel()
            self._spent.pop(job.made, None)
            del job  # it has an error, whose frames would have it
            self.ring()

    def _leave(self, job: CompileJob) -> None:
        """Before it is done: the thread would seem to be stuck there."""
        if self._usual is job:
            self._usual = None

    # -- the urgent one ----------------------------------------------------------------------------

    @property
    def _stuck(self) -> bool:
        """The usual thread is at what another one has made."""
        job = self._usual
        return job is not None and job.made.done()

    def _begin_urgent(self, job: CompileJob | None) -> None:
        """One at a time."""
        if self._urgent is not None and self._urgent.is_alive():
            return
        self._urgent = threading.Thread(target=self._work_urgently, args=(job,), daemon=True)
        self._urgent.start()

    def _work_urgently(self, job: CompileJob | None) -> None:
        """Make what the usual thread makes, and what waits while that is stuck there: each in a
        thread of its own, since the process that tries a constraint is as urgent for one only."""
        if job is not None:
            self._run_apart(partial(self._make_again, job))
        while self._stuck and (following := self._queue.next()) is not None:
            if following.made.set_running_or_notify_cancel():
                self._run_apart(partial(self._finish, following))
            self._between()

    def _run_apart(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True, name="grammar-urgent")
        with deep_stack(self._starting):
            thread.start()
        thread.join()

    def _make_again(self, job: CompileJob) -> None:
        """What is wrong with the machine, the usual thread finds out."""
        try:
            made = job.make()
            with suppress(InvalidStateError):
                job.made.set_result(made)
        except GrammarError as error:
            with suppress(InvalidStateError):
                job.made.set_exception(error)
        except Exception:
            return
        self.ring()


@contextmanager
def deep_stack(starting: threading.Lock) -> Generator[None]:
    """How much stack the next thread gets is the process's to say, so it is said while that
    begins, and by one at a time: another one would take it back, or leave it."""
    with starting:
        before = threading.stack_size(STACK)
        try:
            yield
        finally:
            threading.stack_size(before)
