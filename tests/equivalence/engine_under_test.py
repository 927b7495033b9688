"""The real scheduler, loop and worker around a toy model, with any features on or off."""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from served_toy import write_toy_llama

from vivace.checkpoint.source import locate
from vivace.config.config import Config
from vivace.config.draft_models import locate_draft
from vivace.config.parsing import from_arguments
from vivace.config.resolution import resolve
from vivace.engine.executor import Executor, InProcessExecutor, StepWorker
from vivace.engine.loop import Loop
from vivace.engine.scheduler import Scheduler
from vivace.engine.settings import engine_settings
from vivace.frontend.answer_parts import PromptRows
from vivace.kv.leases import FORGET_SECONDS
from vivace.models.facts import read_facts
from vivace.platforms.cpu.facts import has_kernels
from vivace.platforms.platform import detect
from vivace.protocol.channel import LocalMailbox
from vivace.protocol.messages import (
    Delta,
    Deltas,
    EngineState,
    LogprobOptions,
    Request,
    SamplingParams,
    TokenLogprob,
)
from vivace.protocol.tasks import GENERATE, POOLINGS, Embed, Generate
from vivace.worker.build import build_worker

__all__ = ["Answer", "Engine", "Setting", "build_engine", "toy_requests", "write_toy_llama"]

LONGEST_PROMPT = 120
LONGEST_OUTPUT = 24
POOL_TOKENS = 32 * 160
SMALL_POOL_TOKENS = 512
"""little enough that cached prefixes have to go"""
TIGHT_TOKENS = 160
"""of a pool of windows: what two or three streams need"""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One row of the array."""

    batch: int
    chunk: int
    radix: str
    depth: int
    page: int
    mixed: bool = False
    stall: float = 50.0
    """milliseconds; 0: prompts first"""
    retraction: bool = False
    stream: bool = False
    operations: str = "captured"
    """torch, or the native kernels: captured or eager"""
    captures: tuple[int, ...] | None = None
    exact: bool = False
    weights: str = "float32"
    windows: str = "one pool"
    """where layers with a window keep their KV: with all others, or in pools of their own, which
    may be "tight" """
    state_interval: int = 256


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    numbers: bytes = b""
    """of its vector, or of its hidden states"""


class Clock:
    """The time, and what of it is only said to have passed."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


class Engine:
    """Runs requests to their end, inline."""

    def __init__(
        self,
        worker: StepWorker,
        config: Config,
        setting: Setting,
        executor: Executor | None = None,
        **loop: Any,
    ) -> None:
        """`executor`: of several ranks, of which `worker` is the first."""
        self._mailbox = LocalMailbox()
        settings = dataclasses.replace(
            engine_settings(config, worker.capacity),
            depth=setting.depth,
            retract_every=5 if setting.retraction else 0,
            state_interval=setting.state_interval,
        )
        self._clock = Clock()
        self._scheduler = Scheduler(settings, worker.capacity, self._clock)
        self._loop = Loop(
            self._scheduler,
            executor or InProcessExecutor(worker),
            self._mailbox,
            depth=setting.depth,
            epoch=0,
            clock=self._clock,
            **loop,
        )
        self._keys = itertools.count(1)
        self.retractions = 0

    def run(
        self,
        requests: list[Request],
        arrivals: random.Random | None = None,
        after_step: Callable[[], None] = lambda: None,
    ) -> dict[str, Answer]:
        """Answers by rid. With `arrivals` requests come between steps, else all at once."""
        waiting = [dataclass_with_key(request, next(self._keys)) for request in requests]
        names = {request.key: request.rid for request in waiting}
        answers = {request.rid: Answer() for request in requests}
        rows = {
            one.key: PromptRows(one.tokens, one.logprobs)
            for one in waiting
            if one.logprobs is not None and one.logprobs.start >= 0
        }
        finished: set[int] = set()
        while len(finished) < len(names):
            count = len(waiting) if arrivals is None else min(len(waiting), arrivals.randint(0, 3))
            for request in waiting[:count]:
                self._mailbox.post(request)
            del waiting[:count]
            self._loop.step(0)
            after_step()
            for message in self._mailbox.collect():
                if isinstance(message, Deltas):
                    for delta in message.deltas:
                        if delta.prompt_logprobs is not None:
                            assert rows[delta.key].add(delta.prompt_logprobs)
                        self._book(delta, answers[names[delta.key]], finished)
        for key, own in rows.items():
            assert own.complete
            answers[names[key]].prompt_logprobs = list(own)
        return answers

    def idle(self) -> None:
        """A step where other engines wait for one."""
        if not self._loop.step(0):
            time.sleep(0.001)

    def rest(self) -> int:
        """Nobody comes for long; returns the tokens that are cached in the end: half of those
        before, because that is made the share of the prefix cache."""
        leases = self._scheduler._leases
        leases._share.first = leases.cached // 2
        self._loop.step(0)
        self._clock.ahead += 2 * FORGET_SECONDS
        while self._loop.wait_timeout() == 0.0:
            self._loop.step(0)
        return self._scheduler.state().cached_tokens

    def resident(self) -> float:
        """GiB of the pool with memory behind them"""
        return self._scheduler.state().memory["kvcache_resident"]

    def _book(self, delta: Delta, answer: Answer, finished: set[int]) -> None:
        assert delta.index == len(answer.tokens)
        answer.tokens += delta.tokens
        answer.logprobs += delta.logprobs or []
        answer.numbers += delta.payload.data if delta.payload is not None else b""
        self.retractions += delta.retractions if delta.finish else 0
        if delta.finish:
            assert delta.finish.type != "abort", delta.finish
            assert delta.key not in finished
            finished.add(delta.key)

    def state(self) -> EngineState:
        return self._scheduler.state()

    def audit(self) -> list[str]:
        return self._scheduler.audit()

    def replays(self) -> float:
        """steps that were replayed from a capture"""
        return self._scheduler.state().metrics.counters["cuda_graph_passes_total"]

    def accept_rate(self) -> float | None:
        """Of all drafts"""
        return self._scheduler.state().avg_spec_accept_rate

    def kv_bytes(self) -> int:
        return self._scheduler.capacity.kv_bytes

    def decoding(self) -> bool:
        """Somebody has drawn a token, and will draw more."""
        return any(s.num_output_tokens for s in self._scheduler._table.decoding)

    def window_pages(self) -> list[int]:
        """of each pool of windows"""
        return [pool.total for pool in self._scheduler._leases.partial]

    def most_window_pages(self) -> int:
        """that one running sequence has of the first pool of windows"""
        table = self._scheduler._table
        leases = [sequence.lease for sequence in table.running() if sequence.lease]
        return max((len(part.pages) for one in leases for part in one.parts[:1]), default=0)

    def held_tokens(self) -> int:
        """once the steps in flight are over"""
        while self._loop.wait_timeout() == 0.0 or self._loop._in_flight:
            self._loop.step(0)
        return self._scheduler.state().used_tokens


def dataclass_with_key(request: Request, key: int) -> Request:
    import msgspec

    return msgspec.structs.replace(request, key=key)


def skip_unbuilt(operations: str) -> None:
    if operations != "torch" and not has_kernels():
        pytest.skip("the native kernels were not built")


def build_engine(
    model: Path, setting: Setting, tokens: int = POOL_TOKENS, **options: Any
) -> Engine:
    skip_unbuilt(setting.operations)
    config = build_config(model, setting, tokens, **options)
    torch.set_num_threads(1)
    return Engine(build_worker(config, lambda stage, done: None), config, setting)


def build_config(model: Path, setting: Setting, tokens: int = POOL_TOKENS, **layout: Any) -> Config:
    if setting.radix == "partly evicted":
        tokens = SMALL_POOL_TOKENS
    options = from_arguments(
        model_path=str(model),
        dtype="float32",
        page_size=setting.page,
        max_total_tokens=tokens,
        max_running_requests=setting.batch,
        chunked_prefill_size=-(-setting.chunk // setting.page) * setting.page
        if setting.chunk > 0
        else -1,
        enable_mixed_chunk=setting.mixed,
        chunked_prefill_stall_target=setting.stall,
        disable_radix_cache=setting.radix == "off",
        random_seed=1,
        cpu_threads=1,
        disable_cpu_kernels=setting.operations == "torch",
        disable_cuda_graph=setting.operations != "captured",
        cuda_graph_bs=setting.captures,
        disable_cuda_graph_padding=setting.exact,
        disable_hybrid_swa_memory=setting.windows == "one pool",
        swa_full_tokens_ratio=TIGHT_TOKENS / tokens if setting.windows == "tight" else None,
        **layout,
    )
    source = locate(str(model), load_format=options.model.load_format)
    facts = read_facts(source)
    draft = locate_draft(options, source, facts, None)
    return resolve(options, source, facts, detect("cpu"), draft)


def toy_requests(count: int, *, stream: bool, seed: int = 5) -> list[Request]:
    """Prompts of 1 to 120 tokens, some with shared beginnings; every kind of sampling. Some want
    hidden states, and some a vector and no token."""
    chance = random.Random(seed)
    shared = [[chance.randrange(3, 250) for _ in range(64)] for _ in range(3)]
    return [toy_request(index, chance, shared, stream, seed) for index in range(count)]


def toy_request(
    index: int, chance: random.Random, shared: list[list[int]], stream: bool, seed: int
) -> Request:
    own = [chance.randrange(3, 250) for _ in range(chance.randint(1, LONGEST_PROMPT - 64))]
    prompt = (chance.choice(shared) if index % 2 else []) + own
    if index % 8 == 5:
        return Request(
            key=0,
            rid=f"{seed}/{index}",
            tokens=prompt,
            sampling=SamplingParams(max_new_tokens=0),
            task=Embed(pooling=POOLINGS[index // 8 % 3]),
        )
    return Request(
        key=0,
        rid=f"{seed}/{index}",
        tokens=prompt,
        sampling=random_sampling(index, chance),
        stream=stream,
        logprobs=LogprobOptions(start=(0, -1, 3)[index % 3], top=2) if index % 4 < 2 else None,
        task=Generate(hidden_state_start=index % 5) if index % 8 in (3, 4) else GENERATE,
    )


def random_sampling(index: int, chance: random.Random) -> SamplingParams:
    length = chance.randint(1, LONGEST_OUTPUT)
    if index % 4 == 0:
        return SamplingParams(max_new_tokens=length, temperature=0.0)
    if index % 4 == 1:
        return SamplingParams(max_new_tokens=length, temperature=0.0, repetition_penalty=1.3)
    return SamplingParams(
        max_new_tokens=length,
        temperature=0.9,
        top_p=0.9 if index % 3 else 1.0,
        top_k=40 if index % 5 else 0,
        frequency_penalty=0.4 if index % 4 == 3 else 0.0,
        presence_penalty=0.2 if index % 4 == 3 else 0.0,
        min_new_tokens=min(3, length),
        seed=index * 7919,
        ignore_eos=index % 2 == 0,
    )
