"""A frontend with several engines: who gets a request, and answers that outlive engines."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from frontend_fakes import byte_tokenizer, capacity, served
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.frontend.engine_status import (
    BALANCES,
    EngineView,
    FewestRequests,
    FewestTokens,
    RoundRobin,
)
from vivace.frontend.errors import BadRequest
from vivace.frontend.frontend import Frontend
from vivace.frontend.request_output import RequestOutput
from vivace.protocol.messages import (
    Cancel,
    Command,
    Delta,
    Deltas,
    Draining,
    EngineDown,
    Finish,
    FlushCache,
    LastRequest,
    Ready,
    Reply,
    Request,
    SamplingParams,
)
from vivace.protocol.workers import AddCorpus, CorpusRemoved

LENGTH = 12


def token(key: int, index: int) -> int:
    """What a request's answer has at this place, whichever engine draws it."""
    return 97 + (7 * key + 3 * index) % 20


class FakeEngine:
    """Answers what it was sent, one token at a time."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.epoch: int | None = None
        self.live: dict[int, int] = {}
        """key -> tokens drawn, those before included"""
        self.view = EngineView(self.receive, index)
        self.said: list[Any] = []

    def receive(self, message: Any) -> None:
        self.said.append(message)
        if self.epoch is None:
            return  # nobody is there
        if isinstance(message, Request):
            assert message.key not in self.live, "sent twice"
            self.live[message.key] = len(message.resumed)
        elif isinstance(message, Cancel):
            for key in message.keys:
                self.live.pop(key, None)

    def step(self) -> Deltas | None:
        deltas = []
        for key, drawn in list(self.live.items()):
            self.live[key] = drawn + 1
            last = drawn + 1 == LENGTH
            finish = Finish(type="length", length=LENGTH) if last else None
            deltas.append(Delta(key=key, index=drawn, tokens=[token(key, drawn)], finish=finish))
            if last:
                del self.live[key]
        assert self.epoch is not None
        return Deltas(epoch=self.epoch, deltas=deltas) if deltas else None


class Answers:
    """A sink; fails when something is lost, doubled or different."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.tokens: list[int] = []
        self.finish: Finish | None = None

    def push(self, output: RequestOutput) -> None:
        assert self.finish is None
        self.tokens += output.tokens
        assert self.tokens == [token(self.key, i) for i in range(len(self.tokens))]
        self.finish = output.finish


class Server:
    def __init__(self, count: int, balance: str = "round_robin") -> None:
        self.engines = [FakeEngine(index) for index in range(count)]
        self.frontend = Frontend(
            served(),
            byte_tokenizer(),
            [engine.view for engine in self.engines],
            balance=BALANCES[balance](),
        )
        self.sinks: list[Answers] = []
        self.epochs = 0
        for engine in self.engines:
            self.start(engine.index)

    def start(self, index: int) -> None:
        engine = self.engines[index]
        engine.epoch, engine.live = self.epochs, {}
        self.epochs += 1
        self.frontend.feed(Ready(epoch=engine.epoch, capacity=capacity(), engine=index))

    def kill(self, index: int, late: Deltas | None = None, *, restarting: bool = True) -> None:
        """`late`: what it had sent and nobody has read yet"""
        engine = self.engines[index]
        engine.epoch, engine.live = None, {}
        self.frontend.feed(EngineDown(reason="killed", restarting=restarting, engine=index))
        if late is not None:
            self.frontend.feed(late)

    def ask(self, **options: Any) -> Answers:
        request = self.frontend.request(
            [65, 66], SamplingParams(max_new_tokens=LENGTH, ignore_eos=True), **options
        )
        sink = Answers(request.key)
        self.sinks.append(sink)
        self.frontend.start(request, sink)
        return sink

    def step(self, index: int) -> None:
        if self.engines[index].epoch is not None and (news := self.engines[index].step()):
            self.frontend.feed(news)

    def finish(self) -> None:
        for engine in self.engines:
            if engine.epoch is None:
                self.start(engine.index)
        for _ in range(LENGTH + 1):
            for engine in self.engines:
                self.step(engine.index)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["ask", "step", "step", "kill", "late", "start"]), st.integers(0, 2)),
    max_size=60,
)


@settings(max_examples=150)
@given(events=EVENTS, balance=st.sampled_from(sorted(BALANCES)))
def test_nothing_is_lost_doubled_or_different(events: list[tuple[str, int]], balance: str) -> None:
    server = Server(3, balance)
    for kind, index in events:
        up = server.engines[index].epoch is not None
        if kind == "ask" and server.frontend.status == "ready":
            server.ask()
        elif kind == "step":
            server.step(index)
        elif kind == "kill" and up:
            server.kill(index)
        elif kind == "late" and up:
            server.kill(index, server.engines[index].step())
        elif kind == "start" and not up:
            server.start(index)
        assert server.frontend.status == (
            "ready" if any(one.epoch is not None for one in server.engines) else "starting"
        )
    server.finish()
    assert all(sink.finish is not None and len(sink.tokens) == LENGTH for sink in server.sinks)
    assert server.frontend.live == 0
    assert [engine.view.load() for engine in server.engines] == [(0, 0)] * 3


def test_a_dead_engines_requests_go_on_at_once() -> None:
    server = Server(2)
    first, second = server.ask(), server.ask()
    for _ in range(3):
        server.step(0)
        server.step(1)
    server.kill(0)
    assert set(server.engines[1].live) == {first.key, second.key}
    assert server.engines[1].live[first.key] == 3
    server.finish()
    assert first.finish and second.finish


def test_an_engine_that_comes_back_takes_its_share_of_what_waits() -> None:
    """Of what another one has and has not begun, the last to come; who has begun stays."""
    server = Server(2)
    sinks = [server.ask() for _ in range(8)]
    server.step(0)
    server.step(1)
    server.kill(0)
    pinned = server.ask(dp_rank=1)
    late = [server.ask() for _ in range(3)]
    assert len(server.engines[1].live) == 12
    server.start(0)
    moved = set(server.engines[0].live)
    assert len(moved) == 6 and pinned.key not in moved
    assert {sink.key for sink in late} <= moved
    assert not moved & set(server.engines[1].live)
    begun = [sink for sink in sinks if sink.key not in moved]
    assert all(sink.key in server.engines[1].live for sink in begun)
    assert [one.moved for one in server.engines[1].said if isinstance(one, Cancel)] == [True] * 6
    server.finish()
    assert all(sink.finish for sink in server.sinks)


def test_what_one_engine_says_of_a_request_that_has_moved_on_is_not_heard() -> None:
    server = Server(2)
    server.kill(0)
    sinks = [server.ask() for _ in range(4)]
    late = server.engines[1].step()  # on its way while the other one becomes ready
    server.start(0)
    assert len(server.engines[0].live) == 2
    assert late is not None
    server.frontend.feed(late)
    assert sorted(len(sink.tokens) for sink in sinks) == [0, 0, 1, 1]
    server.finish()
    assert all(sink.finish for sink in sinks)


def test_during_a_drain_nothing_moves() -> None:
    server = Server(2)
    server.kill(0)
    sinks = [server.ask() for _ in range(4)]
    server.frontend.feed(Draining())
    server.start(0)
    assert not server.engines[0].live and len(server.engines[1].live) == len(sinks)


def test_who_asked_for_an_engine_waits_for_it() -> None:
    server = Server(2)
    sink = server.ask(dp_rank=0)
    server.kill(0)
    assert not server.engines[1].live
    other = server.ask(dp_rank=0)
    server.start(0)
    assert set(server.engines[0].live) == {sink.key, other.key}


def test_an_engine_that_does_not_come_back_is_no_end_while_there_are_others() -> None:
    server = Server(2)
    sink, waiting = server.ask(), server.ask(dp_rank=0)
    server.kill(0, restarting=False)
    assert server.frontend.status == "ready"
    assert waiting.finish is not None and waiting.finish.status == 503
    with pytest.raises(BadRequest, match="routed_dp_rank") as refused:
        server.ask(dp_rank=0)
    assert refused.value.status == 503
    server.kill(1, restarting=False)
    assert server.frontend.status == "down"
    assert sink.finish is not None and sink.finish.status == 503


def test_a_request_fits_every_engine() -> None:
    """Whichever was ready last: another one may have less memory."""
    server = Server(2)
    room = capacity()
    for index, context in ((1, 10), (0, 30)):
        shorter = msgspec.structs.replace(room, context=context)
        epoch = 90 + index
        server.frontend.feed(Ready(epoch=epoch, capacity=shorter, engine=index))
    assert server.frontend.served.context == 10
    assert server.frontend.capacity is not None and server.frontend.capacity.context == 10
    server.frontend.feed(Ready(epoch=95, capacity=room, engine=1))
    assert server.frontend.served.context == min(30, served().context)


def test_an_engine_that_does_not_answer_is_no_silence_of_the_others() -> None:
    async def scenario() -> None:
        server = Server(2)
        commands = server.frontend.commands
        asking = asyncio.ensure_future(commands.run(FlushCache(), timeout=0.05))
        await asyncio.sleep(0)
        asked = server.engines[1].said[-1]
        assert isinstance(asked, Command)
        server.frontend.feed(Reply(ticket=asked.ticket, ok=True))
        silent, other = await asking
        assert silent is not None and not silent.ok
        assert other is not None and other.ok

    asyncio.run(scenario())


def test_a_new_engine_is_told_of_the_corpora_that_the_others_have() -> None:
    def told(engine: FakeEngine) -> list[str]:
        commands = [each.body for each in engine.said if isinstance(each, Command)]
        return [body.name for body in commands if isinstance(body, AddCorpus)]

    async def scenario() -> None:
        server = Server(2)

        async def add(name: str, *ok: bool) -> None:
            asking = asyncio.ensure_future(server.frontend.commands.run(AddCorpus(name, b"")))
            await asyncio.sleep(0)
            up = [engine for engine in server.engines if engine.epoch is not None]
            for engine, taken in zip(up, ok, strict=True):
                server.frontend.feed(Reply(ticket=engine.said[-1].ticket, ok=taken))
            await asking

        await add("a", True, True)
        await add("refused", True, False)
        server.kill(1)
        await add("b", True)
        for index in (1, 0):
            server.engines[index].said.clear()
            server.kill(index)
            server.start(index)
            assert told(server.engines[index]) == ["a", "b"]
        server.frontend.feed(CorpusRemoved("a"))  # another frontend was asked to
        server.engines[0].said.clear()
        server.kill(0)
        server.start(0)
        assert told(server.engines[0]) == ["b"]
        server.finish()

    asyncio.run(scenario())


def test_a_drain_waits_for_the_engine_that_has_the_request() -> None:
    """The others have been told that nothing more comes."""
    server = Server(2)
    sink = server.ask()
    holder = next(engine for engine in server.engines if engine.live)
    server.frontend.feed(Draining())
    assert all(isinstance(engine.said[-1], LastRequest) for engine in server.engines)
    server.kill(holder.index)
    assert not server.engines[1 - holder.index].live
    server.start(holder.index)
    assert set(holder.live) == {sink.key}
    assert isinstance(holder.said[-1], LastRequest)
    server.finish()
    assert sink.finish


def test_aborts_reach_all_engines_and_the_next() -> None:
    server = Server(2)
    for number in range(4):
        server.ask(rid=f"mine-{number}")
    server.kill(0)
    server.frontend.abort("mine")
    assert isinstance(server.engines[1].said[-1], Cancel)
    server.start(0)
    assert any(
        isinstance(one, Cancel) and one.rid_prefix == "mine" for one in server.engines[0].said
    )


class Progress:
    def __init__(self, requests: int, tokens: int, stall: str = "") -> None:
        self._load, self._stall = (requests, tokens), stall

    def load(self) -> tuple[int, int]:
        return self._load

    def stall(self) -> str:
        return self._stall


def views(*loads: tuple[int, int]) -> list[EngineView]:
    found = []
    for index, load in enumerate(loads):
        progress: Any = Progress(*load)
        found.append(EngineView(lambda message: None, index, progress))
        found[-1].epoch = index
    return found


def test_turns() -> None:
    balance, engines = RoundRobin(), views((0, 0), (9, 9), (0, 0))
    assert [balance.pick(engines).index for _ in range(5)] == [0, 1, 2, 0, 1]
    assert [balance.pick(engines[::2]).index for _ in range(3)] == [2, 0, 2]


def test_the_lightest() -> None:
    engines = views((5, 10), (2, 50), (2, 20))
    assert {FewestRequests().pick(engines).index for _ in range(4)} <= {1, 2}
    assert FewestTokens().pick(engines).index == 0
    balance = FewestRequests()
    assert {balance.pick(engines).index for _ in range(2)} == {1, 2}


@pytest.mark.parametrize("balance", sorted(BALANCES))
def test_a_stalled_engine_gets_nothing_while_another_gets_on(balance: str) -> None:
    server = Server(2, balance)
    progress: Any = Progress(0, 0, stall="it makes no progress")
    server.engines[0].view.progress = progress
    for _ in range(4):
        server.ask()
    assert not server.engines[0].live and len(server.engines[1].live) == 4
    assert server.frontend.engine.stall == ""
    server.engines[1].view.progress = progress
    assert server.frontend.engine.stall


# answers that begin with what their clients have already


@pytest.mark.parametrize("stop", [(), ("kn",), ("hkn",), ("zz",)])
def test_an_answer_goes_on_behind_what_its_client_has(stop: tuple[str, ...]) -> None:
    """Cut at every token, also within a stop string: both parts are the whole answer."""
    shown, ends = [""], []
    whole = Server(1)
    sink = TextAnswer()
    start(whole, sink, stop)
    for _ in range(LENGTH):
        if sink.finish is None:
            whole.step(0)
            shown.append(sink.text)
            ends.append(list(sink.tokens))
    assert sink.finish is not None and (sink.finish.type == "stop") == (stop not in ((), ("zz",)))
    for cut in range(1, len(shown) - 1):
        rest, server = TextAnswer(), Server(1)
        start(server, rest, stop, resumed=ends[cut - 1])
        for _ in range(LENGTH):
            if rest.finish is None:
                server.step(0)
        assert shown[cut] + rest.text == sink.text, cut
        assert ends[cut - 1] + rest.tokens == sink.tokens
        assert rest.finish == sink.finish
        assert rest.completion_tokens == sink.completion_tokens


def test_an_answer_that_had_ended_ends() -> None:
    server, sink = Server(1), TextAnswer()
    tokens = [token(1, index) for index in range(LENGTH)]
    start(server, sink, (), resumed=tokens)
    assert sink.finish is not None and sink.finish.type == "length"
    assert (sink.tokens, sink.completion_tokens) == ([], LENGTH)
    assert not server.engines[0].live and server.frontend.live == 0


class TextAnswer:
    def __init__(self) -> None:
        self.text = ""
        self.tokens: list[int] = []
        self.finish: Finish | None = None
        self.completion_tokens = 0

    def push(self, output: RequestOutput) -> None:
        self.text += output.text
        self.tokens += output.tokens
        self.finish = output.finish
        self.completion_tokens = output.completion_tokens


def start(
    server: Server, sink: TextAnswer, stop: tuple[str, ...], resumed: list[int] | None = None
) -> None:
    sampling = SamplingParams(max_new_tokens=LENGTH, ignore_eos=True, stop=stop)
    request = server.frontend.checked_request([65, 66], sampling, resumed=resumed or ())
    server.frontend.start(request, sink)
