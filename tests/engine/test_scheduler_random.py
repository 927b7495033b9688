"""The scheduler on random traffic: the oracle checks every token and page as they are used."""

from __future__ import annotations

from engine_rig import EOS, VOCABULARY, Rig
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from vivace.engine.oracle import Faults, OracleWorker, hash_kv
from vivace.engine.schedule_policy import ORDERS
from vivace.engine.settings import EngineSettings
from vivace.kv.prefix_tree import EVICTIONS
from vivace.protocol.messages import (
    ALWAYS,
    UNTIL_FIRST_TOKEN,
    CacheGroup,
    LogprobOptions,
)
from vivace.protocol.step import window_slack
from vivace.protocol.tasks import POOLINGS, Embed, Generate, KVTransfer, Task

SUSPICIONS = st.sampled_from([0, 0, 0, UNTIL_FIRST_TOKEN, ALWAYS])
KINDS = st.sampled_from(["", "", "", "send", "receive", "states", *POOLINGS])
STEMS = ([5] * 24, list(range(10, 34)))


@st.composite
def engine_settings(draw: st.DrawFn) -> EngineSettings:
    depth = draw(st.sampled_from([1, 2, 3]))
    return EngineSettings(
        eos_ids=(EOS,),
        rows=draw(st.sampled_from([1, 2, 4, 8])),
        depth=depth,
        sequence_depth=draw(st.sampled_from([None, *range(1, depth + 1)])),
        num_speculative_tokens=draw(st.sampled_from([0, 0, 1, 2, 3, 4, 5, 6, 7])),
        chunk=draw(st.sampled_from([None, 1, 5, 16, 64])),
        max_prefill_tokens=draw(st.sampled_from([8, 1000])),
        prefill_max_requests=draw(st.sampled_from([None, 1])),
        mixed=draw(st.booleans()),
        stall_target=draw(st.sampled_from([0.0, 0.05, 10.0])),
        continuous_decode_steps=draw(st.sampled_from([1, 3])),
        prefix_cache=draw(st.booleans()),
        eviction=draw(st.sampled_from(list(EVICTIONS))),
        policy=draw(st.sampled_from(list(ORDERS))),
        priorities=draw(st.booleans()),
        preemption_threshold=draw(st.sampled_from([0, 3])),
        conservativeness=draw(st.sampled_from([0.05, 1.0])),
        ratio_decay_steps=20,
        retract_every=draw(st.sampled_from([0, 0, 3])),
        shared_prefix_wait=draw(st.sampled_from([1, 32])),
        state_interval=draw(st.sampled_from([1, 8, 256])),
        stream_interval=draw(st.sampled_from([1, 3])),
        coarse_interval=5,
    )


@st.composite
def cache_groups(
    draw: st.DrawFn, settings: EngineSettings, page_size: int
) -> tuple[CacheGroup, ...]:
    """None, or windows and states with few pages more than one sequence needs."""
    kinds = draw(st.sampled_from(["", "", "w", "ww", "s", "ws"]))
    slack = window_slack(settings.depth, settings.num_speculative_tokens)
    groups: list[CacheGroup] = []
    for kind in kinds:
        spare = draw(st.sampled_from([0, 1, 8, 60]))
        if kind == "s":
            groups.append(CacheGroup(pages=spare, reach=1, state=True))
            continue
        window = CacheGroup(pages=1, reach=draw(st.sampled_from([0, 1, 7, 30])))
        most = window.row_pages(slack, page_size)
        groups.append(CacheGroup(pages=most + spare, reach=window.reach))
    return tuple(groups)


@st.composite
def rigs(draw: st.DrawFn) -> Rig:
    page_size = draw(st.sampled_from([1, 3, 4, 12, 16]))
    tokens = draw(st.sampled_from([32, 48, 96, 256]))
    settings = draw(engine_settings())
    rig = Rig(
        settings,
        others=draw(cache_groups(settings, page_size)),
        pages=tokens // page_size,
        page_size=page_size,
        context=draw(st.sampled_from([24, 60])),
        eos_rate=draw(st.sampled_from([0.0, 0.1])),
        late=draw(st.booleans()),
        faults=Faults(
            shorten_rate=draw(st.sampled_from([0.0, 0.0, 0.3])),
            ahead_rate=draw(st.sampled_from([0.0, 0.0, 0.4])),
        ),
        cache_share=draw(st.sampled_from([None, 0, 24 // page_size])),
    )
    transfers = oracle_worker(rig).transfers
    transfers.delay = draw(st.integers(0, 6))
    transfers.failing = draw(st.sets(st.integers(0, 9), max_size=3))
    return rig


def oracle_worker(rig: Rig) -> OracleWorker:
    worker = rig.executor._worker
    assert isinstance(worker, OracleWorker)
    return worker


def send(rig: Rig, key: int, tokens: list[int], length: int, kind: str, **options: object) -> None:
    """`kind`: "send" and "receive" are requests whose prompt goes to another engine, or comes from
    one; "states" want hidden states; poolings are embeddings."""
    if kind in ("send", "receive") and any(group.state for group in rig.capacity.others):
        kind = ""
    transfer = None
    if kind in ("send", "receive"):
        transfer = KVTransfer(room=key, receive=kind == "receive")
    task: Task = Generate(hidden_state_start=key % 3 if kind == "states" else -1)
    if kind in POOLINGS:
        task, length = Embed(pooling=kind), 0
        options |= {"logprobs": None, "min_new_tokens": 0}
    rig.send(key, tokens, length, transfer=transfer, task=task, **options)  # type: ignore[arg-type]
    if kind == "receive":
        known = tokens + rig.answers[key].request.resumed
        oracle_worker(rig).transfers.rooms[key] = hash_kv(known[:-1])


def run_on(rig: Rig) -> None:
    """To the end, though it sleeps while only transfers are under way."""
    rig.run()
    while oracle_worker(rig).transfers.tickets or rig.scheduler.busy:
        rig.step()
        rig.run()
    assert oracle_worker(rig).transfers.corrupted == [], (rig.settings, rig.capacity, rig.faults)
    rig.at_rest()
    rig.check_drafts()


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, cancellations and turns in any order; `Rig.turn` audits after each one."""

    @initialize(rig=rigs())
    def start(self, rig: Rig) -> None:
        self.rig = rig
        self.cancelled: set[int] = set()

    @rule(
        stem=st.sampled_from(STEMS),
        shared=st.integers(0, 20),
        own=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4),
        length=st.integers(0, 12),
        priority=st.sampled_from([None, 0, 5]),
        cache_key=st.sampled_from(["", "other"]),
        client=st.sampled_from([0, 0, 1, 2]),
        stream=st.booleans(),
        start=st.sampled_from([None, None, -1, 0, 1, 7]),
        minimum=st.sampled_from([0, 0, 3]),
        ignore_eos=st.booleans(),
        resume=st.sampled_from([0, 0, 0, 2]),
        suspect=SUSPICIONS,
        kind=KINDS,
    )
    def arrive(
        self,
        stem: list[int],
        shared: int,
        own: list[int],
        length: int,
        priority: int | None,
        cache_key: str,
        client: int,
        stream: bool,
        start: int | None,
        minimum: int,
        ignore_eos: bool,
        resume: int,
        suspect: int,
        kind: str,
    ) -> None:
        send(
            self.rig,
            len(self.rig.answers),
            stem[:shared] + own,
            length,
            kind,
            suspect=suspect,
            priority=priority,
            cache_key=cache_key,
            client=client,
            stream=stream,
            logprobs=LogprobOptions(start=-1 if kind == "receive" else start)
            if start is not None
            else None,
            resume=resume,
            min_new_tokens=min(minimum, length),
            ignore_eos=ignore_eos,
        )

    @precondition(lambda self: self.rig.answers)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.rig.answers)))
        self.rig.cancel(key)
        self.cancelled.add(key)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        self.rig.step(count)

    @rule(seconds=st.sampled_from([1.0, 6.0, 700.0]))
    def pause(self, seconds: float) -> None:
        self.rig.clock.now += seconds
        self.rig.step(2)

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        run_on(self.rig)
        for key in self.rig.answers:
            self.check(key)

    def check(self, key: int) -> None:
        answer = self.rig.answers[key]
        assert answer.finish is not None, "a request got no end"
        if answer.finish.type == "abort":
            assert key in self.cancelled, answer.finish
            whole = answer.request.resumed + answer.tokens
            assert whole == self.rig.expected(key)[: len(whole)]
            return
        self.rig.check(key)
        options = answer.request.logprobs
        if options is not None:
            assert [scored.token for scored in answer.logprobs] == answer.tokens
            request = answer.request
            if 0 <= options.start < len(request.tokens) and not request.resumed:
                scored = [entry.token for entry in answer.prompt_logprobs or []]
                assert scored == request.tokens[options.start :]


SchedulerMachine.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestScheduler = SchedulerMachine.TestCase


@given(
    rig=rigs(),
    keys=st.sets(st.integers(0, 7), max_size=2),
    drafted=st.sets(st.integers(0, 7), max_size=3),
    step=st.integers(0, 30),
    suspicions=st.lists(SUSPICIONS, min_size=8, max_size=8),
    kinds=st.lists(KINDS, min_size=8, max_size=8),
)
@settings(max_examples=150, deadline=None)
def test_a_failing_request_ends_alone(
    rig: Rig, keys: set[int], drafted: set[int], step: int, suspicions: list[int], kinds: list[str]
) -> None:
    """Offenders, bad numbers and one passing failure: all others get exactly their tokens."""
    rig.faults.raise_on_keys |= {key for key in keys if key % 2}
    rig.faults.bad_keys |= {key for key in keys if not key % 2}
    rig.faults.bad_drafts |= drafted
    rig.faults.raise_on_steps.add(step)
    for key in range(8):
        send(
            rig,
            key,
            [*STEMS[key % 2][: 3 + key], key],
            6,
            kinds[key],
            suspect=suspicions[key],
            resume=kinds[key] == "receive",
            client=key % 3,
            ignore_eos=True,
            min_new_tokens=1,
        )
        rig.step(key % 3)
    run_on(rig)
    for key, answer in rig.answers.items():
        assert answer.finish is not None
        if key in keys:
            assert (answer.finish.type, answer.finish.status) == ("abort", 500)
        else:
            rig.check(key)
