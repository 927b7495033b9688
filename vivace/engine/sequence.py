"""One sequence as the scheduler sees it: what is known, computed, planned, sent and held."""

from __future__ import annotations

import enum
from collections.abc import Iterator

from vivace.engine.message_size import parts, tokens_per_message
from vivace.engine.settings import EngineSettings
from vivace.kv.leases import Lease
from vivace.kv.prefix_tree import pack
from vivace.protocol.output import (
    FINISH_LENGTH,
    FINISH_STOP,
    Delta,
    Finish,
    PromptLogprobs,
    TokenLogprob,
)
from vivace.protocol.request import Request

LEAST_IMPORTANT = -(1 << 62)


class State(enum.Enum):
    WAITING = enum.auto()
    RUNNING = enum.auto()
    ENDED = enum.auto()


class Sequence:
    """Only scheduler, roster and batching write it. Positions count prompt and output together.

    `computed <= upper`: confirmed KV, and KV once every plan in flight has run. Until `target`
    (all that was known when it entered a row) spans are chunks; behind it each span is one token
    and draws the next one, so `upper + 1` tokens are known once every plan in flight has run.
    """

    __slots__ = (
        "arrival",
        "cached",
        "client",
        "computed",
        "due",
        "edge",
        "elaborate",
        "first_token",
        "importance",
        "interval",
        "joined",
        "key",
        "lease",
        "limit",
        "log_metrics",
        "logprobs",
        "mentioned",
        "prefix",
        "prompt",
        "request",
        "resumed",
        "retractions",
        "row",
        "scored",
        "started",
        "state",
        "stop_ids",
        "stops",
        "tainted",
        "target",
        "ticket",
        "token_time",
        "tokens",
        "told",
        "upper",
    )

    def __init__(
        self, request: Request, settings: EngineSettings, *, ticket: int, longest: int, now: float
    ) -> None:
        sampling = request.sampling
        self.request = request
        self.key = request.key
        self.client = request.client
        self.ticket = ticket
        """order of arrival at the engine"""
        self.importance = importance_of(request.priority, settings)
        self.tokens = request.tokens + request.resumed
        self.prompt = len(request.tokens)
        self.limit = min(self.prompt + sampling.max_new_tokens, longest)
        """most tokens, prompt included"""
        self.stop_ids = tuple(dict.fromkeys(settings.eos_ids + sampling.stop_token_ids))
        # As in SGLang, ignore_eos ignores the ids of stop_token_ids too.
        self.stops = frozenset(() if sampling.ignore_eos else self.stop_ids)

        self.state = State.WAITING
        self.row = -1
        self.lease: Lease | None = None
        self.joined = False
        """the worker knows the row"""
        self.computed = 0
        self.upper = 0
        self.target = 0
        self.edge = 0
        """a decode span at `upper >= edge` needs a page first, or must not be planned"""
        self.tainted = False
        """its numbers went bad: nothing of it may stay in the cache"""
        self.mentioned = -1
        """number of the last plan with a span of this sequence"""
        self.prefix = b""
        """all known tokens, packed for the prefix tree; current while it waits or fills"""

        self.resumed = len(request.resumed)
        self.told = len(self.tokens)
        """tokens the client knows, its prompt included"""
        self.interval = interval_of(request, settings)
        first = 1 if request.stream else self.interval
        self.due = len(self.tokens) + first
        """number of tokens at which the next delta goes out"""
        self.cached = 0
        self.retractions = 0
        self.logprobs: list[TokenLogprob] | None = None if request.logprobs is None else []
        self.elaborate = self.logprobs is not None
        """its tokens carry more than themselves"""
        self.scored = self.prompt if request.resumed else first_scored(request)
        """prompt position from which on log-probabilities are still to be sent"""

        self.log_metrics = request.log_metrics
        self.arrival = request.arrival or now
        self.started = 0.0
        """when it first got a row"""
        self.first_token = 0.0
        self.token_time = 0.0

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt

    def refresh_prefix(self) -> None:
        self.prefix = pack(self.tokens)

    def reusable(self) -> int:
        """Most tokens a prefix hit may cover.

        One token is left to compute, and the logits before the first prompt position whose
        log-probability is still wanted.
        """
        most = len(self.tokens) - 1
        return min(most, self.scored - 1) if self.scored < self.prompt else most

    def accept(self, drawn: list[int]) -> Finish | None:
        """Append drawn tokens; the reason when one of them ends the sequence."""
        for token in drawn:
            if len(self.tokens) >= self.limit:
                break
            self.tokens.append(token)
            finish = self.finish()
            if finish is not None:
                return finish
        return self.finish() if len(self.tokens) >= self.limit else None

    def finish(self) -> Finish | None:
        """Why the sequence ends behind its last token, None when it goes on."""
        generated = len(self.tokens) - self.prompt
        if len(self.tokens) >= self.limit:
            return Finish(FINISH_LENGTH, length=generated)
        token = self.tokens[-1]
        if token in self.stops and generated > self.request.sampling.min_new_tokens:
            return Finish(FINISH_STOP, matched=token)
        return None

    def answer_one(self, drawn: list[int], length: int) -> Delta:
        """The delta behind the token just drawn, token number `length`: the short way."""
        told = self.told
        if told != length - 1:
            return self.answer()
        self.told = length
        self.due = length + self.interval
        return Delta(
            key=self.key,
            index=told - self.prompt,
            tokens=drawn,
            cached_tokens=self.cached,
            retractions=self.retractions,
        )

    def answer_scored(self, scored: list[PromptLogprobs]) -> Iterator[Delta]:
        """Deltas with log-probabilities of the prompt, those that were sent before left out."""
        for part in (part for one in scored for part in parts(one, self.scored)):
            self.scored = part.start + len(part.logprobs) // 4
            yield Delta(
                key=self.key, index=self.told - self.prompt, tokens=[], prompt_logprobs=part
            )

    def answer(self, finish: Finish | None = None) -> Delta:
        """Everything that was not sent yet, as one delta."""
        index = self.told - self.prompt
        tokens = self.tokens[self.told :]
        self.told = len(self.tokens)
        self.due = self.told + self.interval
        delta = Delta(
            key=self.key,
            index=index,
            tokens=tokens,
            finish=finish,
            cached_tokens=self.cached,
            retractions=self.retractions,
        )
        if self.logprobs is not None:
            delta.logprobs, self.logprobs = self.logprobs, []
        if finish is not None or index == self.resumed:
            delta.queue_time = max(0.0, self.started - self.arrival) if self.started else 0.0
            if self.first_token:
                delta.first_token_time = max(0.0, self.first_token - self.arrival)
        return delta


def importance_of(priority: int | None, settings: EngineSettings) -> int:
    """Larger is served first; no priority is the least important of all."""
    if not settings.priorities:
        return 0
    if priority is None:
        return LEAST_IMPORTANT
    return -priority if settings.low_values_first else priority


def interval_of(request: Request, settings: EngineSettings) -> int:
    """Tokens between two deltas.

    Without streaming deltas are needed only for the ledger, unless the frontend has to look for
    stop strings in time.
    """
    own = request.sampling.stream_interval or settings.stream_interval
    interval = own if request.stream or request.sampling.stop else settings.coarse_interval
    if request.logprobs is not None:
        interval = min(interval, tokens_per_message(request.logprobs))
    return max(1, interval)


def first_scored(request: Request) -> int:
    """The first prompt position whose log-probability is wanted and exists; behind the prompt
    when there is none."""
    options, prompt = request.logprobs, len(request.tokens)
    return min(prompt, max(1, options.start)) if options and options.start >= 0 else prompt
