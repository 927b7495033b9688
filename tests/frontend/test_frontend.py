from __future__ import annotations

import asyncio
from array import array
from typing import Any

import pytest
from frontend_fakes import EPOCH, Edge, Recorder, byte_tokenizer, capacity
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.engine.oracle import pack_logprobs
from vivace.frontend.engine_status import EngineView
from vivace.frontend.errors import BadRequest, EngineUnavailable
from vivace.frontend.frontend import Frontend
from vivace.protocol.messages import (
    MAX_RID_CHARACTERS,
    Cancel,
    Command,
    Delta,
    Deltas,
    EngineDown,
    Finish,
    FlushCache,
    LogprobOptions,
    Ready,
    Reply,
    Request,
    SamplingParams,
    TokenLogprob,
)
from vivace.protocol.tasks import EMBEDDING, GENERATE, HIDDEN, Embed, Generate, Payload, Task

LENGTH = Finish(type="length", length=3)
END = 261


def ids(text: str) -> list[int]:
    return list(text.encode())


def start(
    edge: Edge,
    *,
    rid: str | None = None,
    prompt: str = "hi",
    logprobs: LogprobOptions | None = None,
    task: Task = GENERATE,
    **sampling: Any,
) -> tuple[Request, Recorder]:
    sink = Recorder()
    request = edge.frontend.request(
        ids(prompt),
        SamplingParams(**{"max_new_tokens": 50, **sampling}),
        rid=rid,
        logprobs=logprobs,
        task=task,
    )
    edge.frontend.start(request, sink)  # type: ignore[arg-type]
    return request, sink


def delta(request: Request, index: int, text: str | list[int], **more: Any) -> Delta:
    tokens = ids(text) if isinstance(text, str) else text
    return Delta(key=request.key, index=index, tokens=tokens, **more)


def test_one_answer() -> None:
    edge = Edge()
    request, sink = start(edge)
    assert edge.sent == [request] and edge.frontend.live == 1
    edge.now += 2
    edge.feed(delta(request, 0, "é"[:1], cached_tokens=1, queue_time=0.5))
    edge.feed(delta(request, 2, "!", retractions=1), delta(request, 3, [END], finish=LENGTH))
    assert (sink.text, sink.tokens) == ("é!", [*ids("é!"), END])
    assert sink.pieces[0].timings == {"queue": 0.5}
    assert sink.last.timings == {"sent": 0.0, "queue": 0.5, "first": 2.0, "e2e": 2.0}
    last = sink.last
    assert (last.prompt_tokens, last.completion_tokens, last.cached_tokens) == (2, 4, 1)
    assert last.finish == LENGTH and last.retractions == 1
    assert edge.frontend.live == 0 and edge.sent == [request]


def test_the_first_token_is_timed_by_the_engine() -> None:
    """Without streaming it waits there for the others."""
    edge = Edge()
    request, sink = start(edge)
    edge.now += 10
    edge.feed(delta(request, 0, "abc", finish=LENGTH, queue_time=0.5, first_token_time=1.5))
    assert sink.last.timings == {"sent": 0.0, "queue": 0.5, "first": 1.5, "e2e": 10.0}


def test_ledger_drops_repeats_and_stops_at_gaps() -> None:
    edge = Edge()
    (one, first), (two, second) = start(edge), start(edge)
    edge.feed(delta(one, 0, "ab"), delta(two, 0, "x"))
    edge.feed(delta(one, 1, "bc"), delta(one, 0, "abc"), delta(two, 2, "z"))
    assert first.text == "abc" and first.last.finish is None
    assert second.text == "x"
    assert second.last.finish is not None and second.last.finish.status == 500
    assert edge.sent[-1] == Cancel(keys=[two.key], finished=True)
    edge.feed(delta(two, 1, "y"), delta(one, 3, "", finish=LENGTH))
    assert first.last.finish == LENGTH and second.text == "x"


def test_repeats_keep_logprobs_in_step() -> None:
    edge = Edge()
    request, sink = start(edge)
    entries = [TokenLogprob(token, -1.0) for token in ids("abc")]
    edge.feed(delta(request, 0, "ab", logprobs=entries[:2]))
    edge.feed(delta(request, 1, "bc", logprobs=entries[1:]))
    found = [entry for piece in sink.pieces for entry in piece.logprobs or []]
    assert found == entries


PROMPT = "prompt"
ROWS = [TokenLogprob(token, -float(token), [(-1.0, token)]) for token in ids(PROMPT)]
SCORED = LogprobOptions(start=2, top=1)


def part(request: Request, first: int, end: int) -> Delta:
    """Log-probabilities of prompt tokens `first` to `end`."""
    return delta(request, 0, "", prompt_logprobs=pack_logprobs(first, ROWS[first:end]))


def test_prompt_logprobs_come_in_parts_and_are_shown_once_with_the_first_token() -> None:
    edge = Edge()
    request, sink = start(edge, prompt=PROMPT, logprobs=SCORED)
    edge.feed(part(request, 2, 3), part(request, 2, 3), part(request, 3, 6), part(request, 2, 4))
    assert not sink.pieces
    edge.feed(delta(request, 0, "a"), delta(request, 1, "b", finish=LENGTH))
    first, second = sink.pieces
    assert list(first.prompt_logprobs or ()) == ROWS[2:] and second.prompt_logprobs is None


def test_lost_prompt_logprobs_end_the_answer() -> None:
    for news in ([(3, 6)], [(2, 4), (5, 6)], [(2, 4)]):
        edge = Edge()
        request, sink = start(edge, prompt=PROMPT, logprobs=SCORED)
        edge.feed(*(part(request, first, end) for first, end in news), delta(request, 0, "a"))
        assert sink.last.finish is not None and sink.last.finish.status == 500
        assert sink.text == "" and edge.sent[-1] == Cancel(keys=[request.key], finished=True)


def test_a_restart_asks_only_for_prompt_logprobs_that_have_not_come() -> None:
    edge = Edge()
    request, sink = start(edge, prompt=PROMPT, logprobs=SCORED)
    edge.feed(part(request, 2, 4))
    edge.frontend.feed(EngineDown(reason="killed", restarting=True))
    edge.ready(EPOCH + 1)
    again = edge.sent[-1]
    assert isinstance(again, Request) and again.logprobs == LogprobOptions(start=4, top=1)
    edge.feed(part(request, 4, 6), delta(request, 0, "a", finish=LENGTH))
    assert list(sink.last.prompt_logprobs or ()) == ROWS[2:]


def test_an_abort_in_the_middle_of_the_prompt_shows_none_of_its_logprobs() -> None:
    edge = Edge()
    request, sink = start(edge, prompt=PROMPT, logprobs=SCORED)
    edge.feed(part(request, 2, 4), delta(request, 0, "", finish=Finish(type="abort")))
    assert sink.last.finish == Finish(type="abort") and sink.last.prompt_logprobs is None


def test_stop_string_ends_the_answer_and_cancels() -> None:
    edge = Edge()
    request, sink = start(edge, stop=("STOP",))
    edge.feed(delta(request, 0, "one S"))
    assert sink.text == "one "
    entries = [TokenLogprob(token, -1.0) for token in ids("TOP more")]
    edge.feed(delta(request, 5, "TOP more", logprobs=entries, finish=LENGTH))
    assert sink.text == "one " and sink.tokens == ids("one STOP")
    assert sink.last.finish == Finish(type="stop", matched="STOP")
    assert sink.last.completion_tokens == 8 and sink.last.logprobs == entries[:3]
    assert edge.sent == [request]  # the engine had finished by itself

    request, sink = start(edge, stop=("b",), no_stop_trim=True)
    edge.feed(delta(request, 0, "abc"))
    assert sink.text == "ab" and sink.last.completion_tokens == 2
    assert edge.sent[-1] == Cancel(keys=[request.key], finished=True)
    assert edge.frontend.live == 0


def test_held_back_text_is_shown_at_the_end() -> None:
    edge = Edge()
    request, sink = start(edge, stop=("xyz",))
    edge.feed(delta(request, 0, [*ids("axy"), 0xC3]))
    assert sink.text == "axy"[:1]
    edge.feed(delta(request, 4, [], finish=LENGTH))
    assert sink.text == "axy\ufffd"


def test_stop_id_is_a_token_but_no_text() -> None:
    edge = Edge()
    stop = Finish(type="stop", matched=ord("!"))
    for keep, text in ((False, "ok"), (True, "ok!")):
        request, sink = start(edge, stop_token_ids=(ord("!"),), no_stop_trim=keep)
        edge.feed(delta(request, 0, "ok!", finish=stop))
        assert sink.text == text and sink.last.completion_tokens == 3
        assert sink.last.finish == stop


def test_restart_continues_behind_the_ledger() -> None:
    edge = Edge()
    request, sink = start(edge)
    edge.feed(delta(request, 0, "ab"))
    edge.frontend.feed(EngineDown(reason="killed", restarting=True))
    assert edge.frontend.status == "starting" and edge.frontend.live == 1
    with pytest.raises(BadRequest) as caught:
        start(edge)
    assert caught.value.status == 503 and caught.value.retry_after
    edge.feed(delta(request, 2, "LATE"), epoch=EPOCH)
    edge.ready(8)
    assert edge.requests()[-1].resumed == ids("ab")
    assert edge.requests()[-1].key == request.key
    edge.feed(delta(request, 2, "STALE"), epoch=EPOCH)
    edge.feed(delta(request, 2, "c", finish=LENGTH))
    assert sink.text == "abc"
    edge.ready(8)
    assert len(edge.requests()) == 2


def states(first: int, end: int) -> Payload:
    """One number for each position: itself."""
    data = array("f", range(first, end)).tobytes()
    return Payload("hidden_states", "float32", (end - first, 1), data, first)


def shown(sink: Recorder) -> list[float]:
    parts = [part for piece in sink.pieces for part in piece.hidden_states or []]
    return [number for part in parts for number in part.numbers()]


def test_a_restart_asks_only_for_hidden_states_that_have_not_come() -> None:
    edge = Edge()
    request, sink = start(edge, prompt="hello", task=HIDDEN)
    edge.feed(delta(request, 0, "", payload=states(0, 3)))
    edge.feed(delta(request, 0, "", payload=states(3, 5)), delta(request, 0, "a"))
    edge.feed(delta(request, 1, "", payload=states(5, 7)))  # its tokens did not come any more
    edge.frontend.feed(EngineDown(reason="killed", restarting=True))
    edge.frontend.feed(Ready(epoch=EPOCH + 1, capacity=capacity()))
    resumed = edge.sent[-1]
    assert isinstance(resumed, Request) and resumed.resumed == ids("a")
    assert resumed.task == Generate(hidden_state_start=7)
    news = [delta(request, 1, "", payload=states(6, 9)), delta(request, 1, "bcd", finish=LENGTH)]
    edge.frontend.feed(Deltas(epoch=EPOCH + 1, deltas=news))
    assert sink.text == "abcd" and shown(sink) == [*map(float, range(8))]


def test_a_gap_in_hidden_states_ends_the_request() -> None:
    for news in (
        [{"payload": states(0, 2)}, {"payload": states(3, 4)}],
        [{"payload": states(0, 1)}, {"text": "a"}],
    ):
        edge = Edge()
        request, sink = start(edge, prompt="hi", task=HIDDEN)
        for one in news:
            edge.feed(delta(request, 0, one.pop("text", ""), **one))  # type: ignore[arg-type]
        assert sink.last.finish is not None and sink.last.finish.status == 500


def test_a_restart_asks_again_for_a_vector() -> None:
    edge = Edge()
    request, sink = start(edge, prompt="hello", task=Embed(pooling="mean"), max_new_tokens=0)
    edge.frontend.feed(EngineDown(reason="killed", restarting=True))
    edge.frontend.feed(Ready(epoch=EPOCH + 1, capacity=capacity()))
    assert edge.sent[-1] == request
    vector = Payload(EMBEDDING, "float32", (2,), array("f", [0.5, 1.0]).tobytes())
    last = delta(request, 0, "", payload=vector, finish=LENGTH)
    edge.frontend.feed(Deltas(epoch=EPOCH + 1, deltas=[last]))
    assert sink.last.embedding is not None and sink.last.embedding.numbers() == [0.5, 1.0]
    assert edge.frontend.live == 0


def test_who_was_in_no_fatal_step_survives_any_number_of_restarts() -> None:
    edge = Edge()
    request, sink = start(edge)
    for epoch in range(8, 20):
        edge.frontend.feed(EngineDown(reason="killed", restarting=True))
        edge.ready(epoch)
    assert not sink.pieces and edge.requests() == [request] * 13


def test_who_is_found_to_kill_engines_ends_alone() -> None:
    edge = Edge()
    (poison, sink), (other, other_sink) = start(edge), start(edge)
    suspects = {poison.key: 1, other.key: 1, 999: 1}
    edge.frontend.feed(EngineDown(reason="SIGSEGV", restarting=True, suspects=suspects))
    edge.ready(8)
    assert [request.suspect for request in edge.requests()[2:]] == [1, 1]
    down = EngineDown(reason="SIGSEGV", restarting=True, refused=[poison.key, 999], suspects={})
    edge.frontend.feed(down)
    finish = sink.last.finish
    assert finish is not None and finish.status == 500 and "SIGSEGV" in str(finish.message)
    edge.ready(9)
    assert edge.requests()[-1].key == other.key and not other_sink.pieces
    assert len(edge.requests()) == 5


def test_who_killed_engines_is_not_tried_again_for_a_while() -> None:
    edge = Edge()
    poison, _ = start(edge, temperature=0.7)
    edge.frontend.feed(EngineDown(reason="SIGSEGV", restarting=True, refused=[poison.key]))
    edge.ready(8)
    with pytest.raises(BadRequest) as caught:
        start(edge, temperature=0.7)
    assert caught.value.status == 500 and edge.frontend.live == 0
    start(edge, temperature=0.8)
    edge.now += 601
    start(edge, temperature=0.7)


@pytest.mark.parametrize(
    ("text", "sampling", "finish"),
    [
        ("abc", {"max_new_tokens": 3}, Finish(type="length", length=3)),
        ([97, END], {}, Finish(type="stop", matched=END)),
        ([97, 98], {"stop_token_ids": (98,)}, Finish(type="stop", matched=98)),
    ],
)
def test_an_end_that_died_with_the_engine(text: Any, sampling: Any, finish: Finish) -> None:
    edge = Edge()
    request, sink = start(edge, **sampling)
    edge.feed(delta(request, 0, text))
    edge.frontend.feed(EngineDown(reason="killed", restarting=True))
    edge.ready(8)
    assert sink.last.finish == finish and len(edge.requests()) == 1


def test_engine_gone_for_good() -> None:
    edge = Edge()
    request, sink = start(edge)
    edge.feed(delta(request, 0, "a"))
    edge.frontend.feed(EngineDown(reason="out of memory", restarting=False))
    assert edge.frontend.status == "down"
    finish = sink.last.finish
    assert finish is not None and finish.status == 503 and "out of memory" in str(finish.message)


def test_limits() -> None:
    edge = Edge(ready=False, max_live=2)
    with pytest.raises(BadRequest) as caught:
        start(edge)
    assert caught.value.status == 503
    edge.ready(EPOCH)
    start(edge, rid="a")
    for rid in ("a", "", "x" * 600, 5):
        with pytest.raises(BadRequest) as caught:
            start(edge, rid=rid)  # type: ignore[arg-type]
        assert caught.value.field == "rid"
    with pytest.raises(BadRequest):
        edge.frontend.request(ids("hi"), SamplingParams(), priority=1 << 40)
    start(edge)
    with pytest.raises(BadRequest) as caught:
        start(edge)
    assert caught.value.status == 503
    edge.frontend.drain()
    assert edge.frontend.status == "draining"


def test_capacity_bounds_the_context() -> None:
    edge = Edge()
    edge.frontend.feed(Ready(epoch=9, capacity=capacity(context=20)))
    assert edge.frontend.served.context == 20
    with pytest.raises(BadRequest, match="context"):
        edge.frontend.request([1] * 20, SamplingParams(max_new_tokens=1))
    without = Frontend(edge.frontend.served, None, [EngineView(edge.sent.append)])
    without.feed(Ready(epoch=1, capacity=capacity()))
    with pytest.raises(BadRequest, match="stop_token_ids"):
        without.request([1], SamplingParams(max_new_tokens=1, stop=("x",)))


def test_cancel_and_abort() -> None:
    edge = Edge()
    request, sink = start(edge, rid="job-1")
    edge.frontend.cancel([request.key, 12345])
    assert edge.sent[-1] == Cancel(keys=[request.key]) and edge.frontend.live == 0
    edge.feed(delta(request, 0, "a", finish=LENGTH))
    assert not sink.pieces
    _, sink = start(edge, rid="job-1")
    edge.frontend.abort("job")
    assert edge.sent[-1] == Cancel(rid_prefix="job", when=edge.now)
    edge.frontend.abort("")
    assert edge.sent[-1] == Cancel(rid_prefix="", when=edge.now)
    sent = len(edge.sent)
    edge.frontend.abort("x" * (MAX_RID_CHARACTERS + 1))
    assert len(edge.sent) == sent, "no id is so long"


def test_abort_between_two_engines() -> None:
    edge = Edge()
    (_, one), (_, two) = start(edge, rid="job-1"), start(edge, rid="other")
    edge.frontend.feed(EngineDown(reason="killed", restarting=True))
    edge.frontend.abort("job")
    assert one.last.finish is not None and one.last.finish.status is None
    edge.ready(8)
    abort, request = edge.sent[2:]
    assert abort == Cancel(rid_prefix="job", when=edge.now), "for what other frontends have"
    assert request.rid == "other"
    assert not two.pieces


def test_a_broken_sink_harms_nobody_else() -> None:
    class Broken:
        def push(self, piece: object) -> None:
            raise RuntimeError("socket gone")

    edge = Edge()
    bad = edge.frontend.request(ids("x"), SamplingParams(max_new_tokens=5))
    edge.frontend.start(bad, Broken())  # type: ignore[arg-type]
    good, sink = start(edge)
    edge.feed(delta(bad, 0, "a"), delta(good, 0, "b"))
    assert sink.text == "b" and edge.frontend.live == 1
    assert edge.sent[-1] == Cancel(keys=[bad.key], finished=True)


def test_generate_and_leaving_early() -> None:
    async def scenario() -> None:
        edge = Edge()
        request = edge.frontend.request(ids("x"), SamplingParams(max_new_tokens=5))
        stream = edge.frontend.generate(request)
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        edge.feed(delta(request, 0, "a"), delta(request, 1, "b"))
        piece = await reading
        assert (piece.text, piece.completion_tokens) == ("ab", 2)  # merged: nobody was reading
        await stream.aclose()  # type: ignore[attr-defined]
        assert edge.sent[-1] == Cancel(keys=[request.key])
        other = edge.frontend.request(ids("x"), SamplingParams(max_new_tokens=5))
        pieces = []
        asyncio.get_running_loop().call_soon(edge.feed, delta(other, 0, "z", finish=LENGTH))
        async for piece in edge.frontend.generate(other):
            pieces.append(piece)
        assert [piece.text for piece in pieces] == ["z"]
        assert not isinstance(edge.sent[-1], Cancel)

    asyncio.run(scenario())


def test_control() -> None:
    async def scenario() -> None:
        edge = Edge()
        asking = asyncio.ensure_future(edge.frontend.commands.run(FlushCache()))
        await asyncio.sleep(0)
        command = edge.sent[-1]
        assert isinstance(command, Command)
        edge.frontend.feed(Reply(ticket=command.ticket, ok=True))
        edge.frontend.feed(Reply(ticket=command.ticket, ok=True))
        (reply,) = await asking
        assert reply is not None and reply.ok
        with pytest.raises(EngineUnavailable, match="answer"):
            await edge.frontend.commands.run(FlushCache(), timeout=0.01)
        asking = asyncio.ensure_future(edge.frontend.commands.run(FlushCache()))
        await asyncio.sleep(0)
        edge.frontend.feed(EngineDown(reason="killed", restarting=False))
        (reply,) = await asking
        assert reply is not None and "killed" in reply.message
        with pytest.raises(EngineUnavailable, match="down"):
            await edge.frontend.commands.run(FlushCache())

    asyncio.run(scenario())


def test_encode() -> None:
    async def scenario() -> None:
        edge = Edge()
        assert await edge.frontend.encode("hi") == ids("hi")
        assert await edge.frontend.encode("hi" * 5000) == ids("hi" * 5000)
        with pytest.raises(BadRequest, match="context"):
            await edge.frontend.encode("x" * 300_000)
        with pytest.raises(BadRequest, match="Unicode"):
            await edge.frontend.encode("\ud800" * 1000)
        edge.frontend.close()

    asyncio.run(scenario())


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_every_token_is_shown_once_whatever_the_channel_does(data: st.DataObject) -> None:
    """Repeats and engine restarts at any point: the answer is the same."""
    tokens = data.draw(st.lists(st.integers(0, 255), min_size=1, max_size=20))
    edge = Edge()
    request, sink = start(edge)
    epoch, done = EPOCH, 0
    while done < len(tokens):
        if epoch < EPOCH + 2 and data.draw(st.integers(0, 5)) == 0:
            epoch += 1
            edge.frontend.feed(EngineDown(reason="killed", restarting=True))
            edge.ready(epoch)
            assert edge.requests()[-1].resumed == tokens[:done]
        begin = max(0, done - data.draw(st.integers(0, 3)))
        end = min(done + data.draw(st.integers(1, 4)), len(tokens))
        edge.feed(Delta(key=request.key, index=begin, tokens=tokens[begin:end]))
        done = max(done, end)
    edge.feed(Delta(key=request.key, index=done, tokens=[], finish=LENGTH))
    assert sink.tokens == tokens
    assert sink.text == byte_tokenizer().decode(tokens)
    assert sink.last.finish == LENGTH and edge.frontend.live == 0


def test_deltas_before_ready_are_ignored() -> None:
    edge = Edge(ready=False)
    edge.frontend.feed(Deltas(epoch=1, deltas=[Delta(key=1, index=0, tokens=[1])]))
    assert edge.frontend.live == 0
