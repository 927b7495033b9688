"""Answers with many log-probabilities: made in small slices, and limited before they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from server_kit import ScriptedEngine, ask, running_server

from vivace.frontend.native import NativeAnswer
from vivace.frontend.piece import Piece
from vivace.frontend.tokenizer import Tokenizer
from vivace.protocol.output import Finish, TokenLogprob
from vivace.protocol.request import LogprobOptions, Request, SamplingParams
from vivace.server.encoding import ROWS
from vivace.server.native import finished
from vivace.server.openai.logprobs import (
    chat_logprobs,
    completion_logprobs,
    encoded_chat_logprobs,
    encoded_completion_logprobs,
)
from vivace.server.pace import Work
from vivace.server.schema import GenerateRequest

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
    piece = Piece(
        text="x",
        tokens=[1],
        prompt_logprobs=ENTRIES,
        logprobs=ENTRIES[:9],
        finish=Finish("length", length=1),
    )

    def answer() -> NativeAnswer:
        return NativeAnswer(request, token_text=tokenizer.token_text, wall=lambda: 0.0)

    def whole() -> list[Any]:
        plain = answer()
        plain.add(piece)
        return [plain.body()]

    return finished(GenerateRequest(), [request], [answer()], [piece]), whole


def chat(tokenizer: CountingTokenizer) -> tuple[Work[Any], Callable[[], Any]]:
    known = cast(Tokenizer, tokenizer)
    return encoded_chat_logprobs(ENTRIES, known), lambda: chat_logprobs(ENTRIES, known)


def completion(tokenizer: CountingTokenizer) -> tuple[Work[Any], Callable[[], Any]]:
    known = cast(Tokenizer, tokenizer)
    work = encoded_completion_logprobs(ENTRIES, known)
    return work, lambda: completion_logprobs(ENTRIES, known, 0)


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


def completion_of_none() -> tuple[Work[Any], CountingTokenizer]:
    tokenizer = CountingTokenizer()
    return encoded_completion_logprobs([], cast(Tokenizer, tokenizer)), tokenizer


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
    monkeypatch.setattr("vivace.server.jobs.LOGPROBS", 500)
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
