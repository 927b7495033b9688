"""Steps on a device that the host may not wait for: a step is launched before anybody has seen what
the one before it drew, and its result is read later."""

from __future__ import annotations

import contextlib
from functools import cache

import msgspec
import pytest
import torch
from delayed_platform import DelayedPlatform
from test_row_states import state_worker
from torch.utils._python_dispatch import TorchDispatchMode
from toy_model import CONTEXT, VOCABULARY, Driver, toy_worker

from vivace.platforms.ops.platform import ReferencePlatform
from vivace.platforms.platform import detect
from vivace.worker.drafter import NO_DRAFTS, NoDrafter

WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal"}
"""aten operations whose result the host needs before it can go on"""
READING = ("numpy", "tolist", "item", "cpu", "__bool__", "__int__", "__float__", "__index__")
PROMPTS = ([5, 9, 1, 40, 7], [3], [*range(30)], [8, 8, 8, 2])
KINDS = (
    {},
    {"temperature": 1.1, "seed": 11},
    {"temperature": 0.9, "seed": 3, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.3},
    {"min_new_tokens": 12, "stop_ids": tuple(range(40)), "logit_bias": {3: 4.0}},
)
NEW = 24


class NoWaiting(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in WAITING:
            raise AssertionError(f"{func} waits for the device")
        for part in args[1] if name in ("index", "index_put_") else ():
            assert part is None or part.dtype != torch.bool, "the host has to count the places"
        return func(*args, **(kwargs or {}))


class WatchedPlatform(DelayedPlatform):
    """Notices who reads a tensor while a step is launched."""

    @contextlib.contextmanager
    def refuse_reading(self):
        def refuse(*args, **kwargs):
            raise AssertionError("a tensor is read before the result is wanted")

        self.launching = True
        with pytest.MonkeyPatch.context() as patch, NoWaiting():
            for name in READING:
                patch.setattr(torch.Tensor, name, refuse)
            yield
        self.launching = False


class DelayedDriver(Driver):
    """Steps are launched `depth` at a time, and their results read then, the oldest first."""

    def __init__(self, worker, platform, depth):
        super().__init__(worker)
        self._platform = platform
        self._depth = depth
        self._launched = []

    def step(self, spans, **extra):
        plan = self.plan(spans, **extra)
        with self._platform.refuse_reading():
            pending = self.worker.run(plan)
        assert not pending.here
        self._launched.append((spans, pending))
        if len(self._launched) == self._depth:
            self.settle(1)

    def settle(self, count):
        for spans, pending in self._launched[:count]:
            result = pending.result()
            assert not result.bad
            for index, row in enumerate(spans):
                self.sequences[row]["done"] += result.advanced[index]
                self.sequences[row]["tokens"] += result.tokens[index]
        del self._launched[:count]


@cache
def plain_answers():
    """Of a worker that reads every result at once, one row alone after the other."""
    answers = []
    for prompt, kind in zip(PROMPTS, KINDS, strict=True):
        platform = ReferencePlatform(detect("cpu"), torch.device("cpu"))
        driver = Driver(toy_worker(platform=platform)[0])
        driver.join(0, prompt, **kind)
        answers.append(driver.generate(0, NEW))
    return answers


def delayed_answers(depth, chunk, drafter=NO_DRAFTS, **settings):
    platform = WatchedPlatform()
    worker, _ = toy_worker(platform=platform, drafter=drafter, **settings)
    driver = DelayedDriver(worker, platform, depth)
    left = {}
    for row, (prompt, kind) in enumerate(zip(PROMPTS, KINDS, strict=True)):
        driver.join(row, prompt, **kind)
        left[row] = len(prompt)
    while any(len(one["tokens"]) - one["prompt"] < NEW for one in driver.sequences.values()):
        decode = 1 + drafter.width
        spans = {row: min(chunk, count) if count else decode for row, count in left.items()}
        for row, count in spans.items():
            left[row] = max(0, left[row] - count)
        driver.step(spans)
    driver.settle(depth)
    return [one["tokens"][one["prompt"] :][:NEW] for one in driver.sequences.values()]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("chunk", [100, 7])
def test_the_next_step_follows_before_the_result_is_read(depth, chunk):
    assert delayed_answers(depth, chunk) == plain_answers()


class DeviceDrafter(NoDrafter):
    """Proposes, on the device, what it likes: the token before plus a fixed number."""

    def __init__(self, width, step):
        self.width = width
        self._step = step

    def propose(self, columns, rows, counts):
        rows = torch.from_numpy(rows)
        last = columns.tokens[rows, columns.known[rows] - 1]
        for ahead in range(self.width):
            places = columns.known[rows] + ahead
            drafts = (last + self._step * (ahead + 1)) % VOCABULARY
            columns.tokens[rows, places] = drafts


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("step", [0, 1])
def test_how_many_drafts_stayed_is_known_on_the_device_first(depth, step):
    assert delayed_answers(depth, 100, DeviceDrafter(3, step)) == plain_answers()


def test_bounds_are_exact_again_when_results_were_read():
    platform = WatchedPlatform()
    worker, _ = toy_worker(platform=platform, drafter=DeviceDrafter(3, 1))
    driver = DelayedDriver(worker, platform, 3)
    driver.join(0, PROMPTS[0])
    driver.step({0: 5})
    for _ in range(12):
        driver.step({0: 4})
    driver.settle(3)
    rows = worker._rows
    assert rows.known[0] == rows.columns.known[0] == len(driver.sequences[0]["tokens"])
    assert rows.computed[0] == rows.columns.computed[0] == driver.sequences[0]["done"]
    assert rows.known[0] < CONTEXT


def test_states_are_handed_on_before_the_result_is_read():
    """Also where drafts decide, on the device, behind which token the state is the row's."""
    answers = []
    for drafter in (NO_DRAFTS, DeviceDrafter(2, 0), DeviceDrafter(2, 1)):
        for depth in (1, 2, 3):
            platform = WatchedPlatform()
            worker, _ = state_worker(platform=platform, drafter=drafter)
            driver = DelayedDriver(worker, platform, depth)
            driver.join(0, PROMPTS[0])
            driver.joins = [msgspec.structs.replace(one, others=[[]]) for one in driver.joins]
            driver.step({0: 3})
            driver.step({0: 2})
            for _ in range(NEW):
                driver.step({0: 1 + drafter.width})
            driver.settle(depth)
            answers.append(driver.sequences[0]["tokens"][:NEW])
    assert len(answers[0]) == NEW
    assert all(one == answers[0] for one in answers)


def test_a_result_that_is_read_late_is_nobody_elses():
    """Its row has another sequence by then, whose bounds it does not touch."""
    platform = WatchedPlatform()
    worker, _ = toy_worker(platform=platform, drafter=DeviceDrafter(3, 1))
    driver = DelayedDriver(worker, platform, 10)
    driver.join(0, PROMPTS[0])
    driver.step({0: 5})
    driver.step({0: 4})
    driver.leave(0)
    driver.join(0, PROMPTS[1])
    driver.step({0: 1})
    after = [one.copy() for one in (worker._rows.known, worker._rows.computed)]
    before, driver.sequences[0] = driver.sequences[0], {"tokens": [], "done": 0}
    driver.settle(2)
    driver.sequences[0] = before
    assert [worker._rows.known.tolist(), worker._rows.computed.tolist()] == [
        one.tolist() for one in after
    ]
    driver.settle(1)
    assert worker._rows.known[0] == worker._rows.columns.known[0] == 2


@pytest.mark.parametrize("drafts", [0, 3])
def test_bad_numbers_are_forgotten_where_they_are(drafts):
    """Not where the steps that followed have written by the time the result is read."""
    drafter = DeviceDrafter(drafts, 1) if drafts else NO_DRAFTS
    numbers = []
    for prompt in ([5, 9, 1], [5, 96, 1]):  # a good one, then a bad one whose step is followed
        platform = WatchedPlatform()
        worker, _ = toy_worker(platform=platform, poison=96, drafter=drafter)
        driver = DelayedDriver(worker, platform, 10)
        driver.join(0, prompt, pages=[40])
        driver.join(1, PROMPTS[0], pages=[41])
        driver.step({0: 3, 1: 5})
        for _ in range(2):
            driver.step({1: 1 + drafts})
        results = [pending.result() for _, pending in driver._launched]
        numbers.append([part[41].clone() for part in worker._kv.parts(0)])
        for part in worker._kv.parts(0):
            assert part.isfinite().all()
    assert list(results[0].bad) == [0]
    assert all(one.equal(other) for one, other in zip(*numbers, strict=True))
