"""Answers with many log-probabilities: made in small slices, and limited before they are made."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from server_kit import ScriptedEngine, Wire, ask, events, running_server, unchunk

from vivace.frontend.fairness import TimeSlicer, Work
from vivace.frontend.request_output import RequestOutput
from vivace.frontend.sglang_output import SGLangOutput
from vivace.frontend.tokenizer import Tokenizer
from vivace.protocol.messages import Finish, LogprobOptions, Request, SamplingParams, TokenLogprob
from vivace.requests.schema import GenerateRequest
from vivace.server.generate import GenerateEvents, encode_results, json_list
from vivace.server.openai.logprobs import (
    chat_logprobs,
    completion_logprobs,
    encoded_chat_logprobs,
    encoded_completion_logprobs,
)
from vivace.server.responses import JOINED, ROWS
from vivace.server.sse import EventStream, StreamLimits

TOKENS, TOP = 203, 40
ENTRIES = [
    TokenLogprob(token, -0.25, top=[(-float(i), token + i) for i in range(TOP)])
    for token in range(TOKENS)
]


class CountingTokenizer:
    """Counts the texts it is asked for: the work of an answer."""

    def __init__(self) -> None:
        self.asked = 0

    def token_text(self, token: int) -> str:
        self.asked += 1
        return f"<{token}>"

    def token_bytes(self, token: int) -> bytes:
        return b"%d" % token


def sliced(work: Work[Any], tokenizer: CountingTokenizer) -> tuple[Any, int]:
    """(the result, the most texts without a pause)."""
    most = 0
    while True:
        before = tokenizer.asked
        try:
            next(work)
        except StopIteration as end:
            return end.value, max(most, tokenizer.asked - before)
        most = max(most, tokenizer.asked - before)


def native(tokenizer: CountingTokenizer) -> tuple[Work[Any], Callable[[], Any]]:
    options = LogprobOptions(start=0, top=TOP)
    request = Request(key=1, rid="r", tokens=[1], sampling=SamplingParams(), logprobs=options)
    piece = RequestOutput(
        text="x",
        tokens=[1],
        prompt_logprobs=ENTRIES,
        logprobs=ENTRIES[:9],
        finish=Finish("length", length=1),
    )

    def answer() -> SGLangOutput:
        return SGLangOutput(request, token_text=tokenizer.token_text, wall=lambda: 0.0)

    def whole() -> list[Any]:
        plain = answer()
        plain.add(piece)
        return [plain.body()]

    def work() -> Work[Any]:
        results = yield from encode_results(GenerateRequest(), [request], [answer()], [piece])
        return Raw(b"".join(json_list(results)))

    return work(), whole


def chat(tokenizer: CountingTokenizer) -> tuple[Work[Any], Callable[[], Any]]:
    known = cast(Tokenizer, tokenizer)
    return encoded_chat_logprobs(ENTRIES, known), lambda: chat_logprobs(ENTRIES, known)


def completion(tokenizer: CountingTokenizer) -> tuple[Work[Any], Callable[[], Any]]:
    known = cast(Tokenizer, tokenizer)
    work = encoded_completion_logprobs(ENTRIES, known)
    return first_result(work), lambda: completion_logprobs(ENTRIES, known, 0)


@pytest.mark.parametrize("made", [native, chat, completion])
def test_they_are_made_in_slices_and_the_same(made: Callable[..., Any]) -> None:
    tokenizer = CountingTokenizer()
    work, whole = made(tokenizer)
    shown, most = sliced(work, tokenizer)
    assert 0 < most <= ROWS * (1 + TOP), "texts of a few tokens at once"
    assert tokenizer.asked >= TOKENS * TOP
    assert msgspec.json.decode(msgspec.json.encode(shown)) == msgspec.json.decode(
        msgspec.json.encode(whole())
    )


def test_no_tokens_make_empty_lists() -> None:
    shown, _ = sliced(*completion_of_none())
    lists = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    assert msgspec.json.decode(bytes(shown)) == lists


def first_result(work: Work[tuple[Any, Any]]) -> Work[Any]:
    first, _ = yield from work
    return first


def completion_of_none() -> tuple[Work[Any], CountingTokenizer]:
    tokenizer = CountingTokenizer()
    return first_result(encoded_completion_logprobs([], cast(Tokenizer, tokenizer))), tokenizer


@pytest.mark.parametrize(
    ("path", "asked", "field"),
    [
        ("/generate", {"text": "a", "return_logprob": True, "top_logprobs_num": 50}, "top"),
        ("/generate", {"text": ["a"] * 9, "return_logprob": True, "top_logprobs_num": 9}, "top"),
        ("/v1/completions", {"prompt": "a", "logprobs": 5, "n": 9, "max_tokens": 20}, "logprobs"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 20},
            "logprobs",
        ),
    ],
)
def test_more_than_an_answer_may_hold_is_refused_before_it_is_made(
    path: str, asked: dict[str, Any], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivace.server.collect.LOGPROBS", 500)
    engine = ScriptedEngine()
    lengths = {"max_tokens": 40} if "/v1/" in path else {"sampling_params": {"max_new_tokens": 12}}
    for more in ({}, {"stream": True}):
        with running_server(engine=engine) as server:
            answer = ask(server, path, {**lengths, **asked, **more})
            assert answer.status == 400 and "log-probabilities" in answer.text, answer.text
            assert field in answer.text
            small = {"return_logprob": False, "logprobs": None, "top_logprobs": None, "n": 1}
            fine = {**lengths, **{k: v for k, v in asked.items() if k not in small}}
            fine.pop("top_logprobs_num", None)
            assert ask(server, path, fine).status == 200


PROMPT = LogprobOptions(start=0, top=TOP)


def make_outputs(prompt: int, drawn: int) -> list[RequestOutput]:
    """A first piece with the prompt's log-probabilities, then one per token, then the end."""
    first = RequestOutput(text="", tokens=[], prompt_logprobs=ENTRIES[:prompt])
    middle = [
        RequestOutput(text=f"{n}", tokens=[n], completion_tokens=n + 1, logprobs=[ENTRIES[n]])
        for n in range(drawn)
    ]
    return [
        first,
        *middle,
        RequestOutput(text="", tokens=[], finish=Finish("length", length=drawn)),
    ]


def native_events(tokenizer: CountingTokenizer, *, disjoint: bool) -> GenerateEvents:
    request = Request(key=1, rid="r", tokens=[1, 2], sampling=SamplingParams(), logprobs=PROMPT)
    answer = SGLangOutput(
        request, token_text=tokenizer.token_text, disjoint=disjoint, wall=lambda: 0.0
    )
    return GenerateEvents(request, answer, disjoint=disjoint, prompt_ids=True)


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("prompt", [0, 1, ROWS, TOKENS])
def test_events_say_what_whole_answers_say(disjoint: bool, prompt: int) -> None:
    tokenizer = CountingTokenizer()
    encode = native_events(tokenizer, disjoint=disjoint)
    plain = native_events(CountingTokenizer(), disjoint=disjoint)._answer
    for piece in make_outputs(prompt, 9):
        work = encode.parts(piece)
        assert work is not None
        parts, most = sliced(work, tokenizer)
        assert most <= ROWS * (1 + TOP), "texts of a few tokens at once"
        wanted = plain.event(piece)
        wanted["meta_info"]["prompt_token_ids"] = [1, 2]
        (data,) = events(b"".join(parts).decode())
        assert msgspec.json.decode(data) == msgspec.json.decode(msgspec.json.encode(wanted))


def test_what_was_shown_is_neither_made_nor_copied_again() -> None:
    tokenizer = CountingTokenizer()
    encode = native_events(tokenizer, disjoint=False)
    pieces = make_outputs(TOKENS, 9)
    before, _ = sliced(cast(Any, encode.parts(pieces[0])), tokenizer)
    asked = tokenizer.asked
    kept = {id(part) for part in before if len(part) > 1 << 12}
    assert sum(len(part) for part in before if id(part) in kept) > 0.9 * sum(map(len, before))
    for number, piece in enumerate(pieces[1:-1], 1):
        parts, _ = sliced(cast(Any, encode.parts(piece)), tokenizer)
        assert tokenizer.asked == asked + number * (1 + TOP), "texts of the new token only"
        assert kept <= {id(part) for part in parts}


async def streamed(pieces: list[RequestOutput], turns: list[bool]) -> tuple[list[Any], int]:
    """(the events of a stream that gets pieces while a long one is on its way, slices of it)."""
    stream = EventStream(StreamLimits(1 << 30, 1 << 20, 30.0), slicer=TimeSlicer(0.0))
    wire = Wire()
    stream._transport = cast(Any, wire)
    sink = stream.add_sink(native_events(CountingTokenizer(), disjoint=False))
    stream._resume()
    busy = 0
    for piece, turn in zip(pieces, turns, strict=True):
        sink.push(piece)
        busy += bool(stream._encoders)
        if turn:
            await asyncio.sleep(0)
    await asyncio.wait_for(stream._over, 10)
    *found, last = events(unchunk(wire.data).decode())
    assert last == "[DONE]"
    return [msgspec.json.decode(data) for data in found], busy


@settings(max_examples=15, deadline=None)
@given(st.lists(st.booleans(), min_size=11, max_size=11))
def test_pieces_behind_a_long_one_wait_for_it(turns: list[bool]) -> None:
    found, busy = asyncio.run(streamed(make_outputs(TOKENS, 9), turns))
    assert busy, "the first piece is long"
    assert found[-1]["text"] == "012345678" and found[-1]["output_ids"] == list(range(9))
    for answer in found:
        assert len(answer["meta_info"]["input_token_logprobs"]) == TOKENS
        assert len(answer["meta_info"]["output_top_logprobs"]) == len(answer["output_ids"])


def test_long_answers_arrive_whole() -> None:
    """Longer than what becomes one body, streamed and not."""
    asked = {
        "input_ids": [5 + i % 90 for i in range(500)],
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 100,
        "sampling_params": {"max_new_tokens": 3, "sampling_seed": 0},
    }
    with running_server() as server:
        whole = ask(server, "/generate", asked)
        (last,) = events(ask(server, "/generate", {**asked, "stream": True}).text)[-2:-1]
        several = ask(server, "/generate", {**asked, "input_ids": [asked["input_ids"]] * 2})
    meta = whole.json["meta_info"]
    assert len(whole.text) > JOINED and len(meta["input_top_logprobs"]) == 500
    for other in (json.loads(last), *several.json):
        for name in ("input_token_logprobs", "input_top_logprobs", "output_top_logprobs"):
            assert other["meta_info"][name] == meta[name]
