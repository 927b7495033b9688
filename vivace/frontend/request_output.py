"""What is new in one answer, ready to be shown, and the sinks that take it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
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
    drafts: tuple[int, int, int] | None = None
    """as in `Delta`"""
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


T = TypeVar("T")


class HeldOutput:
    """Outputs in a row that are shown as one. What comes is appended: a reader that is slower than
    the model may leave a hundred thousand of them here."""

    __slots__ = ("_logprobs", "_output", "_states", "_texts", "_tokens", "characters")

    def __init__(self, first: RequestOutput) -> None:
        self._output = first
        self._texts = [first.text]
        self._tokens = list(first.tokens)
        self._logprobs = appended(None, first.logprobs)
        self._states = appended(None, first.hidden_states)
        self.characters = len(first.text)

    def add(self, output: RequestOutput) -> None:
        before, self._output = self._output, output
        output.prompt_logprobs = before.prompt_logprobs or output.prompt_logprobs
        output.timings = output.timings or before.timings
        self._texts.append(output.text)
        self._tokens += output.tokens
        self._logprobs = appended(self._logprobs, output.logprobs)
        self._states = appended(self._states, output.hidden_states)
        self.characters += len(output.text)

    def whole(self) -> RequestOutput:
        """All of them; totals are those of the last one."""
        return msgspec.structs.replace(
            self._output,
            text="".join(self._texts),
            tokens=self._tokens,
            logprobs=self._logprobs,
            hidden_states=self._states,
        )


def appended(entries: list[T] | None, more: list[T] | None) -> list[T] | None:
    """`entries`, which nobody else has, with `more` behind them; None where there are none."""
    if more is None:
        return entries
    if entries is None:
        return list(more)
    entries += more
    return entries


def hold(held: HeldOutput | None, output: RequestOutput) -> HeldOutput:
    """The output behind those that are held, if there are any."""
    if held is None:
        return HeldOutput(output)
    held.add(output)
    return held


def join_outputs(outputs: Sequence[RequestOutput]) -> RequestOutput:
    """All of them, at least one, as one."""
    if len(outputs) == 1:
        return outputs[0]
    held = HeldOutput(outputs[0])
    for output in outputs[1:]:
        held.add(output)
    return held.whole()


class QueueSink:
    """For one reader on the loop that also calls `push`."""

    __slots__ = ("_output", "_waiter")

    def __init__(self) -> None:
        self._output: HeldOutput | None = None
        self._waiter: asyncio.Future[None] | None = None

    def push(self, output: RequestOutput) -> None:
        self._output = hold(self._output, output)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> RequestOutput:
        """All that has come since the last call; waits when that is nothing."""
        while self._output is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        output, self._output = self._output, None
        return output.whole()
