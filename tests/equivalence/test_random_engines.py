"""Engines drawn at random, with everything at once: what layers keep, pages, drafts, pending steps,
suspects, failing steps, clients that leave. Every answer is that of a request alone."""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import msgspec
import numpy as np
import pytest
import torch
from cached_toys import CONTEXT, VOCABULARY, CachedToy
from delayed_platform import DelayedPlatform
from scripted_trees import ScriptedTreeDrafter

from vivace.engine.executor import InProcessExecutor
from vivace.engine.loop import Loop
from vivace.engine.schedule_policy import ORDERS
from vivace.engine.scheduler import Scheduler
from vivace.engine.settings import EngineSettings
from vivace.platforms.cache import own_windows
from vivace.platforms.cpu.facts import has_kernels
from vivace.platforms.cpu.native_ngrams import NativeNgramIndex
from vivace.platforms.ngrams import NgramSettings
from vivace.platforms.ops.ngrams import PythonNgramIndex
from vivace.platforms.platform import Platform, PlatformSettings, detect, load_platform
from vivace.protocol.channel import LocalMailbox
from vivace.protocol.messages import (
    ALWAYS,
    UNTIL_FIRST_TOKEN,
    CacheGroup,
    Cancel,
    Deltas,
    Request,
    SamplingParams,
)
from vivace.protocol.metrics import StepCosts
from vivace.protocol.step import window_slack
from vivace.protocol.tasks import GENERATE, POOLINGS, Embed, Generate, Task
from vivace.worker.build import assemble
from vivace.worker.drafter import NO_DRAFTS, Drafter
from vivace.worker.drafters.ngram import Breadth, NgramDrafter
from vivace.worker.drafters.scripted import ScriptedDrafter
from vivace.worker.sizing import PoolSize
from vivace.worker.worker import Worker

COUNT = 2500 if os.environ.get("VIVACE_SLOW_TESTS") else 50
POISON = VOCABULARY - 1
"""its hidden state is NaN; nobody draws it, drafts may be it"""
KINDS = (
    ("attention",),
    ("attention", "window"),
    ("window", "window"),
    ("latent", "attention"),
    ("recurrent", "attention"),
    ("recurrent", "latent", "window"),
    ("recurrent", "recurrent"),
)
PLATFORMS = ("torch", "kernels", "delayed")


@dataclass
class Case:
    """What one seed means."""

    platform: str
    kinds: tuple[str, ...]
    page: int
    tokens: int
    settings: EngineSettings
    requests: list[Request]
    """for tokens, for tokens with hidden states, and for vectors"""
    spare_pages: int
    draft_quality: float
    """share of the drafts that are right"""
    failing_steps: set[int]
    cancelled: dict[int, int] = field(default_factory=dict[int, int])
    """turn -> key"""


def draw_case(seed: int) -> Case:
    chance = random.Random(seed)
    pick = chance.choice
    depth, kinds, page = pick([1, 2, 3]), pick(KINDS), pick([1, 4, 16])
    settings = EngineSettings(
        rows=pick([1, 2, 4, 8]),
        depth=depth,
        sequence_depth=pick([None, 1, depth]),
        num_speculative_tokens=pick([0, 0, 1, 3, 6]),
        chunk=pick([None, 5, 16, 64]),
        max_prefill_tokens=pick([16, 1000]),
        mixed=pick([False, True]),
        stall_target=pick([0.0, 0.05]),
        prefix_cache=pick([False, True, True]),
        policy=pick(list(ORDERS)),
        conservativeness=pick([0.05, 1.0]),
        retract_every=pick([0, 0, 3]),
        shared_prefix_wait=pick([1, 32]),
        state_interval=pick([1, 16, 256]),
    )
    requests = draw_requests(chance, pick([3, 6, 10]))
    turns = [chance.randrange(80) for _ in range(pick([0, 0, 2]))]
    return Case(
        platform=pick(PLATFORMS),
        kinds=kinds,
        page=page,
        tokens=pick([96, 160, 640]),
        settings=settings,
        requests=requests,
        spare_pages=pick([0, 3, 60]),
        draft_quality=pick([0.0, 0.6, 1.0]),
        failing_steps=set() if chance.random() < 0.5 else {chance.randrange(60)},
        cancelled={turn: chance.randrange(len(requests)) for turn in turns},
    )


def draw_requests(chance: random.Random, count: int) -> list[Request]:
    stems = [[chance.randrange(3, 250) for _ in range(40)] for _ in range(2)]
    suspicion, poisoned = chance.choice([0.0, 0.0, 0.4]), chance.choice([0.0, 0.3])
    requests = []
    for key in range(count):
        own = [chance.randrange(3, 250) for _ in range(chance.randint(1, 20))]
        if chance.random() < poisoned:
            own[chance.randrange(len(own))] = POISON
        sampled = chance.random() < 0.5
        task = draw_task(chance)
        suspect = chance.choice([ALWAYS, UNTIL_FIRST_TOKEN]) if chance.random() < suspicion else 0
        requests.append(
            Request(
                key=key,
                rid=str(key),
                tokens=chance.choice(stems)[: chance.randint(0, 40)] + own,
                sampling=SamplingParams(
                    max_new_tokens=0 if isinstance(task, Embed) else chance.randint(1, 20),
                    temperature=0.9 if sampled else 0.0,
                    top_k=chance.choice([0, 20]),
                    repetition_penalty=chance.choice([1.0, 1.3]),
                    seed=key,
                    ignore_eos=True,
                    logit_bias={POISON: -1e9},
                ),
                client=chance.choice([0, 0, 1]),
                suspect=suspect,
                task=task,
            )
        )
    return requests


def draw_task(chance: random.Random) -> Task:
    if chance.random() < 0.6:
        return GENERATE
    if chance.random() < 0.5:
        return Generate(hidden_state_start=chance.choice([0, 0, 7]))
    return Embed(pooling=chance.choice(POOLINGS), dimensions=chance.choice([0, 5]))


class FailingModel(CachedToy):
    """Raises in some of its steps, behind whatever these have stored by then."""

    failing: Callable[[], bool] = staticmethod(lambda: False)

    def forward(self, step: object) -> torch.Tensor:
        hidden = super().forward(step)
        if self.failing():
            raise RuntimeError("this step was to fail")
        return hidden


def load(platform: str) -> Platform:
    if platform == "delayed":
        return DelayedPlatform()
    settings = PlatformSettings(threads=1, deterministic=True, kernels=platform == "kernels")
    return load_platform(detect("cpu"), settings)


def build_worker(case: Case, drafter: Drafter = NO_DRAFTS) -> tuple[Worker, FailingModel]:
    torch.set_num_threads(1)
    platform = load(case.platform)
    model, pages = FailingModel(platform.ops, case.kinds, POISON), case.tokens // case.page
    others = [
        CacheGroup(
            pages=CacheGroup(pages=0, reach=window - 1).row_pages(
                window_slack(case.settings.depth, case.settings.num_speculative_tokens), case.page
            )
            + case.spare_pages,
            reach=window - 1,
        )
        for window in own_windows(model.attention_layers, CONTEXT)
    ]
    if "recurrent" in case.kinds:
        others.append(CacheGroup(pages=case.spare_pages, reach=1, state=True))
    size = PoolSize(
        pages=pages,
        rows=case.settings.rows,
        context=CONTEXT,
        cache_share=pages,
        others=tuple(others),
    )
    worker = assemble(
        model,
        model.attention_layers,
        platform,
        size,
        page_size=case.page,
        dtype=torch.float32,
        vocabulary=VOCABULARY,
        drafter=drafter,
    )
    return worker, model


def propose(
    answers: Sequence[Sequence[int]], quality: float, seed: int
) -> Callable[[list[int], int], list[int]]:
    """Drafts of which some are right, some are wrong, and some are no numbers."""

    def script(known: list[int], count: int) -> list[int]:
        chance = random.Random(f"{seed} {known}")
        found = next((one for one in answers if list(one[: len(known)]) == known), known)
        ahead = [*found[len(known) :], *[0] * count][:count]
        wrong = [POISON, chance.randrange(250)]
        return [one if chance.random() < quality else chance.choice(wrong) for one in ahead]

    return script


def branch(
    answers: Sequence[Sequence[int]], quality: float, seed: int
) -> Callable[[list[int], int], tuple[list[int], list[int]]]:
    """Trees of such drafts: somewhere in them may be the answer."""

    def script(known: list[int], count: int) -> tuple[list[int], list[int]]:
        chance, at = random.Random(f"{seed} {len(known)}"), -1
        ahead, path = iter(propose(answers, 1.0, seed)(known, count)), list[int]()
        drafts, parents = list[int](), list[int]()
        for index in range(count):
            right = chance.random() < quality
            parents.append(at if right else chance.randrange(-1, index))
            drafts.append(next(ahead) if right else chance.choice([POISON, *path, 7]))
            if right:
                path.append(drafts[-1])
                at = index
        return drafts, parents

    return script


def run(
    case: Case, settings: EngineSettings, worker: Worker, arrivals: random.Random
) -> tuple[dict[int, list[int]], dict[int, str], dict[int, list[float]]]:
    """(tokens, kind of the end, numbers that came beside) by key; audited after each turn."""
    ticks = iter(range(10_000_000))

    def clock() -> float:
        return next(ticks) / 1000

    scheduler = Scheduler(settings, worker.capacity, clock)
    mailbox, waiting = LocalMailbox(), list(case.requests)
    loop = Loop(scheduler, InProcessExecutor(worker), mailbox, depth=settings.depth, clock=clock)
    tokens = {request.key: list[int]() for request in waiting}
    ends, numbers = dict[int, str](), {key: list[float]() for key in tokens}
    for turn in turns(lambda: len(ends) < len(tokens) or loop.wait_timeout() == 0.0):
        arrived = arrivals.randint(0, 2)
        for request in waiting[:arrived]:
            mailbox.post(request)
        del waiting[:arrived]
        if turn in case.cancelled:
            mailbox.post(Cancel(keys=[case.cancelled[turn]]))
        loop.step(0)
        assert scheduler.audit() == []
        for message in mailbox.collect():
            for delta in message.deltas if isinstance(message, Deltas) else ():
                assert delta.index == len(tokens[delta.key]) and delta.key not in ends
                tokens[delta.key] += delta.tokens
                if delta.payload is not None:
                    numbers[delta.key] += delta.payload.numbers()
                if delta.finish is not None:
                    ends[delta.key] = delta.finish.type
    assert scheduler.state().used_tokens == 0
    return tokens, ends, numbers


def turns(more: Callable[[], bool]) -> Iterator[int]:
    for turn in range(20_000):
        if not more():
            return
        yield turn
    raise AssertionError("the engine makes no progress")


def plain_answers(case: Case) -> tuple[list[list[int]], dict[int, list[float]]]:
    """(prompt and answer, numbers) of each request that has the engine for itself."""
    settings = EngineSettings(rows=1, depth=1, prefix_cache=False)
    alone = dataclasses.replace(case, settings=settings, tokens=640, cancelled={})
    worker, _ = build_worker(alone)
    found, _, numbers = run(alone, settings, worker, random.Random(0))
    return [request.tokens + found[request.key] for request in case.requests], numbers


def draw_drafter(seed: int, drafts: int, answers: list[list[int]], quality: float) -> Drafter:
    if not drafts:
        return NO_DRAFTS
    if seed % 3 == 0:
        settings = NgramSettings(width=drafts, depth=5, capacity=200, by_frequency=seed % 2 == 0)
        kind = NativeNgramIndex if has_kernels() and seed % 4 else PythonNgramIndex
        breadth = Breadth(1, 3, 1, 12) if seed % 5 < 3 else None
        return NgramDrafter(kind(settings), drafts, certain=seed % 5, breadth=breadth)
    if seed % 3 == 1:
        return ScriptedTreeDrafter(drafts, branch(answers, quality, seed))
    return ScriptedDrafter(drafts, propose(answers, quality, seed))


@cache
def platforms() -> tuple[str, ...]:
    return PLATFORMS if has_kernels() else ("torch", "delayed")


@pytest.mark.parametrize("part", range(10))
def test_any_engine_gives_the_answers_of_a_request_alone(part: int) -> None:
    for seed in range(part, COUNT, 10):
        check(seed)


def check(seed: int) -> None:
    case = draw_case(seed)
    if case.platform not in platforms():
        return
    (answers, numbers), drafts = plain_answers(case), case.settings.num_speculative_tokens
    worker, model = build_worker(case, draw_drafter(seed, drafts, answers, case.draft_quality))
    if seed % 2:  # widths follow what is accepted
        costs = StepCosts(tokens=[1, 4, 64], seconds=[1e-3, 2e-3, 8e-3])
        worker.capacity = msgspec.structs.replace(worker.capacity, step_costs=costs)
    steps = iter(range(1_000_000))
    model.failing = lambda: next(steps) in case.failing_steps
    tokens, ends, came = run(case, case.settings, worker, random.Random(seed))
    for request, answer in zip(case.requests, answers, strict=True):
        wanted, found = answer[len(request.tokens) :], tokens[request.key]
        if POISON in request.tokens:
            assert (ends[request.key], found) == ("abort", []), (seed, request.key)
            continue
        if ends[request.key] == "abort":
            assert request.key in case.cancelled.values(), (seed, request.key)
            wanted = wanted[: len(found)]
        assert found == wanted, (seed, request.key)
        count = len(numbers[request.key])  # drafts behind the end bring more
        if ends[request.key] != "abort":
            assert np.allclose(came[request.key][:count], numbers[request.key], 1e-4, 1e-4), seed
