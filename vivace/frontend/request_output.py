"""What is new in one answer, ready to be shown, and the sinks that take it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol, TypeVar, runtime_checkable

import msgspec

from vivace.protocol.messages import Finish, TokenLogprob
from vivace.protocol.tasks import Payload


class RequestOutput(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What is new since the last output: `text` and `tokens` are disjoint parts of the answer.

    The counts are totals so far. `prompt_logprobs` comes once; `logprobs` has one entry per token
    of `tokens`. `timings`, in seconds: "queue" (arrival to first step), with the last output also
    "sent" (arrival to the engine's turn), "first" (arrival to first token), "e2e" (arrival to
    finish).
    """

    text: str
    tokens: list[int]
    finish: Finish | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    prompt_logprobs: Iterable[TokenLogprob] | None = None
    logprobs: list[TokenLogprob] | None = None
    embedding: Payload | None = None
    """With the end of a request that wants one."""
    hidden_states: list[Payload] | None = None
    """New ones, in the order of positions, when asked for."""
    retractions: int = 0
    dp_rank: int = 0
    """the engine"""
    drafts: int = 0
    """that were verified so far"""
    accepted_drafts: int = 0
    """those that were right"""
    timings: dict[str, float] | None = None


class Sink(Protocol):
    """Takes the outputs of one answer, in order; the one with `finish` is the last."""

    def push(self, output: RequestOutput) -> None:
        """Called in the receive turn itself: must neither block nor raise."""
        ...


@runtime_checkable
class TextSink(Sink, Protocol):
    """A sink that can do without a `RequestOutput` mid-answer, where only text is new."""

    def offer(self, text: str, tokens: list[int], count: int) -> bool:
        """Take text and tokens, `count` tokens of output so far; all other counts are those of the
        last output. False: nothing was taken, `push` them as an output. Must neither block nor
        raise.
        """
        ...


def merge(first: RequestOutput, second: RequestOutput) -> RequestOutput:
    """Two outputs in a row as one, for readers that are slower than the model."""
    return RequestOutput(
        text=first.text + second.text,
        tokens=first.tokens + second.tokens,
        finish=second.finish,
        prompt_tokens=second.prompt_tokens,
        completion_tokens=second.completion_tokens,
        cached_tokens=second.cached_tokens,
        prompt_logprobs=first.prompt_logprobs or second.prompt_logprobs,
        logprobs=concat(first.logprobs, second.logprobs),
        embedding=second.embedding,
        hidden_states=concat(first.hidden_states, second.hidden_states),
        retractions=second.retractions,
        dp_rank=second.dp_rank,
        drafts=second.drafts,
        accepted_drafts=second.accepted_drafts,
        timings=second.timings or first.timings,
    )


T = TypeVar("T")


def concat(first: list[T] | None, second: list[T] | None) -> list[T] | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second


class QueueSink:
    """For one reader on the loop that also calls `push`."""

    __slots__ = ("_output", "_waiter")

    def __init__(self) -> None:
        self._output: RequestOutput | None = None
        self._waiter: asyncio.Future[None] | None = None

    def push(self, output: RequestOutput) -> None:
        self._output = output if self._output is None else merge(self._output, output)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> RequestOutput:
        """All that has come since the last call; waits when that is nothing."""
        while self._output is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        output, self._output = self._output, None
        return output
