"""Streams on the wire: framing, slow readers, clients that leave, errors half-way."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_kit import (
    Running,
    ScriptedEngine,
    Wire,
    ask,
    events,
    make_tokenizer,
    running_server,
    unchunk,
)

from vivace.frontend.engine_status import EngineView
from vivace.frontend.frontend import Frontend
from vivace.frontend.request_output import RequestOutput
from vivace.frontend.served_model import ServedModel
from vivace.frontend.sglang_output import SGLangOutput
from vivace.protocol.messages import (
    Capacity,
    Delta,
    Finish,
    Ready,
    Request,
    SamplingParams,
    TokenLogprob,
)
from vivace.server.generate import GenerateEvents
from vivace.server.openai.response import ChatChunks, ChunkContext, CompletionChunks
from vivace.server.openai.usage import UsageCounter
from vivace.server.settings import ServerSettings
from vivace.server.sse import EventStream, StreamLimits, StreamSink

TOKENIZER = make_tokenizer()
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=12)


def shape(**options: Any) -> ChunkContext:
    return ChunkContext(
        rid='id "1"\n',
        kind="chat.completion.chunk",
        created=1,
        model="mo\\del",
        tokenizer=TOKENIZER,
        usage=UsageCounter(1, False),
        **options,
    )


def make_outputs(texts: list[str]) -> list[RequestOutput]:
    """One piece per text; the last one ends the sequence."""
    found = [
        RequestOutput(
            text=text,
            tokens=[number % 256],
            prompt_tokens=2,
            completion_tokens=number + 1,
            logprobs=[TokenLogprob(number % 256, -0.5, [(-0.5, 65)], None)],
        )
        for number, text in enumerate(texts)
    ]
    end = Finish(type="stop", matched='"\n')
    return [*found, RequestOutput(text="", tokens=[], finish=end, completion_tokens=len(texts))]


async def written(
    encode: Any, pieces: list[RequestOutput], pressure: list[bool], epilogue: Any = bytes
) -> list[str]:
    """Push pieces through a stream whose transport is congested where `pressure` says so."""
    stream = EventStream(StreamLimits(100, 1 << 20, 30.0), epilogue)
    wire = Wire()
    stream._transport = wire  # type: ignore[assignment]
    sink = stream.add_sink(encode)
    sink.push(pieces[0])
    stream._resume()
    for number, piece in enumerate(pieces[1:]):
        wire.unsent = 1000 if pressure[number % len(pressure)] else 0
        if wire.unsent == 0 and not stream.flowing:
            stream._look()
        sink.push(piece)
    wire.unsent = 0
    if not stream.flowing:
        stream._look()
    await asyncio.wait_for(stream._over, 1)
    return events(unchunk(wire.data).decode())


@settings(max_examples=60, deadline=None)
@given(
    TEXTS,
    st.lists(st.booleans(), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_any_text_survives_chat_framing_and_back_pressure(
    texts: list[str], pressure: list[bool], usage: bool, ids: bool, logprobs: bool
) -> None:
    form = shape(include_usage=usage, token_ids=ids, logprobs=logprobs)
    found = asyncio.run(written(ChatChunks(form, 0), make_outputs(texts), pressure, form.epilogue))
    assert found[-1] == "[DONE]"
    chunks = [msgspec.json.decode(data) for data in found[:-1]]
    if usage:
        last = chunks.pop()
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == len(texts)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert {chunk["id"] for chunk in chunks} == {'id "1"\n'}
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "".join(texts)
    assert [choice["finish_reason"] for choice in choices].count("stop") == 1
    assert choices[-1]["finish_reason"] == "stop"
    assert choices[-1]["matched_stop"] == '"\n'
    if ids:
        tokens = [token for choice in choices for token in choice.get("token_ids", [])]
        assert tokens == [number % 256 for number in range(len(texts))]
    if logprobs:
        entries = [
            e for choice in choices for e in (choice["logprobs"] or {"content": []})["content"]
        ]
        assert len(entries) == len(texts)


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.lists(st.booleans(), min_size=1, max_size=6), st.text(max_size=5), st.booleans())
def test_any_text_survives_completion_framing_and_back_pressure(
    texts: list[str], pressure: list[bool], echo: str, logprobs: bool
) -> None:
    echo = echo.encode("utf-8", "replace").decode()
    form = shape(logprobs=logprobs)
    found = asyncio.run(
        written(CompletionChunks(form, 0, echo, bool(echo)), make_outputs(texts), pressure)
    )
    assert found[-1] == "[DONE]"
    choices = [msgspec.json.decode(data)["choices"][0] for data in found[:-1]]
    assert "".join(choice["text"] for choice in choices) == echo + "".join(texts)
    assert choices[-1]["finish_reason"] == "stop"
    if logprobs:
        tokens = [t for choice in choices for t in (choice["logprobs"] or {"tokens": []})["tokens"]]
        assert len(tokens) == len(texts)


@settings(max_examples=80, deadline=None)
@given(TEXTS, st.booleans(), st.booleans(), st.sampled_from([None, 3]), st.text(min_size=1))
def test_native_events_say_what_whole_answers_say(
    texts: list[str], disjoint: bool, prompt_ids: bool, index: int | None, rid: str
) -> None:
    """The quick path and the plain one agree, whatever the text, the id and the counts are."""
    rid = rid.encode("utf-8", "replace").decode() + "%d%s"
    request = Request(key=1, rid=rid, tokens=[5, 6], sampling=SamplingParams(), stream=True)

    def answer() -> SGLangOutput:
        return SGLangOutput(request, index=index, disjoint=disjoint)

    encode = GenerateEvents(request, answer(), disjoint=disjoint, prompt_ids=prompt_ids)
    slow = answer()
    for number, piece in enumerate(make_outputs(texts)):
        piece = msgspec.structs.replace(piece, retractions=number // 3, cached_tokens=number)
        if number % 4 == 3:
            piece = msgspec.structs.replace(piece, tokens=[])
        (data,) = events(encode(piece).decode())
        wanted = slow.event(piece)
        if prompt_ids:
            wanted["meta_info"]["prompt_token_ids"] = [5, 6]
        assert msgspec.json.decode(data) == wanted


def long_body(tokens: int = 400, **more: Any) -> dict[str, Any]:
    return {
        "text": "x",
        "stream": True,
        "sampling_params": {"max_new_tokens": tokens, "sampling_seed": 0},
        **more,
    }


def test_http_1_0_clients_get_an_unchunked_stream() -> None:
    with running_server() as server:
        body = json.dumps(long_body(3)).encode()
        head = b"POST /generate HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body)
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(head + body)
            answer = b""
            while part := connection.recv(65536):
                answer += part
        head, _, text = answer.partition(b"\r\n\r\n")
        assert b"chunked" not in head
        assert len(events(text.decode())) == 4


def test_keep_alive_goes_on_after_a_stream() -> None:
    with running_server() as server:

        async def run() -> list[str]:
            connector = aiohttp.TCPConnector(limit=1)
            found = []
            async with aiohttp.ClientSession(connector=connector) as session:
                for _ in range(3):
                    async with session.post(server.url + "/generate", json=long_body(4)) as answer:
                        found.append(await answer.text())
            return found

        assert [len(events(text)) for text in server.run(run())] == [5, 5, 5]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_client_that_leaves_cancels_its_requests(stream: bool, batch: int) -> None:
    engine = ScriptedEngine(pause=0.01)
    with running_server(engine=engine) as server:

        async def leave() -> None:
            body = {**long_body(stream=stream), "text": ["x"] * batch}
            async with aiohttp.ClientSession() as session:
                task = asyncio.create_task(session.post(server.url + "/generate", json=body))
                if stream:
                    answer = await task
                    await answer.content.readany()
                    answer.close()
                else:
                    while len(engine.running) < batch:
                        await asyncio.sleep(0.01)
                    task.cancel()

        server.run(leave())
        server.until(lambda: len(engine.cancelled) == batch)
        server.until(lambda: server.frontend.live == 0)


def test_a_client_that_leaves_before_the_first_token_cancels() -> None:
    engine = ScriptedEngine(silent=True)
    with running_server(engine=engine) as server:
        body = json.dumps(long_body()).encode()
        head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(
            body
        )
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head + body)
            server.until(lambda: len(engine.requests) == 1)
        server.until(lambda: len(engine.cancelled) == 1)


def slow_socket(server: Running, body: dict[str, Any]) -> socket.socket:
    """A client with a small receive buffer that has sent a request and reads nothing yet."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", server.port))
    data = json.dumps(body).encode()
    head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += b"Content-Length: %d\r\n\r\n"
    connection.sendall(head % len(data) + data)
    return connection


def test_a_slow_reader_gets_everything_in_fewer_events() -> None:
    """40,000 tokens with cumulative text are far more than the socket and the cap can hold."""
    engine = ScriptedEngine(script=lambda _: [97 + i % 26 for i in range(4000)])
    limits = ServerSettings(stream_high_water=32 << 10)
    with running_server(limits, engine, context=8192) as server:
        with slow_socket(server, long_body(4000)) as connection:
            server.until(lambda: len(engine.finished) == 1, 30)
            answer = b""
            while part := connection.recv(65536):
                answer += part
        text = dechunk_answer(answer)
        *found, done = events(text)
        assert done == "[DONE]"
        assert len(found) < 3000
        last = json.loads(found[-1])
        assert last["output_ids"] == [97 + i % 26 for i in range(4000)]
        assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 4000}
        lengths = [len(json.loads(data)["output_ids"]) for data in found]
        assert lengths == sorted(set(lengths))


def test_a_reader_that_never_reads_is_given_up_and_others_go_on() -> None:
    def script(request: Request) -> list[int]:
        return [97 + i % 26 for i in range(7000)]

    engine = ScriptedEngine(script=script, pause=0.0005)
    limits = ServerSettings(stream_high_water=8 << 10, stream_stall=0.3)
    with running_server(limits, engine, context=8192) as server:
        with slow_socket(server, long_body(7000, rid="stuck")):
            server.until(lambda: len(engine.requests) == 1)
            other = ask(
                server, "/generate", {"text": "y", "sampling_params": {"max_new_tokens": 9}}
            )
            assert other.json["text"] == "abcdefghi"
            server.until(lambda: engine.cancelled == [engine.requests[0].key], 30)
        server.until(lambda: server.frontend.live == 0)


def dechunk_answer(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"chunked" in head
    assert body.endswith(b"0\r\n\r\n")
    return unchunk(body[: -len(b"0\r\n\r\n")]).decode()


def test_an_engine_failure_half_way_is_an_event() -> None:
    engine = ScriptedEngine(pause=0.005)
    with running_server(engine=engine) as server:

        async def run() -> str:
            async with (
                aiohttp.ClientSession() as session,
                session.post(server.url + "/generate", json=long_body()) as answer,
            ):
                await answer.content.readany()
                server.loop.call_soon_threadsafe(fail)
                return (await answer.content.read()).decode()

        def fail() -> None:
            from vivace.protocol.messages import EngineDown

            server.frontend.feed(EngineDown(reason="it caught fire", restarting=False))

        *_, error, done = events_after(server.run(run()))
        assert done == "[DONE]"
        body = json.loads(error)
        assert body["error"]["code"] == 503
        assert "it caught fire" in body["error"]["message"]


def events_after(text: str) -> list[str]:
    """Events of a body whose beginning was read before."""
    return events("data: " + text.split("data: ", 1)[1])


def test_a_bug_in_an_encoder_ends_one_stream_only(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SGLangOutput.extend

    def extend(self: SGLangOutput, text: str, tokens: list[int]) -> None:
        if self._request.rid == "bad" and len(self._tokens) == 4:
            raise RuntimeError("boom")
        original(self, text, tokens)

    monkeypatch.setattr(SGLangOutput, "extend", extend)
    engine = ScriptedEngine(pause=0.002)
    with running_server(engine=engine) as server:

        async def run() -> list[str]:
            async with aiohttp.ClientSession() as session:

                async def one(rid: str) -> str:
                    body = long_body(50, rid=rid)
                    async with session.post(server.url + "/generate", json=body) as answer:
                        return await answer.text()

                return list(await asyncio.gather(one("bad"), one("good")))

        bad, good = server.run(run())
        assert len(events(good)) == 51
        *_, error, done = events(bad)
        assert (json.loads(error)["code"], done) == (500, "[DONE]")
        assert "boom" not in bad
        server.until(lambda: engine.cancelled == [engine.requests[0].key])


def test_the_first_event_is_not_delayed_by_the_rest() -> None:
    """Events are flushed one by one: the first arrives long before the last token exists."""
    engine = ScriptedEngine(pause=0.05)
    with running_server(engine=engine) as server:

        async def run() -> bool:
            async with (
                aiohttp.ClientSession() as session,
                session.post(server.url + "/generate", json=long_body(60)) as answer,
            ):
                await answer.content.readany()
                early = not engine.finished
                answer.close()
                return early

        assert server.run(run())


class PiecesOnly:
    """The same sink as a sink that wants every piece."""

    def __init__(self, sink: StreamSink) -> None:
        self.push = sink.push


def make_encoder(kind: str, request: Request) -> Any:
    if kind == "chat":
        return ChatChunks(shape(), 0)
    if kind == "completion":
        return CompletionChunks(shape(), 0)
    disjoint = kind == "native news"
    answer = SGLangOutput(request, disjoint=disjoint, wall=lambda: 0.0)
    return GenerateEvents(request, answer, disjoint=disjoint, prompt_ids=False)


async def fed(kind: str, deltas: list[Delta], *, offers: bool) -> tuple[bytes, int]:
    """(what a frontend's deltas become on the wire, how many deltas made no piece)."""
    clock = iter(range(1 << 20)).__next__
    served = ServedModel(name="m", context=4096, vocabulary=256)
    frontend = Frontend(
        served, TOKENIZER, [EngineView(lambda _: None)], clock=lambda: float(clock())
    )
    capacity = Capacity(pages=64, page_size=16, rows=8, context=4096, vocabulary=256)
    frontend.feed(Ready(epoch=1, capacity=capacity))
    request = frontend.request([1, 2], SamplingParams(max_new_tokens=999), rid="r", arrival=0.0)
    stream = EventStream(StreamLimits(1 << 20, 1 << 20, 30.0))
    wire = Wire()
    stream._transport = wire  # type: ignore[assignment]
    sink = stream.add_sink(make_encoder(kind, request))
    passed = 0
    stream._resume()
    frontend.start(request, sink if offers else PiecesOnly(sink))
    live = frontend._states[request.key]
    for delta in deltas:
        delta = msgspec.structs.replace(delta, key=request.key)
        if live.try_fast_path(delta):
            passed += 1
        elif (piece := live.accept(delta)) is not None:
            live.sink.push(piece)
    frontend.close()
    return wire.data, passed


@st.composite
def engine_news(draw: st.DrawFn) -> list[Delta]:
    """Deltas with parts of characters, repeated tokens, retractions, and news of nothing."""
    text = draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12))
    tokens = list(text.encode())
    found: list[Delta] = []
    at = 0
    while at < len(tokens):
        begin = max(0, at - draw(st.sampled_from([0, 0, 1, 2])))
        end = min(len(tokens), at + draw(st.sampled_from([1, 2, 3, 0])))
        retractions = draw(st.sampled_from([0, 0, 0, 1]))
        found.append(Delta(key=0, index=begin, tokens=tokens[begin:end], retractions=retractions))
        at = max(at, end)
    end = Finish(type="length", length=len(tokens))
    return [*found, Delta(key=0, index=len(tokens), tokens=[], finish=end)]


@settings(max_examples=80, deadline=None)
@given(engine_news(), st.sampled_from(["chat", "completion", "native news", "native whole"]))
def test_mere_text_makes_the_same_bytes_as_pieces(deltas: list[Delta], kind: str) -> None:
    quick, _ = asyncio.run(fed(kind, deltas, offers=True))
    slow, passed = asyncio.run(fed(kind, deltas, offers=False))
    assert quick == slow
    assert passed == 0


def test_the_middle_of_a_plain_answer_makes_no_pieces() -> None:
    deltas = [Delta(key=0, index=i, tokens=[97 + i]) for i in range(6)]
    _, passed = asyncio.run(fed("chat", deltas, offers=True))
    assert passed == 5


def test_a_congested_stream_holds_mere_text_as_a_piece() -> None:
    async def run() -> list[str]:
        stream = EventStream(StreamLimits(100, 1 << 20, 30.0))
        wire = Wire()
        stream._transport = wire  # type: ignore[assignment]
        sink = stream.add_sink(ChatChunks(shape(), 0))
        stream._resume()
        first, *rest, end = make_outputs(["a", "b", "c", "d"])
        sink.push(first)
        wire.unsent = 1000
        assert sink.offer("b", [1], 2)
        assert not stream.flowing
        for piece in rest[1:]:
            assert not sink.offer(piece.text, piece.tokens, piece.completion_tokens)
            sink.push(piece)
        sink.push(end)
        wire.unsent = 0
        stream._look()
        return events(unchunk(wire.data).decode())

    found = asyncio.run(run())
    texts = [
        json.loads(data)["choices"][0]["delta"].get("content") for data in found if data != "[DONE]"
    ]
    assert texts == ["", "a", "b", "cd", None]
