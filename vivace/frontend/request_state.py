"""One request at the edge: its ledger, its text, and what the engine sends beside tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypedDict

import msgspec

from vivace.frontend.answer_parts import HiddenStates, MissingDelta, PromptRows, missing_rows
from vivace.frontend.detokenizer import Detokenizer, StopHit, StopStrings, answer_detokenizer
from vivace.frontend.engine_status import EngineView
from vivace.frontend.request_output import RequestOutput, Sink, TextSink
from vivace.frontend.tokenizer import Tokenizer
from vivace.protocol.messages import (
    FINISH_ABORT,
    FINISH_LENGTH,
    FINISH_STOP,
    Cancel,
    Delta,
    Finish,
    LogprobOptions,
    PromptLogprobs,
    Request,
)
from vivace.protocol.tasks import EMBEDDING, GENERATE, Generate, Payload, Task

RETRY_AFTER = 2.0
"""seconds"""


class RequestOptions(TypedDict, total=False):
    """What a request may have besides its prompt and its sampling."""

    rid: str | None
    logprobs: LogprobOptions | None
    priority: int | None
    cache_key: str
    stream: bool
    client: int
    log_metrics: bool
    arrival: float | None
    dp_rank: int | None
    task: Task


class RequestState:
    """Turns the deltas of one request into outputs.

    Invariant: `ledger` holds exactly the tokens the client was given, in order. A delta whose
    index lies behind the ledger repeats tokens, which are dropped; ahead of it is a `MissingDelta`.
    """

    __slots__ = (
        "_begun",
        "_cached",
        "_clock",
        "_detokenizer",
        "_ended",
        "_first",
        "_hidden_states",
        "_known",
        "_offer",
        "_prompt",
        "_prompt_rows",
        "_queue",
        "_retractions",
        "_sent",
        "_stops",
        "engine",
        "ledger",
        "request",
        "sink",
        "suspect",
    )

    def __init__(
        self,
        request: Request,
        sink: Sink,
        tokenizer: Tokenizer | None,
        clock: Callable[[], float],
        shown: frozenset[int] = frozenset(),
    ) -> None:
        """`shown`: special tokens that are never skipped."""
        sampling = request.sampling
        self.request = request
        self.sink = sink
        self.ledger: list[int] = []
        self.suspect = request.suspect
        self.engine: EngineView | None = None
        """that has it, or had it last"""
        self._known = 0
        """tokens of the answer, when that engine got it"""
        self._clock = clock
        self._prompt = len(request.tokens)
        self._stops = (
            StopStrings(sampling.stop, keep=sampling.no_stop_trim) if sampling.stop else None
        )
        self._detokenizer = answer_detokenizer(request, tokenizer, shown)
        plain = self._stops is None and tokenizer is not None and request.logprobs is None
        plain = plain and request.task == GENERATE
        self._offer = sink.offer if plain and isinstance(sink, TextSink) else None
        self._cached = 0
        self._retractions = 0
        self._sent = clock() - request.arrival
        self._queue = 0.0
        self._first = 0.0
        options = request.logprobs
        self._prompt_rows = (
            PromptRows(request.tokens, options) if options and options.start >= 0 else None
        )
        """log-probabilities of the prompt, until an output shows them"""
        self._hidden_states: HiddenStates | None = None
        if isinstance(request.task, Generate) and request.task.hidden_state_start >= 0:
            self._hidden_states = HiddenStates(request.task.hidden_state_start)
        self._begun = False
        """an output was made"""
        self._ended: Finish | None = None
        if request.resumed:
            self._take_up(request.resumed)

    def _take_up(self, tokens: list[int]) -> None:
        """What the client has already, of an answer that another server began."""
        _, kept, self._ended = self._text_to_the_end(tokens, None)
        self.ledger += tokens[:kept]
        self._known = kept

    @property
    def waits(self) -> bool:
        """Its engine has sent no token of it yet."""
        return len(self.ledger) == self._known

    def try_fast_path(self, delta: Delta) -> bool:
        """Hand a delta of nothing but tokens to a sink that takes mere text, if this is the middle
        of such an answer; else False, and it is one for `accept`. May raise like `accept`."""
        offer, ledger = self._offer, self.ledger
        if offer is None or not self._begun or delta.index != len(ledger):
            return False
        tokens = delta.tokens
        if not tokens or delta.finish is not None or delta.retractions or self._detokenizer is None:
            return False
        text = self._detokenizer.push(tokens)
        ledger += tokens
        if not offer(text, tokens, len(ledger)):
            self.sink.push(self._output(text, tokens))
        return True

    def accept(self, delta: Delta) -> RequestOutput | None:
        """The output this delta makes; None when it brings nothing new. Raises MissingDelta."""
        ledger = self.ledger
        if delta.prompt_logprobs is not None:
            self._add_prompt_logprobs(delta.prompt_logprobs)
        if delta.payload is not None and self._hidden_states is not None:
            self._hidden_states.add(delta.payload)
        if delta.index != len(ledger):
            delta = self._without_repeats(delta)
        tokens, finish = delta.tokens, delta.finish
        if not tokens and finish is None:
            return None
        timings = None if self._begun and finish is None else self._note_start(delta)
        self._begun = True
        logprobs = delta.logprobs
        if self._stops is None and finish is None:
            text = self._detokenizer.push(tokens) if self._detokenizer is not None else ""
        else:
            text, kept, finish = self._text_to_the_end(tokens, finish)
            if kept < len(tokens):
                tokens = tokens[:kept]
                logprobs = logprobs[:kept] if logprobs is not None else None
        ledger.extend(tokens)
        if delta.retractions:
            self._retractions = delta.retractions
        if finish is not None:
            timings = self._final_timings()
        return RequestOutput(
            text=text,
            tokens=tokens,
            finish=finish,
            prompt_tokens=self._prompt,
            completion_tokens=len(ledger),
            cached_tokens=self._cached,
            prompt_logprobs=self._prompt_logprobs(tokens),
            logprobs=logprobs,
            embedding=delta.payload if is_embedding(delta.payload) else None,
            hidden_states=self._take_hidden_states(),
            retractions=self._retractions,
            dp_rank=self.engine.index if self.engine is not None else 0,
            drafts=delta.drafts if finish is not None else None,
            timings=timings,
        )

    def final_output(self, finish: Finish) -> RequestOutput:
        """A last output that the engine did not send: an error, or an end it could not tell."""
        text, _, _ = self._text_to_the_end([], finish)
        return self._output(text, [], finish, self._final_timings())

    def _output(
        self,
        text: str,
        tokens: list[int],
        finish: Finish | None = None,
        timings: dict[str, float] | None = None,
    ) -> RequestOutput:
        """An output without log-probabilities; the ledger has its tokens already."""
        return RequestOutput(
            text=text,
            tokens=tokens,
            finish=finish,
            prompt_tokens=self._prompt,
            completion_tokens=len(self.ledger),
            cached_tokens=self._cached,
            retractions=self._retractions,
            dp_rank=self.engine.index if self.engine is not None else 0,
            timings=timings,
        )

    def resume_request(self) -> Request:
        """The request as a new engine needs it: it goes on behind the ledger, and behind what is
        known of the prompt."""
        request, rows = self.request, self._prompt_rows
        self._known = len(self.ledger)
        if request.logprobs is not None and rows is not None:
            logprobs = msgspec.structs.replace(request.logprobs, start=rows.next)
            request = msgspec.structs.replace(request, logprobs=logprobs)
        if self._hidden_states is not None:
            task = Generate(self._hidden_states.next)
            request = msgspec.structs.replace(request, task=task)
        return msgspec.structs.replace(request, resumed=list(self.ledger), suspect=self.suspect)

    def leave_engine(self) -> None:
        """Another one goes on with it."""
        if self.engine is not None:
            self.engine.send(Cancel(keys=[self.request.key], moved=True))

    def reached_end(self, eos_ids: tuple[int, ...]) -> Finish | None:
        """The finish that was lost with an engine, when the ledger shows that there was one."""
        if self._ended is not None:
            return self._ended
        sampling, ledger = self.request.sampling, self.ledger
        constrained = sampling.constraint is not None
        if ledger and (constrained or len(ledger) > sampling.min_new_tokens):
            ends = sampling.stop_token_ids + eos_ids
            if sampling.ignore_eos:  # as `engine.sequence.ending_ids`
                ends = eos_ids if constrained else ()
            if ledger[-1] in ends:
                return Finish(type=FINISH_STOP, matched=ledger[-1])
        if ledger and len(ledger) >= sampling.max_new_tokens:
            return Finish(type=FINISH_LENGTH, length=len(ledger))
        return None

    # -- text ------------------------------------------------------------------------------------

    def _text_to_the_end(
        self, tokens: list[int], finish: Finish | None
    ) -> tuple[str, int, Finish | None]:
        """(text, how many tokens belong to the answer, finish); with stops and the last flush."""
        if self._detokenizer is None:
            return "", len(tokens), finish
        visible = tokens
        if finish is not None and self._hides_last(tokens, finish):
            visible = tokens[:-1]
        if self._stops is None:
            text = self._detokenizer.push(visible)
        else:
            text, kept, hit = self._watch(self._stops, self._detokenizer, visible)
            if hit is not None:
                return text, kept, Finish(type=FINISH_STOP, matched=hit)
        if finish is not None:
            text += self._stops.flush() if self._stops is not None else ""
            text += self._detokenizer.flush()
        return text, len(tokens), finish

    def _hides_last(self, tokens: list[int], finish: Finish) -> bool:
        """The stop id itself is part of the tokens but not of the text."""
        return (
            finish.type == FINISH_STOP
            and bool(tokens)
            and tokens[-1] == finish.matched
            and not self.request.sampling.no_stop_trim
        )

    @staticmethod
    def _watch(
        stops: StopStrings, detokenizer: Detokenizer, tokens: list[int]
    ) -> tuple[str, int, str | None]:
        """Token by token, so that the count ends with the token that completed a stop string."""
        parts: list[str] = []
        for count, token in enumerate(tokens, 1):
            shown = stops.push(detokenizer.push((token,)))
            if isinstance(shown, StopHit):
                parts.append(shown.text)
                return "".join(parts), count, shown.matched
            parts.append(shown)
        return "".join(parts), len(tokens), None

    # -- the ledger ------------------------------------------------------------------------------

    def _without_repeats(self, delta: Delta) -> Delta:
        repeated = len(self.ledger) - delta.index
        if repeated < 0:
            raise MissingDelta(
                f"tokens {len(self.ledger)} to {delta.index - 1} of the answer were lost"
            )
        logprobs = delta.logprobs
        return msgspec.structs.replace(
            delta,
            index=len(self.ledger),
            tokens=delta.tokens[repeated:],
            logprobs=logprobs[repeated:] if logprobs is not None else None,
        )

    def _add_prompt_logprobs(self, part: PromptLogprobs) -> None:
        rows = self._prompt_rows
        if rows is not None and not rows.add(part):
            raise missing_rows(rows)

    def _prompt_logprobs(self, tokens: list[int]) -> PromptRows | None:
        """Once, with the first output behind the prompt; an answer may end before that."""
        rows = self._prompt_rows
        if rows is None:
            return None
        if rows.complete:
            self._prompt_rows = None
            return rows
        if tokens:
            raise missing_rows(rows)
        return None

    def _take_hidden_states(self) -> list[Payload] | None:
        """Of the prompt, and of all tokens that are shown but the last."""
        states = self._hidden_states
        if states is None:
            return None
        needed = self._prompt + len(self.ledger) - 1
        if self.ledger and states.next < needed:
            raise MissingDelta(f"hidden states from position {states.next} on were lost")
        return states.take(max(self._prompt, needed))

    # -- times -----------------------------------------------------------------------------------

    def _note_start(self, delta: Delta) -> dict[str, float] | None:
        """Numbers that come with the first delta of an answer (and again with the last)."""
        if self._begun:
            return None
        self._cached = delta.cached_tokens or self._cached
        self._queue = delta.queue_time or self._queue
        if delta.tokens and not self._first:
            self._first = delta.first_token_time or self._clock() - self.request.arrival
        return {"queue": self._queue}

    def _final_timings(self) -> dict[str, float]:
        return {
            "sent": self._sent,
            "queue": self._queue,
            "first": self._first,
            "e2e": self._clock() - self.request.arrival,
        }


def failed(message: str, status: int) -> Finish:
    """The end of a request that is no fault of its own"""
    retry = RETRY_AFTER if status == 503 else None
    return Finish(type=FINISH_ABORT, message=message, status=status, retry_after=retry)


def is_embedding(payload: Payload | None) -> bool:
    return payload is not None and payload.kind == EMBEDDING


def movable(
    states: Iterable[RequestState], engine: EngineView, share: int
) -> Iterator[RequestState]:
    """Who moves to an engine that has just come, while it has less than `share` requests: of those
    with more, requests that wait there, the last to come first. Move them as they come."""
    for state in reversed([*states]):
        if engine.requests >= share:
            return
        other = state.engine
        if other is None or other is engine or other.requests <= share:
            continue
        if state.waits and state.request.dp_rank is None:
            yield state
