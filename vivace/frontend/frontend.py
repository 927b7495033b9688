"""The edge between clients and the engine: who is live, who gets which news, and what happens to
them when the engine goes away. Lives in the HTTP process, on one asyncio loop."""

from __future__ import annotations

import itertools
import logging
import math
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Unpack

from vivace.frontend.answer_parts import MissingDelta
from vivace.frontend.engine_status import (
    Balance,
    CrashingRequests,
    EngineCommands,
    EngineStatus,
    EngineView,
)
from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import CURRENT_BEGIN
from vivace.frontend.request_output import QueueSink, RequestOutput, Sink
from vivace.frontend.request_state import RETRY_AFTER, RequestOptions, RequestState, failed, movable
from vivace.frontend.served_model import ServedModel
from vivace.frontend.tokenizer import Tokenizer
from vivace.frontend.tokenizer_pool import TokenizerPool
from vivace.frontend.validation import check_defaults, check_prompt, check_rid
from vivace.protocol.messages import (
    ABORTED,
    KEY_SHIFT,
    MAX_RID_CHARACTERS,
    Cancel,
    Capacity,
    Delta,
    Deltas,
    Draining,
    EngineDown,
    Finish,
    LastRequest,
    LogprobOptions,
    Ready,
    Reply,
    Request,
    SamplingParams,
    ToFrontend,
)
from vivace.protocol.tasks import GENERATE, Task
from vivace.protocol.workers import CorpusRemoved

log = logging.getLogger(__name__)

MAX_ABORTS = 1024


class Frontend:
    """Owns the table of live requests, each of which is with one of the engines.

    Everything but `encode` must be called on one thread; `feed` gets what the engine answers.
    """

    def __init__(
        self,
        served: ServedModel,
        tokenizer: Tokenizer | None,
        engines: Sequence[EngineView],
        *,
        balance: Balance | None = None,
        index: int = 0,
        clock: Callable[[], float] = time.monotonic,
        threads: int = 2,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        """`release`: as in `TokenizerPool`; without `balance` engines take turns."""
        check_defaults(served)
        self.served = served
        self.tokenizer = tokenizer
        self.capacity: Capacity | None = None
        self.last_token_time = -math.inf
        """when an engine last sent a token or a vector, in seconds of the clock"""
        self._configured = served
        self.engines = engines
        self._clock = clock
        self._crashing: CrashingRequests | None = None  # none has killed an engine
        self._aborts: deque[Cancel] = deque(maxlen=MAX_ABORTS)
        self._index = index
        self._keys = itertools.count((index << KEY_SHIFT) + 1)
        self._states: dict[int, RequestState] = {}
        self.accepted = 0
        """HTTP requests to generate, from their body to the end of their answer"""
        self._rids: dict[str, int] = {}
        self._pool = TokenizerPool(threads, release)
        self.engine = EngineStatus(engines, balance)
        self.commands = EngineCommands(index, self.engine, engines)

    # -- state -----------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """ "starting" (or restarting), "ready", "draining" or "down"."""
        return self.engine.status

    @property
    def live(self) -> int:
        """Requests started and not finished."""
        return len(self._states)

    def drain(self) -> None:
        """Take no new requests, and end those that no engine has heard of; who is live goes on."""
        self.engine.drain()
        self.engine.broadcast(LastRequest(self._index))

    def stop(self) -> None:
        """End who is live still: the engine will not say anything any more."""
        if self._states:
            log.warning("%d requests are ended, which the engine did not end", self.live)
        for state in list(self._states.values()):
            self._finish(state, "the server has shut down", 503)

    def close(self) -> None:
        self._pool.close()

    # -- in --------------------------------------------------------------------------------------

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. BadRequest when it cannot fit the context or is no Unicode."""
        tokenizer = self._required_tokenizer()
        return await self._pool.encode(tokenizer, text, add_special_tokens, self.served)

    def encode_all(
        self,
        texts: Sequence[str],
        add_special_tokens: bool = True,
        *,
        max_tokens: int | None = None,
    ) -> AsyncIterator[list[list[int]]]:
        """Token ids of many texts in their order, some texts at a time. BadRequest as `encode`, but
        with `max_tokens` for a text of more tokens than that, whatever the context."""
        tokenizer = self._required_tokenizer()
        return self._pool.encode_all(tokenizer, texts, add_special_tokens, self.served, max_tokens)

    def _required_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise BadRequest("text", "the server runs without a tokenizer; send input_ids")
        return self.tokenizer

    def request(
        self,
        tokens: Sequence[int],
        sampling: SamplingParams,
        **options: Unpack[RequestOptions],
    ) -> Request:
        """A request with its own key, within every limit; BadRequest names what is wrong."""
        checked = check_prompt(list(tokens), self.served, room=sampling.max_new_tokens)
        return self.checked_request(checked, sampling, **options)

    def checked_request(
        self,
        tokens: list[int],
        sampling: SamplingParams,
        *,
        rid: str | None = None,
        logprobs: LogprobOptions | None = None,
        priority: int | None = None,
        cache_key: str = "",
        stream: bool = False,
        client: int = 0,
        log_metrics: bool = True,
        arrival: float | None = None,
        dp_rank: int | None = None,
        resumed: Sequence[int] = (),
        task: Task = GENERATE,
    ) -> Request:
        """`request` for a prompt that has passed `check_prompt`; it is not copied."""
        self._require_room(rid)
        if sampling.stop and self.tokenizer is None:
            raise BadRequest("stop", "stop strings need a tokenizer; use stop_token_ids")
        if priority is not None and not -(1 << 31) <= priority < 1 << 31:
            raise BadRequest("priority", "must fit 32 bits")
        arrival = self._clock() if arrival is None else arrival
        return Request(
            key=next(self._keys),
            rid=rid if rid is not None else uuid.uuid4().hex,
            tokens=tokens,
            sampling=sampling,
            logprobs=logprobs,
            priority=priority,
            cache_key=cache_key,
            arrival=arrival,
            begin=min(arrival, CURRENT_BEGIN.get()),
            stream=stream,
            client=client,
            log_metrics=log_metrics,
            dp_rank=dp_rank,
            resumed=list(resumed),
            task=task,
        )

    def start(self, request: Request, sink: Sink, shown: frozenset[int] = frozenset()) -> None:
        """Send a request to an engine; outputs go to `sink`. `shown`: see `detokenizer`."""
        self._require_room(request.rid)
        if self._crashing is not None and request in self._crashing:
            raise BadRequest("", "the engine died of this request before: it is refused", 500)
        state = RequestState(request, sink, self.tokenizer, self._clock, shown)
        engine = self.engine.choose(request.dp_rank)
        self._states[request.key] = state
        self._rids[request.rid] = request.key
        self._assign(state, engine)
        if request.resumed and (finish := state.reached_end(self.served.eos_ids)):
            self._end(state, finish)
        elif engine.up:
            engine.send(request)

    def _assign(self, state: RequestState, engine: EngineView) -> None:
        if state.engine is not None:
            state.engine.remove(state.request)
        state.engine = engine
        engine.add(state.request)

    async def generate(self, request: Request) -> AsyncIterator[RequestOutput]:
        """The outputs of one answer; leaving the iteration early cancels the request. A reader
        slower than the model gets several outputs merged into one."""
        sink = QueueSink()
        self.start(request, sink)
        try:
            while True:
                output = await sink.next()
                yield output
                if output.finish is not None:
                    return
        finally:
            self.cancel([request.key])

    def cancel(self, keys: list[int]) -> None:
        """Stop requests nobody listens to any more; their sinks hear nothing further."""
        lost: dict[EngineView, list[int]] = {}
        for state in [self._states[key] for key in keys if key in self._states]:
            if state.engine is not None:
                lost.setdefault(state.engine, []).append(state.request.key)
            self._forget(state)
        for engine, of_engine in lost.items():
            engine.send(Cancel(keys=of_engine))

    def abort(self, prefix: str) -> None:
        """End all requests whose id begins with `prefix`, whichever frontend has them and wherever
        they wait; their sinks get an abort finish."""
        if len(prefix) > MAX_RID_CHARACTERS:
            return
        cancel = Cancel(rid_prefix=prefix, when=self._clock())
        self._aborts.append(cancel)
        self.engine.broadcast(cancel)
        for state in list(self._states.values()):  # what waits for a restart ends now
            there = state.engine is not None and state.engine.up
            if not there and state.request.rid.startswith(prefix):
                self._end(state, ABORTED)

    # -- out -------------------------------------------------------------------------------------

    def feed(self, message: ToFrontend) -> None:
        """Take one message of an engine or the supervisor. Never raises."""
        if type(message) is Deltas:
            if (engine := self.engine.epochs.get(message.epoch)) is not None:
                self._deliver(message.deltas, engine)
        elif isinstance(message, Reply | CorpusRemoved):
            self.commands.answer(message)
        elif isinstance(message, Ready):
            self._engine_ready(message)
        elif isinstance(message, EngineDown):
            self._engine_down(message)
        elif isinstance(message, Draining):
            self.drain()

    def _deliver(self, deltas: list[Delta], engine: EngineView) -> None:
        stopped: list[int] = []
        if any(delta.tokens or delta.payload for delta in deltas):
            self.last_token_time = self._clock()
        for delta in deltas:
            state = self._states.get(delta.key)
            if state is None or state.engine is not engine:
                continue
            try:
                if state.try_fast_path(delta):
                    continue
                output = state.accept(delta)
                if output is None:
                    continue
                if output.finish is not None:
                    self._forget(state)
                    if delta.finish is None:
                        stopped.append(delta.key)
                state.sink.push(output)
            except Exception as error:
                self._break(state, error)
        if stopped:
            engine.send(Cancel(keys=stopped, finished=True))

    def _break(self, state: RequestState, error: Exception) -> None:
        """One request went wrong at the edge: it ends, nobody else notices."""
        key = state.request.key
        if isinstance(error, MissingDelta):
            log.error("request %s: %s", state.request.rid, error)
        else:
            log.error("request %s failed in the frontend", state.request.rid, exc_info=error)
        if key in self._states:
            engine = state.engine
            self._finish(state, f"internal error: {error}", 500)
            if engine is not None:
                engine.send(Cancel(keys=[key], finished=True))

    def _engine_ready(self, message: Ready) -> None:
        engine = self.engines[message.engine]
        self.capacity = self.engine.least_capacity(engine, message.capacity)
        context = min(self._configured.context, self.capacity.context)
        self.served = replace(self._configured, context=context)
        if not self.engine.ready(engine, message.epoch):
            return
        for cancel in self._aborts:  # the engine before may not have heard of them
            engine.send(cancel)
        for state in list(self._states.values()):
            if state.engine is engine or self._may_leave(state):
                self._resume(state, engine)
        if self.status == "draining":
            engine.send(LastRequest(self._index))
            return
        share = len(self._states) // len(self.engine.epochs)
        for state in movable(self._states.values(), engine, share):
            state.leave_engine()
            self._resume(state, engine)

    def _may_leave(self, state: RequestState) -> bool:
        """Whether it waits for an engine that is not there, and may go on with any other. During a
        drain the others have heard that nothing comes any more."""
        there = state.engine is not None and state.engine.up
        return not (there or self.engine.draining) and state.request.dp_rank is None

    def _resume(self, state: RequestState, engine: EngineView) -> None:
        """An engine goes on with what a dead one left."""
        if finish := state.reached_end(self.served.eos_ids):
            self._end(state, finish)
        else:
            self._assign(state, engine)
            engine.send(state.resume_request())

    def _engine_down(self, message: EngineDown) -> None:
        lost = self.engines if message.engine is None else [self.engines[message.engine]]
        self.engine.lose(lost, message.reason, restarting=message.restarting)
        for engine in lost:
            self.commands.fail(engine, f"the engine died: {message.reason}")
        self._blame(message)
        for state in list(self._states.values()):
            if state.engine in lost:
                self._go_on_elsewhere(state, message.reason)

    def _blame(self, message: EngineDown) -> None:
        for key in message.refused:
            if (state := self._states.get(key)) is not None:
                log.error("request %s has killed the engine again: refused", state.request.rid)
                self._crashing = self._crashing or CrashingRequests(self._clock)
                self._crashing.add(state.request)
                self._finish(state, f"the engine died of this request: {message.reason}", 500)
        for key, level in message.suspects.items():
            if (state := self._states.get(key)) is not None:
                state.suspect = level

    def _go_on_elsewhere(self, state: RequestState, reason: str) -> None:
        """At once, where there is another engine; else it waits for the next one, or ends."""
        if self._may_leave(state) and self.engine.up:
            self._resume(state, self.engine.choose())
        elif state.engine is not None and state.engine.gone:
            self._finish(state, f"the engine died: {reason}", 503)

    def _finish(self, state: RequestState, message: str, status: int) -> None:
        self._end(state, failed(message, status))

    def _end(self, state: RequestState, finish: Finish) -> None:
        self._forget(state)
        try:
            state.sink.push(state.final_output(finish))
        except Exception:
            log.exception("request %s: its sink refused the end", state.request.rid)

    def _forget(self, state: RequestState) -> None:
        if self._states.pop(state.request.key, None) is not None and state.engine is not None:
            state.engine.remove(state.request)
        if self._rids.get(state.request.rid) == state.request.key:
            del self._rids[state.request.rid]

    def _require_room(self, rid: str | None) -> None:
        if self.status != "ready":
            reason = f"the server is {self.status}; try again"
            raise BadRequest("", reason, 503, retry_after=RETRY_AFTER)
        if len(self._states) >= self.served.max_live:
            raise BadRequest(
                "", f"{len(self._states)} requests are live already", 503, retry_after=RETRY_AFTER
            )
        if rid is not None and check_rid(rid) in self._rids:
            raise BadRequest("rid", f"{rid!r} is in use by a live request")
