"""Round trips, stale epochs, malformed bytes and dead frontends over the real sockets."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator

import msgspec
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.protocol.channel import (
    SUPERVISOR,
    EngineEnvelope,
    EngineMailbox,
    FrameDecoder,
    FrontendEnvelope,
    FrontendMailbox,
    LocalMailbox,
)
from vivace.protocol.listening_socket import ListeningSocket, address, listen, new_socket
from vivace.protocol.messages import (
    KEY_SHIFT,
    Cancel,
    Capacity,
    Command,
    Delta,
    Deltas,
    Drain,
    EngineDown,
    EngineState,
    Finish,
    FlushCache,
    GetState,
    LastRequest,
    LogprobOptions,
    Ready,
    Reply,
    Request,
    SamplingParams,
    TokenLogprob,
)
from vivace.protocol.metrics import Metrics

CAPACITY = Capacity(pages=4, page_size=16, rows=2, context=64, vocabulary=100)


def request(key: int = 1, tokens: int = 3) -> Request:
    return Request(
        key=key, rid=f"r{key}", tokens=list(range(tokens)), sampling=SamplingParams(seed=7)
    )


@pytest.fixture
def socket() -> Iterator[ListeningSocket]:
    made = listen(new_socket())
    yield made
    os.close(made.listening)
    os.close(made.file)


def test_the_engine_has_no_message_whose_sending_was_not_told(socket: ListeningSocket) -> None:
    """Told after it, an engine that was faster and rests again would count as stalled for ever."""
    engine = EngineMailbox(socket.listening)
    seen = []
    frontend = FrontendMailbox(
        socket.file, 0, epoch=0, on_send=lambda: seen.append(engine.receive(0.2))
    )
    frontend.send(Cancel(keys=[7]))
    assert seen == [[]]
    assert engine.receive(10) == [Cancel(keys=[7])]
    frontend.close()
    engine.close()


def test_who_rings_behind_the_end_is_not_heard(socket: ListeningSocket) -> None:
    """The end of a rank may be noticed last; the bell's number may be another file's by then."""
    engine = EngineMailbox(socket.listening)
    engine.close()
    others = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(32)]
    engine.wake()
    engine.frontend_died(1)
    for other in others:
        with pytest.raises(BlockingIOError):
            os.eventfd_read(other)
        os.close(other)


def test_round_trip_in_order(socket: ListeningSocket) -> None:
    engine = EngineMailbox(socket.listening)
    sent = [request(key, tokens=key * 50) for key in range(1, 200)]

    async def talk() -> tuple[list, list]:
        first, second = FrontendMailbox(socket.file, 0), FrontendMailbox(socket.file, 1)
        for mailbox in (first, second):
            mailbox.accept(Ready(epoch=0, capacity=CAPACITY))
        for message in sent:
            first.send(message)
        second.send(Cancel(keys=[7]))
        received = []
        while len(received) < len(sent) + 1:
            received += engine.receive(1.0)
        received.remove(Cancel(keys=[7]))
        for step in range(1000):
            engine.send(0, Deltas(epoch=0, deltas=[Delta(key=1, index=step, tokens=[step])]))
        engine.send(1, EngineDown(reason="x", restarting=True))
        got = []
        while len(got) < 1001:
            got += await asyncio.wait_for(first.receive(), 10)
        other = []
        while len(other) < 2:
            other += await asyncio.wait_for(second.receive(), 10)
        assert other[1:] == [EngineDown(reason="x", restarting=True)]
        first.close()
        second.close()
        return received, got[1:]

    received, got = asyncio.run(talk())
    engine.close()
    assert received == sent
    assert [m.deltas[0].index for m in got] == list(range(1000))


def test_a_frontend_that_sends_hears_what_has_arrived_meanwhile(socket: ListeningSocket) -> None:
    """Each send may swallow the signal that an answer is there."""
    engine = EngineMailbox(socket.listening)
    stopped = threading.Event()

    def echo() -> None:
        while not stopped.is_set():
            for message in engine.receive(0.01):
                assert isinstance(message, Request)
                answer = Delta(key=message.key, index=0, tokens=[1])
                engine.send(0, Deltas(epoch=0, deltas=[answer]))

    async def talk() -> list[int]:
        frontend = FrontendMailbox(socket.file, 0)
        frontend.accept(Ready(epoch=0, capacity=CAPACITY))
        heard: list[int] = []

        async def hear() -> None:
            while len(heard) < 3000:
                for message in await frontend.receive():
                    if isinstance(message, Deltas):
                        heard.extend(delta.key for delta in message.deltas)

        hearing = asyncio.create_task(hear())
        for key in range(3000):
            frontend.send(request(key))
            if key % 7 == 0:
                await asyncio.sleep(0)
        await asyncio.wait_for(hearing, 30)
        frontend.close()
        return heard

    thread = threading.Thread(target=echo)
    thread.start()
    try:
        assert asyncio.run(talk()) == list(range(3000))
    finally:
        stopped.set()
        thread.join()
        engine.close()


def test_receive_wakes_up_from_another_thread(socket: ListeningSocket) -> None:
    engine = EngineMailbox(socket.listening)
    assert engine.receive(0) == []
    threading.Timer(0.05, engine.post, [Cancel(rid_prefix="")]).start()
    assert engine.receive(None) == [Cancel(rid_prefix="")]
    threading.Timer(0.05, engine.wake).start()
    assert engine.receive(None) == []
    engine.close()


def test_messages_for_a_dead_engine_reach_no_successor(socket: ListeningSocket) -> None:
    async def talk() -> tuple[list, int]:
        frontend = FrontendMailbox(socket.file, 0)
        frontend.accept(Ready(epoch=0, capacity=CAPACITY))
        frontend.send(request(1))
        successor = EngineMailbox(socket.listening, epoch=1)
        frontend.accept(Ready(epoch=1, capacity=CAPACITY))
        frontend.send(request(2))
        received: list = []
        while not received:
            received += successor.receive(1.0)
        stale = successor.stale
        successor.close()
        frontend.close()
        return received, stale

    received, stale = asyncio.run(talk())
    assert [m.key for m in received] == [2]
    assert stale == 1


def test_old_answers_are_dropped_by_the_frontend(socket: ListeningSocket) -> None:
    async def talk() -> tuple[list, int]:
        frontend = FrontendMailbox(socket.file, 0)
        frontend.accept(Ready(epoch=3, capacity=CAPACITY))
        old = EngineMailbox(socket.listening, epoch=2)
        frontend.send(request(1))
        while not old.stale:
            old.receive(1.0)
        old.send(0, Deltas(epoch=2, deltas=[]))
        old.close()
        new = EngineMailbox(socket.listening, epoch=3)
        frontend.send(request(2))
        while not new.receive(1.0):
            pass
        new.send(0, Deltas(epoch=3, deltas=[]))
        got: list = []
        while len(got) < 2 or frontend.stale < 1:
            got += await asyncio.wait_for(frontend.receive(), 10)
        new.close()
        frontend.close()
        return got, frontend.stale

    got, stale = asyncio.run(talk())
    assert [m.epoch for m in got] == [3, 3]
    assert stale == 1


def test_malformed_messages_are_dropped(socket: ListeningSocket) -> None:
    engine = EngineMailbox(socket.listening)
    context = zmq.Context()
    attacker = context.socket(zmq.DEALER)
    attacker.connect(address(socket.file))
    good = msgspec.msgpack.encode(EngineEnvelope(0, request(5)))
    bad_types = msgspec.msgpack.encode([0, {"type": "request", "key": "five"}])
    for frame in (b"", b"\xc1", b"\x93" * 100_000, good[:-4], bad_types, b"junk" * 1000, good):
        attacker.send(frame)
    received: list = []
    while not received:
        received += engine.receive(1.0)
    attacker.close()
    context.term()
    engine.close()
    assert received == [request(5)]


def test_a_dead_frontend_has_its_requests_cancelled(socket: ListeningSocket) -> None:
    engine = EngineMailbox(socket.listening)
    mine, other = 1 << KEY_SHIFT, 5
    for message in (request(mine), request(mine + 1), request(mine + 2), request(other)):
        engine.post(message)
    engine.post(Cancel(keys=[mine + 2], finished=True))
    engine.receive(0)
    done = Delta(key=mine, index=0, tokens=[1], finish=Finish(type="length"))
    engine.send(1, Deltas(epoch=0, deltas=[done]))
    engine.frontend_died(1)
    assert engine.receive(0) == [Cancel(keys=[mine + 1], finished=True), LastRequest(1)]
    engine.send(1, Deltas(epoch=0, deltas=[]))
    engine.send(7, Deltas(epoch=0, deltas=[]))
    engine.close()


def test_requests_that_outlive_their_frontend_are_not_begun(socket: ListeningSocket) -> None:
    """Messages are taken some at a time: the last may be read after the frontend has died."""
    engine = EngineMailbox(socket.listening)
    dead, other = 1 << KEY_SHIFT, 2 << KEY_SHIFT
    engine.frontend_died(1)
    assert engine.receive(0) == [LastRequest(1)]
    engine.post(request(dead))
    engine.post(request(other))
    assert [m.key for m in engine.receive(0)] == [other]  # type: ignore[union-attr]
    engine.close()


def test_replies_to_the_supervisor_do_not_go_to_a_socket(socket: ListeningSocket) -> None:
    replies: list = []
    engine = EngineMailbox(socket.listening, to_supervisor=replies.append)
    engine.send(SUPERVISOR, Reply(ticket=1, ok=True))
    engine.close()
    assert replies == [Reply(ticket=1, ok=True)]


def test_local_mailbox() -> None:
    mailbox = LocalMailbox()
    mailbox.post(request(1))
    mailbox.post(request(2))
    assert [m.key for m in mailbox.receive(None)] == [1, 2]  # type: ignore[union-attr]
    assert mailbox.receive(0) == []
    mailbox.send(0, Deltas(epoch=0, deltas=[]))
    assert mailbox.collect() == [Deltas(epoch=0, deltas=[])]
    assert mailbox.collect() == []
    delivered: list = []
    LocalMailbox(delivered.append).send(0, Deltas(epoch=0, deltas=[]))
    assert len(delivered) == 1


small = st.integers(-(2**63), 2**63 - 1)
ids = st.integers(0, 2**31)
numbers = st.floats(allow_nan=False)
texts = st.text(max_size=20)
samplings = st.builds(
    SamplingParams,
    max_new_tokens=ids,
    temperature=numbers,
    top_p=numbers,
    stop=st.lists(texts, max_size=3).map(tuple),
    stop_token_ids=st.lists(ids, max_size=3).map(tuple),
    logit_bias=st.dictionaries(ids, numbers, max_size=3),
    seed=small,
)
requests = st.builds(
    Request,
    key=ids,
    rid=texts,
    tokens=st.lists(ids, max_size=8),
    sampling=samplings,
    logprobs=st.none() | st.builds(LogprobOptions, top=ids, token_ids=st.just((1, 2))),
    priority=st.none() | small,
    cache_key=texts,
    resumed=st.lists(ids, max_size=3),
)
cancels = st.builds(Cancel, keys=st.lists(ids), rid_prefix=st.none() | texts, when=st.floats(0))
commands = st.builds(
    Command,
    ticket=ids,
    body=st.one_of(
        st.just(FlushCache()),
        st.just(GetState()),
        st.builds(Drain, timeout=numbers, frontends=st.just([0, 3])),
    ),
)
pairs = st.lists(st.tuples(numbers, ids), max_size=3)
logprobs = st.builds(TokenLogprob, token=ids, logprob=st.none() | numbers, top=st.none() | pairs)
finishes = st.builds(
    Finish,
    type=st.sampled_from(["stop", "length", "abort"]),
    matched=st.one_of(st.none(), ids, texts),
    message=st.none() | texts,
    retry_after=st.none() | numbers,
)
deltas = st.builds(
    Delta,
    key=ids,
    index=ids,
    tokens=st.lists(ids, max_size=4),
    finish=st.none() | finishes,
    logprobs=st.none() | st.lists(logprobs, max_size=3),
)
states = st.builds(
    EngineState,
    running=ids,
    waiting=ids,
    total_tokens=ids,
    used_tokens=ids,
    cached_tokens=ids,
    last_gen_throughput=numbers,
    steps=ids,
    audit=st.lists(texts, max_size=2),
    metrics=st.builds(Metrics, gauges=st.dictionaries(texts, numbers, max_size=2)),
)
to_engine = st.one_of(requests, cancels, commands)
to_frontend = st.one_of(
    st.builds(Deltas, epoch=ids, deltas=st.lists(deltas, max_size=3)),
    st.builds(Reply, ticket=ids, ok=st.booleans(), message=texts, state=st.none() | states),
    st.builds(Ready, epoch=ids, capacity=st.just(CAPACITY)),
    st.builds(EngineDown, reason=texts, restarting=st.booleans()),
)


@settings(max_examples=60, deadline=None)
@given(to_engine, to_frontend, small)
def test_every_message_survives_the_wire(up: object, down: object, epoch: int) -> None:
    sent = EngineEnvelope(epoch, up)  # type: ignore[arg-type]
    assert FrameDecoder(EngineEnvelope, "t").read(msgspec.msgpack.encode(sent)) == sent
    answer = FrontendEnvelope(epoch, down)  # type: ignore[arg-type]
    assert FrameDecoder(FrontendEnvelope, "t").read(msgspec.msgpack.encode(answer)) == answer


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), to_engine, st.integers(0, 400), st.integers(0, 255))
def test_no_bytes_can_raise(junk: bytes, message: object, at: int, value: int) -> None:
    reader = FrameDecoder(EngineEnvelope, "t")
    frame = bytearray(msgspec.msgpack.encode(EngineEnvelope(0, message)))  # type: ignore[arg-type]
    frame[at % len(frame)] = value
    for attempt in (junk, bytes(frame)):
        read = reader.read(attempt)
        assert read is None or isinstance(read.body, Request | Cancel | Command)
