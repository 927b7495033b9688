"""A loop, a scheduler and the oracle on a virtual clock, and what every answer has to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

import msgspec

from vivace.engine.executor import Executor, InProcessExecutor, PendingStep
from vivace.engine.loop import Lockstep, Loop
from vivace.engine.oracle import (
    Faults,
    OracleWorker,
    hash_kv,
    oracle_answer,
)
from vivace.engine.oracle_drafts import OracleDrafts
from vivace.engine.scheduler import Scheduler
from vivace.engine.sequence import SequenceGate
from vivace.engine.settings import EngineSettings
from vivace.frontend.answer_parts import PromptRows
from vivace.protocol.channel import LocalMailbox
from vivace.protocol.messages import (
    CacheGroup,
    Cancel,
    Capacity,
    Delta,
    Deltas,
    Finish,
    LogprobOptions,
    Reply,
    Request,
    SamplingParams,
    TokenLogprob,
)
from vivace.protocol.step import ExecutorEvent, StepPlan, StepResult
from vivace.protocol.tasks import EMBEDDING, GENERATE, Embed, KVTransfer, Payload, Task
from vivace.protocol.workers import WorkerCommand, WorkerState

VOCABULARY = 97
EOS = 3


class VirtualClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Answer:
    """What a client has got so far, checked as it comes."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] | None = None
    """as soon as the first token, or the end, is there"""
    prompt_rows: PromptRows | None = None
    payloads: list[Payload] = field(default_factory=list[Payload])
    finish: Finish | None = None
    times: list[float] = field(default_factory=list)
    """when each delta came"""

    def gaps(self) -> list[float]:
        return [later - time for time, later in pairwise(self.times)]

    def add(self, delta: Delta, now: float) -> None:
        assert self.finish is None, f"news after the end: {delta}"
        assert delta.index == len(self.request.resumed) + len(self.tokens), delta
        self.deltas.append(delta)
        self.times.append(now)
        self.tokens += delta.tokens
        self.logprobs += delta.logprobs or []
        if delta.payload is not None:
            self.add_payload(delta, delta.payload)
            if delta.finish is None:
                return
        options = self.request.logprobs
        if (part := delta.prompt_logprobs) is not None:
            assert options is not None
            assert not (delta.tokens or self.tokens or delta.finish), (
                "before the first token, alone"
            )
            self.prompt_rows = self.prompt_rows or PromptRows(self.request.tokens, options)
            assert part.start == self.prompt_rows.next, "prompt log-probabilities came twice"
            assert self.prompt_rows.add(part)
            return
        if options is not None and options.start >= 0 and self.prompt_logprobs is None:
            self.prompt_rows = self.prompt_rows or PromptRows(self.request.tokens, options)
            assert self.prompt_rows.complete or self.request.resumed or not delta.tokens
            self.prompt_logprobs = list(self.prompt_rows)
        self.finish = delta.finish

    def add_payload(self, delta: Delta, payload: Payload) -> None:
        self.payloads.append(payload)
        if payload.kind == EMBEDDING:
            assert delta.finish is not None and isinstance(self.request.task, Embed)
            return
        assert not (delta.tokens or delta.finish or delta.prompt_logprobs), "hidden states, alone"
        assert not isinstance(self.request.task, Embed)
        before = sum(one.shape[0] for one in self.payloads[:-1])
        assert payload.start == self.request.task.hidden_state_start + before, (
            "in their order, once"
        )

    def states(self) -> list[int]:
        """What the oracle's vectors stand for, one after the other."""
        return [state for one in self.payloads for state in memoryview(one.data).cast("Q").tolist()]


class NoEvents:
    """For workers that tests make: nothing happens beside their steps."""

    def events(self) -> list[ExecutorEvent]:
        return []

    def control(self, command: WorkerCommand) -> WorkerState:
        return WorkerState()

    def wake_with(self, ring: Callable[[], None]) -> None: ...


class OracleExecutor(InProcessExecutor):
    """No model: a pure function of (request seed, position) draws; every token and page is
    checked."""

    def __init__(self, capacity: Capacity, eos_rate: float, faults: Faults) -> None:
        worker = OracleWorker(
            capacity, VOCABULARY, eos_rate=eos_rate, faults=faults, draft=OracleDrafts(VOCABULARY)
        )
        super().__init__(worker)


class LateExecutor(OracleExecutor):
    """Like a device that works behind the scheduler's back: a step runs when its result is asked
    for, so whatever was decided after its submission must not disturb it."""

    def submit(self, plan: StepPlan) -> LateStep:  # type: ignore[override]
        return LateStep(super().submit, plan)


class LateStep:
    here = False

    def __init__(self, submit: Callable[[StepPlan], PendingStep], plan: StepPlan) -> None:
        self._submit, self._plan = submit, plan

    def result(self) -> StepResult:
        return self._submit(self._plan).result()


class Rig:
    """`cost`: seconds of a step; without it each step of the loop takes 10 ms."""

    def __init__(
        self,
        settings: EngineSettings | None = None,
        *,
        pages: int = 64,
        page_size: int = 4,
        rows: int = 8,
        context: int = 200,
        eos_rate: float = 0.0,
        faults: Faults | None = None,
        late: bool = False,
        cache_share: int | None = None,
        cost: Callable[[StepPlan], float] | None = None,
        others: tuple[CacheGroup, ...] = (),
        executor: Callable[[Capacity, float, Faults], Executor] | None = None,
        lockstep: Lockstep | None = None,
        grammar_gate: Callable[[Request], SequenceGate | None] = lambda request: None,
    ) -> None:
        self.settings = settings or EngineSettings(eos_ids=(EOS,))
        self.capacity = Capacity(
            pages=pages,
            page_size=page_size,
            rows=rows,
            context=context,
            vocabulary=VOCABULARY,
            cache_share=cache_share,
            others=others,
        )
        self.eos_rate = eos_rate
        self.clock = VirtualClock()
        self.faults = faults or Faults()
        build = executor or (LateExecutor if late else OracleExecutor)
        self.executor = build(self.capacity, eos_rate, self.faults)
        self._cost = cost
        self._submit = self.executor.submit
        self.executor.submit = self._take_time  # type: ignore[method-assign]
        self.scheduler = Scheduler(
            self.settings, self.capacity, self.clock, grammar_gate=grammar_gate
        )
        self.mailbox = LocalMailbox()
        self.loop = Loop(
            self.scheduler,
            self.executor,
            self.mailbox,
            depth=self.settings.depth,
            clock=self.clock,
            lockstep=lockstep,
        )
        self.answers: dict[int, Answer] = {}
        self.replies: list[Reply] = []

    def send(
        self,
        key: int,
        tokens: list[int],
        max_new_tokens: int = 8,
        *,
        priority: int | None = None,
        cache_key: str = "",
        stream: bool = True,
        logprobs: LogprobOptions | None = None,
        resume: int = 0,
        client: int = 0,
        rid: str | None = None,
        log_metrics: bool = True,
        suspect: int = 0,
        begin: float = inf,
        transfer: KVTransfer | None = None,
        task: Task = GENERATE,
        **sampling: object,
    ) -> Request:
        request = Request(
            key=key,
            rid=rid or f"r{key}",
            tokens=tokens,
            sampling=SamplingParams(max_new_tokens=max_new_tokens, seed=key, **sampling),  # type: ignore[arg-type]
            priority=priority,
            cache_key=cache_key,
            stream=stream,
            logprobs=logprobs,
            log_metrics=log_metrics,
            client=client,
            arrival=self.clock.now,
            suspect=suspect,
            begin=begin,
            transfer=transfer,
            task=task,
        )
        self.answers[key] = Answer(request)
        if 0 < resume < len(self.expected(key)):
            request = msgspec.structs.replace(request, resumed=self.expected(key)[:resume])
            self.answers[key] = Answer(request)
        self.mailbox.post(request)
        return request

    def cancel(self, *keys: int, **options: object) -> None:
        self.mailbox.post(Cancel(keys=list(keys), **options))  # type: ignore[arg-type]

    def step(self, count: int = 1, *, audit: bool = True) -> None:
        for _ in range(count):
            self.clock.now += 0.0 if self._cost else 0.01
            self.loop.step(0)
            if audit:
                assert self.scheduler.audit() == []
            for message in self.mailbox.collect():
                if isinstance(message, Deltas):
                    for delta in message.deltas:
                        self.answers[delta.key].add(delta, self.clock.now)
                elif isinstance(message, Reply):
                    self.replies.append(message)

    def _take_time(self, plan: StepPlan) -> PendingStep:
        self.clock.now += self._cost(plan) if self._cost else 0.0
        return self._submit(plan)

    def run(self, limit: int = 5000) -> None:
        """Until nothing lives; fails when the engine stops making progress."""
        self.step()
        for _ in range(limit):
            if self.loop.wait_timeout() != 0.0:
                return
            self.step()
        raise AssertionError(f"no progress: {self.scheduler.state()}")

    def rest(self, seconds: float) -> None:
        """Nobody comes for so long; what an idle engine does by itself, it does."""
        self.clock.now += seconds
        self.run()

    def expected(self, key: int) -> list[int]:
        """Every output token the request should produce, resumed ones included."""
        request = self.answers[key].request
        sampling = request.sampling
        longest = min(self.capacity.context, self.capacity.tokens) - len(request.tokens)
        return oracle_answer(
            sampling.seed,
            len(request.tokens),
            min(sampling.max_new_tokens, longest),
            VOCABULARY,
            eos_rate=self.eos_rate,
            stop_ids=tuple(dict.fromkeys(self.settings.eos_ids + sampling.stop_token_ids)),
            min_new_tokens=sampling.min_new_tokens,
            ignore_eos=sampling.ignore_eos,
        )

    def check(self, key: int) -> None:
        """The request ended as it should, with exactly the oracle's tokens."""
        answer = self.answers[key]
        expected = self.expected(key)
        assert answer.finish is not None, key
        assert answer.request.resumed + answer.tokens == expected, key
        self.check_states(answer)
        stops = set(self.settings.eos_ids) | set(answer.request.sampling.stop_token_ids)
        limit = min(
            answer.request.sampling.max_new_tokens,
            min(self.capacity.context, self.capacity.tokens) - len(answer.request.tokens),
        )
        if len(expected) == limit:
            assert answer.finish.type == "length"
            assert answer.finish.length == limit
        else:
            assert answer.finish.type == "stop"
            assert answer.finish.matched in stops

    def check_states(self, answer: Answer) -> None:
        """Its embedding is that of the whole prompt; no hidden state that it wants is missing."""
        task, tokens = answer.request.task, answer.request.tokens
        if isinstance(task, Embed):
            assert answer.states() == hash_kv(tokens)[-1:]
        elif task.hidden_state_start >= 0:
            known = tokens + self.expected(answer.request.key)[:-1]
            found, start = answer.states(), task.hidden_state_start
            assert found[: len(known) - start] == hash_kv(known)[start:]

    def at_rest(self) -> None:
        """Everything is free or merely cached."""
        state = self.scheduler.state()
        assert (state.running, state.waiting, state.used_tokens) == (0, 0, 0), state
        assert state.audit == []

    def check_drafts(self) -> None:
        """The server counts the drafts that requests were told of with their ends, and no more."""
        ends = [answer.deltas[-1].drafts for answer in self.answers.values() if answer.deltas]
        told = [one for one in ends if one is not None]
        drafts, accepted = (sum(one[part] for one in told) for part in (0, 1))
        state = self.scheduler.state()
        widths = state.spec_draft_widths
        assert sum(width * spans for width, spans in widths.items()) == drafts
        assert round((state.avg_spec_accept_rate or 0) * drafts, 6) == accepted
        assert all(spans >= 0 for spans in widths.values()), widths
        resumed = sum(len(answer.request.resumed) for answer in self.answers.values())
        assert sum(widths.values()) >= sum(one[2] for one in told) - resumed
