"""What is done for an answer, counted: linear in its length, and in bits that let others in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pytest
from server_kit import Wire, ask, documents, make_tokenizer, running_server

from vivace.frontend.fairness import Work, run_now
from vivace.frontend.request_output import RequestOutput
from vivace.parsers.events import CallArguments, ContentText, ReasoningText
from vivace.parsers.parser import SLICE, AnswerParser, ParseOptions, answer_format
from vivace.requests.schema import FunctionCall, ToolCall
from vivace.server.apis.chat_messages import ChatMessages
from vivace.server.apis.chat_run import (
    ChatResult,
    ResultCall,
    ResultChoice,
    ResultFunction,
    ResultMessage,
)
from vivace.server.apis.ollama import OllamaLines, show_message
from vivace.server.apis.responses_events import ResponseEvents
from vivace.server.apis.responses_request import begin_response
from vivace.server.apis.responses_schema import ResponsesRequest
from vivace.server.event_bytes import event
from vivace.server.openai.parsed import (
    SLICE_TOKENS,
    ParsedChunks,
    ReasoningCounter,
    encode_delta,
)
from vivace.server.openai.response import ChatChunks, ChunkContext
from vivace.server.openai.schema import ChunkDelta, Usage
from vivace.server.openai.usage import UsageCounter
from vivace.server.sse import EventStream, StreamLimits

T = TypeVar("T")
TOKENIZER = make_tokenizer()
CALL = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'


def context() -> ChunkContext:
    return ChunkContext(
        rid="r", kind="k", created=1, model="m", tokenizer=TOKENIZER, usage=UsageCounter(1, False)
    )


def output(text: str, count: int = 1) -> RequestOutput:
    return RequestOutput(text=text, tokens=[97], completion_tokens=count)


def parsed_chunks() -> ParsedChunks:
    parser = AnswerParser(answer_format("hermes", None), ParseOptions(tools={"look": {}}))
    return ParsedChunks(context(), 0, parser, ReasoningCounter((), TOKENIZER.token_bytes))


def thinker() -> AnswerParser:
    return AnswerParser(answer_format(None, "qwen3"), ParseOptions())


def said(data: bytes) -> tuple[str, int]:
    """(content, calls) of events."""
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in data.split(b"\n\n") if line]
    calls = [call for delta in deltas for call in delta.get("tool_calls") or () if call.get("id")]
    return "".join(delta.get("content") or "" for delta in deltas), len(calls)


def run_counted(work: Work[T], count: Callable[[], int]) -> tuple[T, int]:
    """(what the work comes to, how much of what is counted was done at most without a pause)"""
    longest = 0
    while True:
        before = count()
        try:
            next(work)
        except StopIteration as end:
            return end.value, longest
        longest = max(longest, count() - before)


def test_what_a_slow_reader_waits_for_is_put_together_once() -> None:
    async def run() -> bytes:
        stream = EventStream(StreamLimits(1 << 20, 1 << 20, 30.0))
        stream._transport = wire = Wire()  # type: ignore[assignment]
        sink = stream.add_sink(ChatChunks(context(), 0))
        sink.push(output("a"))
        held = sink.held
        for count in range(2, 1001):
            sink.push(output("a", count))
            assert sink.held is held  # it grows
        stream._resume()
        return wire.data

    assert asyncio.run(run()).count(b'"' + b"a" * 1000 + b'"') == 1


def test_much_text_at_once_is_parsed_in_slices() -> None:
    text = "Well. " + CALL * 2000
    whole, chunks = parsed_chunks(), parsed_chunks()
    assert whole.parts(output("Well.")) is None
    work = chunks.parts(output(text))
    assert work is not None
    read, reader = 0, chunks._parser._reader
    feed = reader.feed

    def counted(piece: str) -> None:
        nonlocal read
        read += len(piece)
        feed(piece)

    reader.feed = counted  # type: ignore[method-assign]
    events, longest = run_counted(work, lambda: read)
    assert said(b"".join(events)) == said(whole(output(text))) == ("Well.", 2000)
    assert longest <= SLICE < read == len(text)


def test_reasoning_of_a_long_answer_is_counted_in_slices() -> None:
    seen = 0

    def token_bytes(_: int) -> bytes:
        nonlocal seen
        seen += 1
        return b"a"

    counter, parser = ReasoningCounter((b"</think>",), token_bytes), thinker()
    parser.push("<think>a")
    work = counter.count_slices([1] * (10 * SLICE_TOKENS), parser)
    reasoning, longest = run_counted(work, lambda: seen)
    assert reasoning == seen == 10 * SLICE_TOKENS
    assert longest <= SLICE_TOKENS
    parser.push("</think>b")
    ended = ReasoningCounter((b"</think>",), lambda token: b"</think>" if token else b"a")
    assert run_now(ended.count_slices([0, 0, 1, 0], parser)) == 3


def test_no_reasoning_is_looked_for_where_none_can_come() -> None:
    looked: list[int] = []
    counter = ReasoningCounter((b"</think>",), lambda token: looked.append(token) or b"</think>")
    parser = thinker()
    parser.push("Well, </think> is a tag.")
    assert counter.count([1, 2, 3], parser) == 0 and not looked


def test_deltas_are_those_of_the_schema() -> None:
    text = 'a"\\\n\u2028ä😀'
    for one in (ReasoningText(text), ContentText(text), CallArguments(3, text)):
        data = encode_delta(one)
        assert msgspec.json.encode(msgspec.json.decode(data, type=ChunkDelta)) == data


def test_arguments_of_a_call_are_joined_once() -> None:
    lines = OllamaLines(show_message, 0.0)

    def say(arguments: str, **more: Any) -> bytes:
        call = {"index": 0, "function": {"arguments": arguments, **more}}
        body = {"model": "m", "choices": [{"delta": {"tool_calls": [call]}}]}
        return lines.convert(event(json.dumps(body).encode()))

    assert say('{"a": "', name="look") == b""
    begun = lines._call
    assert begun is not None
    for _ in range(1000):
        say("b")
        assert lines._call is begun and begun.function.arguments == '{"a": "'
    say('"}')
    told = json.loads(lines.convert(b"data: [DONE]\n\n").splitlines()[0])
    assert told["message"]["tool_calls"][0]["function"]["arguments"] == {"a": "b" * 1000}


def test_only_the_first_and_the_last_event_of_messages_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[int] = []
    count = UsageCounter.choice_usage

    def choice_usage(self: UsageCounter, index: int) -> Usage:
        counted.append(index)
        return count(self, index)

    monkeypatch.setattr(UsageCounter, "choice_usage", choice_usage)
    said = [{"role": "user", "content": "hi"}]
    body = {"model": "toy", "max_tokens": 40, "stream": True, "messages": said}
    with running_server() as server:
        told = documents(ask(server, "/v1/messages", body).text)
    assert len(counted) == 1
    begin, end = told[0]["message"]["usage"], told[-2]["usage"]
    assert begin["input_tokens"] == end["input_tokens"] > 0 and end["output_tokens"] == 40


def test_lists_of_calls_and_items_grow_where_they_are() -> None:
    found = ChatMessages({})
    response = begin_response(ResponsesRequest(input="hi"), "r", "m", store=False)
    made = ResponseEvents(response)
    calls, items = list[Any](), list[Any]()
    for number in range(3):
        found.add_call(ToolCall(function=FunctionCall(name="look")), "input")
        calls.append(found.messages[0].tool_calls)
        call = ResultCall(index=number, function=ResultFunction(name="look"))
        delta = ResultMessage(tool_calls=[call])
        list(made.take(ChatResult(choices=[ResultChoice(delta=delta)])))
        items.append(response.output)
    assert all(one is calls[0] for one in calls) and len(calls[0]) == 3
    assert all(one is items[0] for one in items) and len(items[0]) == 2


def test_thoughts_of_one_message_are_joined_once() -> None:
    found = ChatMessages({})
    for text in "abc":
        found.add_thought(text, "")
    found.add_text("user", "hi", "")
    found.add_thought("d", "")
    assert [one.reasoning_content for one in found.messages] == [None] * 3
    for _ in range(2):
        found.join_thoughts()
        assert [one.reasoning_content for one in found.messages] == ["abc", None, "d"]
