"""The client against the scripted server, and its clockwork with a clock of our own."""

from __future__ import annotations

import asyncio
import json
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_site import served

from vivace.bench.arrivals import arrival_times, by_arrival
from vivace.bench.backends import BACKENDS
from vivace.bench.errors import BenchError
from vivace.bench.fake_server import Script
from vivace.bench.http_backends import (
    Chat,
    Completions,
    Native,
    NativeReader,
    OpenAIReader,
    RequestSettings,
)
from vivace.bench.runner import BenchLoad, measure_load, wait_ready
from vivace.bench.transport import EventSplitter, Record, Stopwatch
from vivace.bench.workload import BenchRequest


def load_for(url: str, backend: str = "vivace", **changes: object) -> BenchLoad:
    settings = RequestSettings(model="m", stream=bool(changes.pop("stream", True)))
    values = {"backend": BACKENDS[backend], "base_url": url, "settings": settings, "warmup": 0}
    return BenchLoad(**(values | changes))  # type: ignore[arg-type]


def queries(number: int = 3, output: int = 6) -> list[BenchRequest]:
    return [BenchRequest(prompt="abcd", input_len=4, output_len=output) for _ in range(number)]


@pytest.mark.parametrize("backend", ["vivace", "sglang-oai", "vllm", "openai-chat"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("per_event", [1, 4])
def test_every_protocol_is_counted_right(backend: str, stream: bool, per_event: int) -> None:
    with served(Script(per_event=per_event)) as url:
        outcome = asyncio.run(measure_load(load_for(url, backend, stream=stream), queries()))
    for record in outcome.records:
        assert record.success, record.error
        assert (record.output_len, record.text) == (6, "abcdef")
        assert record.counted_by_server
        assert 0 < record.ttft <= record.latency <= outcome.duration
        if not stream:
            assert record.itl == []
        elif backend == "vivace":
            assert len(record.itl) == 6 - per_event
        else:
            assert len(record.itl) == (5 if per_event == 1 else 1)


def test_failures_and_broken_streams_are_records() -> None:
    with served(Script(fail_every=3)) as url:
        records = asyncio.run(measure_load(load_for(url, concurrency=1), queries(6))).records
    assert [record.success for record in records] == [True, True, False] * 2
    assert records[2].error.startswith("HTTP 500")
    for backend in ("vivace", "openai"):
        with served(Script(cut_every=1)) as url:
            records = asyncio.run(measure_load(load_for(url, backend), queries(1))).records
        assert "before the answer was complete" in records[0].error


def test_nobody_listens() -> None:
    load = load_for("http://127.0.0.1:9", ready_timeout=0.0)
    records = asyncio.run(measure_load(load, queries(1))).records
    assert not records[0].success
    with pytest.raises(BenchError, match=r"\(Connection refused\).* `vivace serve`"):
        asyncio.run(wait_ready(load))
    with pytest.raises(BenchError, match="warm-up"):
        asyncio.run(measure_load(load_for("http://127.0.0.1:9", warmup=1), queries(1)))


def test_procedure_warms_up_flushes_and_then_runs() -> None:
    script = Script(keep=True)
    with served(script) as url:
        load = load_for(url, warmup=2, flush=True, concurrency=1, connection_per_request=True)
        asyncio.run(wait_ready(load))
        outcome = asyncio.run(measure_load(load, queries(3, output=40)))
    assert script.flushed == 1
    asked = [body["sampling_params"]["max_new_tokens"] for body in script.bodies]
    assert asked == [32, 32, 40, 40, 40]
    assert len(outcome.records) == 3
    with served(script) as url, pytest.raises(BenchError, match="no /flush_cache"):
        asyncio.run(measure_load(load_for(url, "vllm", flush=True), queries(1)))


def test_later_turns_repeat_what_was_said() -> None:
    script = Script(keep=True)
    turn = BenchRequest(prompt="start", input_len=5, output_len=2, followups=("more", "end"))
    with served(script) as url:
        records = asyncio.run(measure_load(load_for(url), [turn])).records
    assert [body["text"] for body in script.bodies] == [
        "start",
        "startab\n\nmore",
        "startab\n\nmoreab\n\nend",
    ]
    assert [(record.query, record.turn) for record in records] == [(0, 0), (0, 1), (0, 2)]
    assert [record.input_len for record in records] == [5, 13, 20]


def test_concurrency_is_bounded() -> None:
    with served(Script(gap=0.001)) as url:
        records = asyncio.run(measure_load(load_for(url, concurrency=2), queries(8))).records
    edges = [(record.start, 1) for record in records]
    edges += [(record.start + record.latency, -1) for record in records]
    most = open_now = 0
    for _, change in sorted(edges):
        open_now += change
        most = max(most, open_now)
    assert most <= 2


@settings(deadline=None)
@given(
    st.lists(st.binary(max_size=12).filter(lambda b: b"\n" not in b and b"\r" not in b)),
    st.lists(st.integers(1, 9), min_size=1),
)
def test_splitter_does_not_care_where_bytes_are_cut(
    payloads: list[bytes], sizes: list[int]
) -> None:
    stream = b"".join(b"data: " + payload + b"\r\n\r\n: comment\n" for payload in payloads)
    splitter, found, place = EventSplitter(), [], 0
    for turn in count():
        size = sizes[turn % len(sizes)]
        found += splitter.feed(stream[place : place + size])
        place += size
        if place >= len(stream):
            break
    found += splitter.close()
    assert found == [payload.strip() for payload in payloads]


def native_event(text: str, tokens: int) -> bytes:
    meta = {"completion_tokens": tokens, "prompt_tokens": 3, "finish_reason": None}
    return json.dumps({"text": text, "meta_info": meta}).encode()


def test_native_gaps_are_divided_among_new_tokens() -> None:
    record = Record(query=0, input_len=3, requested=9, start=10.0)
    watch, reader = Stopwatch(record, counts_tokens=True), NativeReader(incremental=False)
    watch.event(native_event("", 1), reader, 10.5)  # no text yet: not the first token
    watch.event(native_event("ab", 2), reader, 11.0)
    watch.event(native_event("abcde", 5), reader, 11.6)
    watch.event(native_event("abcde", 5), reader, 11.7)  # nothing new
    watch.event(native_event("abcdef", 6), reader, 12.0)
    watch.event(b"[DONE]", reader, 12.5)
    assert record.ttft == pytest.approx(1.0)
    assert record.itl == pytest.approx([0.2, 0.2, 0.2, 0.4])
    assert record.latency == pytest.approx(2.5)
    assert (reader.text(), reader.finished) == ("abcdef", True)


def test_openai_gaps_are_between_chunks() -> None:
    record = Record(query=0, input_len=3, requested=9, start=0.0)
    watch, reader = Stopwatch(record, counts_tokens=False), OpenAIReader()
    role = b'{"choices":[{"delta":{"role":"assistant","content":""}}]}'
    for moment, event in (
        (1.0, role),
        (2.0, b'{"choices":[{"delta":{"content":"ab"}}]}'),
        (2.5, b'{"choices":[{"delta":{"content":"c"},"finish_reason":"stop"}]}'),
        (2.6, b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":3}}'),
        (2.7, b"[DONE]"),
    ):
        watch.event(event, reader, moment)
    assert (record.ttft, record.itl, record.latency) == (2.0, [0.5], 2.7)
    assert (reader.tokens, reader.prompt_tokens, reader.text()) == (3, 3, "abc")


def test_incremental_native_streams_are_joined() -> None:
    reader = NativeReader(incremental=True)
    assert reader.feed(native_event("a", 1))
    assert reader.feed(native_event("a", 2))
    assert reader.text() == "aa"


def test_an_abort_is_an_error() -> None:
    reader = NativeReader(incremental=False)
    reason = {"type": "abort", "message": "too long", "status_code": 400}
    reader.feed(json.dumps({"text": "", "meta_info": {"finish_reason": reason}}).encode())
    assert "too long" in reader.error
    other = OpenAIReader()
    other.feed(b'{"error": {"message": "boom"}}')
    assert "boom" in other.error


def test_bodies() -> None:
    settings = RequestSettings(
        model="m",
        return_logprob=True,
        top_logprobs=2,
        token_ids_logprob=(5,),
        extra={"sampling_params": {"min_p": 0.1}, "priority": 3},
    )
    query = BenchRequest(prompt=[1, 2], input_len=2, output_len=8)
    native = Native().body(query, settings)
    assert native["input_ids"] == [1, 2]
    assert native["sampling_params"] == {
        "temperature": 0.0,
        "top_p": 1.0,
        "max_new_tokens": 8,
        "ignore_eos": True,
        "min_p": 0.1,
    }
    assert (native["priority"], native["top_logprobs_num"], native["stream"]) == (3, 2, True)
    assert native["token_ids_logprob"] == [5]
    completion = Completions().body(query, RequestSettings(model="m"))
    assert (completion["prompt"], completion["max_tokens"]) == ([1, 2], 8)
    assert completion["stream_options"] == {"include_usage": True}
    assert completion["ignore_eos"] is True
    text = BenchRequest(prompt="hi", input_len=1, output_len=8)
    chat = Chat().body(text, RequestSettings(model="m"))
    assert chat["messages"] == [{"role": "user", "content": "hi"}]
    with pytest.raises(BenchError, match="tokenize-prompt"):
        Chat().body(query, RequestSettings())


def test_arrivals() -> None:
    many = queries(4000)
    times = arrival_times(many, 50.0, False, seed=1)
    assert times[0] == 0.0
    assert times == sorted(times)
    assert times == arrival_times(many, 50.0, False, seed=1)
    assert times[-1] / (len(times) - 1) == pytest.approx(1 / 50, rel=0.1)
    assert set(arrival_times(many, float("inf"), False, seed=1)) == {0.0}
    with pytest.raises(BenchError, match="above 0"):
        arrival_times(many, 0.0, False, seed=1)
    with pytest.raises(BenchError, match="timestamp"):
        arrival_times(many, 1.0, True, seed=1)


def test_arrivals_follow_the_clock() -> None:
    now = [100.0]
    seen: list[tuple[int, float]] = []

    async def sleep(seconds: float) -> None:
        now[0] += seconds + 0.25  # always late

    async def run() -> None:
        async for index, _ in by_arrival(queries(3), [2.0, 0.0, 1.0], lambda: now[0], sleep):
            seen.append((index, now[0] - 100.0))

    asyncio.run(run())
    assert seen == [(1, 0.0), (2, 1.25), (0, 2.25)]
