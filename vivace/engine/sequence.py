"""One sequence as the scheduler sees it: what is known, computed, planned, sent and held."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator
from typing import Protocol

import msgspec

from vivace.engine.drafts.levels import FIRST_LEVEL
from vivace.engine.settings import EngineSettings
from vivace.kv.leases import Lease
from vivace.kv.prefix_tree import pack
from vivace.protocol.message_size import (
    max_tokens_per_message,
    split_hidden_states,
    split_prompt_logprobs,
)
from vivace.protocol.messages import (
    FINISH_LENGTH,
    FINISH_STOP,
    Delta,
    Finish,
    PromptLogprobs,
    Request,
    SamplingParams,
    TokenLogprob,
)
from vivace.protocol.tasks import LAST, Embed, Payload, Task

LOWEST_PRIORITY = -(1 << 62)


class State(enum.Enum):
    WAITING = enum.auto()
    GATED = enum.auto()
    """it waits for something else than its turn"""
    RUNNING = enum.auto()
    ENDED = enum.auto()


class SequenceGate(Protocol):
    """What a sequence has to wait for before it may have a row: not for its turn, so nobody behind
    it waits with it."""

    refusal: Finish | None
    """why it may never have one, once the gate is open"""

    def is_open(self) -> bool: ...


class Sequence:
    """Only scheduler, table and batching write it. Positions count prompt and output together.

    `computed_len <= scheduled_len`: positions with confirmed KV, and the most that have KV once
    every step in flight has run: what was computed, and all that is planned. A step may come back
    with less than was planned (a draft was refused), and then the difference is taken back. Until
    `prefill_len` (all that was known when it got a row) spans are chunks; behind it a span is the
    last known token with its drafts, and draws at least the next one. So `scheduled_len + 1` is
    also the most tokens that are known once every step in flight has run; where more became known
    at once, because nothing else could follow, they are a chunk (`prefill_len`) again.
    """

    __slots__ = (
        "arrival_time",
        "client",
        "computed_len",
        "delta_interval",
        "draft_level",
        "drafted_len",
        "ending_ids",
        "first_token_time",
        "gates",
        "has_bad_numbers",
        "hidden_state_start",
        "holds",
        "joined",
        "key",
        "last_step",
        "last_token_time",
        "lease",
        "log_metrics",
        "logprob_start",
        "logprobs",
        "max_len",
        "next_delta_len",
        "num_cached_tokens",
        "num_drafts",
        "num_draws",
        "num_forced",
        "num_prompt_tokens",
        "num_resumed",
        "num_sent",
        "page_limit",
        "prefill_len",
        "prefix",
        "priority",
        "prompt_sent",
        "ready_drafts",
        "received",
        "request",
        "reserved_len",
        "retractions",
        "row",
        "scheduled_len",
        "seq_no",
        "start_time",
        "state",
        "steady",
        "stop_ids",
        "suspect",
        "tokens",
    )

    def __init__(
        self, request: Request, settings: EngineSettings, *, seq_no: int, max_len: int, now: float
    ) -> None:
        sampling = request.sampling
        self.request = request
        self.key = request.key
        self.client = request.client
        self.seq_no = seq_no  # order of arrival at the engine
        self.priority = effective_priority(request.priority, settings)
        self.tokens = request.tokens + request.resumed
        self.num_prompt_tokens = len(request.tokens)
        self.max_len = min(self.num_prompt_tokens + sampling.max_new_tokens, max_len)
        """in tokens, prompt included"""
        self.stop_ids = tuple(dict.fromkeys(settings.eos_ids + sampling.stop_token_ids))
        self.ending_ids = ending_ids(sampling, settings, self.stop_ids)

        self.gates: list[SequenceGate] = []
        """it is GATED while one of them is closed"""
        self.holds: set[int] = set()
        """tickets of transfers under way that read or write its pages"""
        self.ready_drafts = settings.num_speculative_tokens
        """that there are for its next span, as far as is known"""
        self.draft_level = FIRST_LEVEL
        """how likely they are accepted (drafts/levels.py)"""
        self.drafted_len = self.num_prompt_tokens  # about when it last had some
        self.prompt_sent = False
        """the KV of its prompt went to another engine, or will with the next plan"""
        self.suspect = request.suspect
        """until when its spans are in steps of their own; 0: they need not be"""
        self.start_unplanned()
        self.num_resumed = len(request.resumed)
        self.num_sent = len(self.tokens)
        """tokens the client knows, its prompt included"""
        self.delta_interval = delta_interval(request, settings)
        self.next_delta_len = len(self.tokens) + (1 if request.stream else self.delta_interval)
        """number of tokens at which the next delta goes out"""
        self.num_cached_tokens = self.retractions = 0
        self.num_draws = self.num_drafts = self.num_forced = 0  # of spans (DraftStats.record)
        self.logprobs: list[TokenLogprob] | None = None if request.logprobs is None else []
        self.hidden_state_start = first_hidden_state(request.task)
        """position from which on hidden states are to be sent or pooled: the cache has none"""
        self.logprob_start = self.num_prompt_tokens if request.resumed else first_logprob(request)
        """prompt position from which on log-probabilities are still to be sent"""

        self.log_metrics = request.log_metrics
        self.arrival_time = request.arrival or now
        self.start_time = 0.0
        """when it first got a row"""
        self.first_token_time = self.last_token_time = 0.0

    def start_unplanned(self) -> None:
        """The fields of a sequence of which nothing is planned, computed or held."""
        self.state = State.WAITING
        self.row = -1
        self.lease: Lease | None = None
        self.joined = False
        """the worker knows the row"""
        self.received = False
        """it waits, and its lease holds KV that came from elsewhere"""
        self.computed_len = 0
        self.scheduled_len = 0
        self.prefill_len = 0
        self.reserved_len = 0
        """tokens that there is memory for"""
        self.page_limit = 0
        """a decode span at `scheduled_len >= page_limit` needs a page first, has fewer drafts, or
        is not planned"""
        self.steady = False
        """all tokens that were known when it got its row are computed, and those that it draws are
        counted by metrics and sent without log-probabilities"""
        self.has_bad_numbers = False
        """its numbers went bad: nothing of it may stay in the cache"""
        self.last_step = -1
        """number of the last step with a span of this sequence"""
        self.prefix = b""
        """all known tokens, packed for the prefix tree; current while it waits or prefills"""

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def has_more_than_tokens(self) -> bool:
        """Its tokens are sent with their log-probabilities or hidden states."""
        return self.logprobs is not None or self.hidden_state_start < sys.maxsize

    def refresh_prefix(self) -> None:
        self.prefix = pack(self.tokens)

    def max_prefix_len(self) -> int:
        """How many tokens a prefix hit may cover.

        One token is left to compute, the logits before the first prompt position whose
        log-probability is still wanted, and the first hidden state that is.
        """
        known = len(self.tokens)
        if self.logprob_start < self.num_prompt_tokens:
            known = self.logprob_start
        return min(known - 1, self.hidden_state_start)

    def reserve(self) -> None:
        """Memory for nearly as many tokens again. By itself a list grows by an eighth, and copying
        that often was a third of what drafts cost the scheduler."""
        known = len(self.tokens)
        self.reserved_len = min(max(2 * known - 4, known), self.max_len)
        self.tokens += [0] * (self.reserved_len - known)
        del self.tokens[known:]  # a list that is half full keeps its memory

    def accept(self, drawn: list[int]) -> Finish | None:
        """Append drawn tokens; the reason when one of them ends the sequence."""
        for token in drawn:
            if len(self.tokens) >= self.max_len:
                break
            self.tokens.append(token)
            finish = self.finish_reason()
            if finish is not None:
                return finish
        return self.finish_reason() if len(self.tokens) >= self.max_len else None

    def finish_reason(self) -> Finish | None:
        """Why the sequence ends behind its last token, None when it goes on."""
        generated = len(self.tokens) - self.num_prompt_tokens
        if len(self.tokens) >= self.max_len:
            return Finish(FINISH_LENGTH, length=generated)
        token, sampling = self.tokens[-1], self.request.sampling
        enough = generated > sampling.min_new_tokens or sampling.constraint  # has no more to say
        if token in self.ending_ids and enough:
            return Finish(FINISH_STOP, matched=token)
        return None

    def next_delta(self, drawn: list[int], length: int) -> Delta:
        """The delta with the tokens just drawn, up to token number `length`: the short way."""
        num_sent = self.num_sent
        if num_sent != length - len(drawn):
            return self.take_delta()
        self.num_sent = length
        self.next_delta_len = length + self.delta_interval
        return Delta(
            key=self.key,
            index=num_sent - self.num_prompt_tokens,
            tokens=drawn,
            cached_tokens=self.num_cached_tokens,
            retractions=self.retractions,
        )

    def prompt_deltas(self, scored: list[PromptLogprobs]) -> Iterator[Delta]:
        """Deltas with log-probabilities of the prompt, those that were sent before left out."""
        for one in scored:
            for part in split_prompt_logprobs(one, self.logprob_start):
                self.logprob_start = part.start + len(part.logprobs) // 4
                index = self.num_sent - self.num_prompt_tokens
                yield Delta(key=self.key, index=index, tokens=[], prompt_logprobs=part)

    def hidden_state_deltas(self, payload: Payload) -> Iterator[Delta]:
        """Deltas with the hidden states of the last positions computed, those that were sent before
        left out."""
        start = self.computed_len - payload.shape[0]
        whole = msgspec.structs.replace(payload, start=start)
        for part in split_hidden_states(whole, self.hidden_state_start):
            self.hidden_state_start = part.start + part.shape[0]
            index = self.num_sent - self.num_prompt_tokens
            yield Delta(key=self.key, index=index, tokens=[], payload=part)

    def take_delta(self, finish: Finish | None = None) -> Delta:
        """Everything that was not sent yet, as one delta."""
        index, tokens = self.num_sent - self.num_prompt_tokens, self.tokens[self.num_sent :]
        self.num_sent = len(self.tokens)
        self.next_delta_len = self.num_sent + self.delta_interval
        delta = Delta(
            key=self.key,
            index=index,
            tokens=tokens,
            finish=finish,
            cached_tokens=self.num_cached_tokens,
            retractions=self.retractions,
        )
        if self.logprobs is not None:
            delta.logprobs, self.logprobs = self.logprobs, []
        if finish is not None or index == self.num_resumed:
            if self.start_time:
                delta.queue_time = max(0.0, self.start_time - self.arrival_time)
            if self.first_token_time:
                delta.first_token_time = max(0.0, self.first_token_time - self.arrival_time)
        return delta


def effective_priority(priority: int | None, settings: EngineSettings) -> int:
    """Larger is served first; no priority is the lowest of all."""
    if not settings.priorities:
        return 0
    if priority is None:
        return LOWEST_PRIORITY
    return -priority if settings.low_values_first else priority


def ending_ids(
    sampling: SamplingParams, settings: EngineSettings, stop_ids: tuple[int, ...]
) -> frozenset[int]:
    """As in SGLang, ignore_eos ignores the ids of stop_token_ids too; but what obeys a grammar to
    its end has nothing to go on with."""
    if not sampling.ignore_eos:
        return frozenset(stop_ids)
    return frozenset(() if sampling.constraint is None else settings.eos_ids)


def delta_interval(request: Request, settings: EngineSettings) -> int:
    """Tokens between two deltas.

    Without streaming deltas are needed only for the ledger, unless the frontend has to look for
    stop strings in time.
    """
    own = request.sampling.stream_interval or settings.stream_interval
    interval = own if request.stream or request.sampling.stop else settings.coarse_interval
    if request.logprobs is not None:
        interval = min(interval, max_tokens_per_message(request.logprobs))
    return max(1, interval)


def first_hidden_state(task: Task) -> int:
    """The first position whose hidden state is needed besides the last one's; sys.maxsize when
    none is."""
    if isinstance(task, Embed):
        return sys.maxsize if task.pooling == LAST else 0
    return task.hidden_state_start if task.hidden_state_start >= 0 else sys.maxsize


def first_logprob(request: Request) -> int:
    """The first prompt position whose log-probability is wanted and exists; behind the prompt
    when there is none."""
    options, prompt = request.logprobs, len(request.tokens)
    return min(prompt, max(1, options.start)) if options and options.start >= 0 else prompt
