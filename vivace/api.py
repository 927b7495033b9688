"""The offline API: `vivace.Engine(...).generate(...)`, in one process and, on one device, one
thread. Arguments and result fields are those of SGLang's Engine."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, NoReturn

import msgspec

from vivace import __version__
from vivace.frontend.errors import BadRequest, EngineUnavailable
from vivace.frontend.native import NativeAnswer
from vivace.frontend.tokenizer import Tokenizer
from vivace.frontend.validation import build_logprobs, build_sampling, samples
from vivace.offline.build import configured, start
from vivace.offline.driver import AsyncTurns
from vivace.offline.job import Job
from vivace.offline.prompts import Arguments, Ask, refuse_unavailable, split
from vivace.protocol.control import EngineState, FlushCache, GetState
from vivace.protocol.request import Request

__all__ = ["BadRequest", "Engine", "EngineUnavailable"]

Answer = dict[str, Any]


class Engine:
    """A model loaded in this process.

    `Engine(model_path=..., **flags)`: flags are those of `vivace serve` with underscores; without
    `model_path` the embedded model is used. Wrong flags raise `vivace.config.ConfigError`, wrong
    requests `BadRequest`, a dead engine `EngineUnavailable`. Close it with `shutdown()` or use it
    as a context manager.
    """

    def __init__(self, model_path: str | None = None, **flags: Any) -> None:
        flags.setdefault("log_level", "warning")
        if model_path is not None:
            flags["model_path"] = model_path
        self.config = configured(flags)
        self._frontend, self._driver = start(self.config)
        self._turns = AsyncTurns(self._driver)

    # -- generation ------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        *,
        return_logprob: bool | list[bool] = False,
        logprob_start_len: int | list[int] | None = None,
        top_logprobs_num: int | list[int] | None = None,
        token_ids_logprob: list[int] | list[list[int]] | None = None,
        return_text_in_logprobs: bool = False,
        stream: bool = False,
        rid: str | list[str] | None = None,
        priority: int | None = None,
        **unavailable: Any,
    ) -> Answer | list[Answer] | Iterator[Answer]:
        """Generate for one prompt (a dict) or a batch or n > 1 (a list of dicts, prompt by prompt).

        `stream=True` returns an iterator of dicts instead, `text` growing from one to the next
        (only the news with the flag `stream_output`); in batches `index` says whose it is.
        """
        arguments = Arguments(
            prompt=prompt,
            input_ids=input_ids,
            sampling_params=sampling_params,
            rid=rid,
            return_logprob=return_logprob,
            logprob_start_len=logprob_start_len,
            top_logprobs_num=top_logprobs_num,
            token_ids_logprob=token_ids_logprob,
        )
        refuse_unavailable(unavailable)
        job, batch = self._job(arguments, return_text_in_logprobs, stream, priority)
        return self._stream(job) if stream else self._whole(job, batch)

    async def async_generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        *,
        return_logprob: bool | list[bool] = False,
        logprob_start_len: int | list[int] | None = None,
        top_logprobs_num: int | list[int] | None = None,
        token_ids_logprob: list[int] | list[list[int]] | None = None,
        return_text_in_logprobs: bool = False,
        stream: bool = False,
        rid: str | list[str] | None = None,
        priority: int | None = None,
        **unavailable: Any,
    ) -> Answer | list[Answer] | AsyncIterator[Answer]:
        """`generate` for asyncio; concurrent calls share the engine's steps."""
        arguments = Arguments(
            prompt=prompt,
            input_ids=input_ids,
            sampling_params=sampling_params,
            rid=rid,
            return_logprob=return_logprob,
            logprob_start_len=logprob_start_len,
            top_logprobs_num=top_logprobs_num,
            token_ids_logprob=token_ids_logprob,
        )
        refuse_unavailable(unavailable)
        job, batch = self._job(arguments, return_text_in_logprobs, stream, priority)
        return self._async_stream(job) if stream else await self._async_whole(job, batch)

    def encode(self, *_: Any, **__: Any) -> NoReturn:
        """Embeddings: not available."""
        raise BadRequest("", "embedding models are not available in this version of Vivace", 501)

    # -- the rest --------------------------------------------------------------------------------

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._frontend.tokenizer

    def flush_cache(self) -> bool:
        """Drop the prefix cache; False while requests run."""
        return self._driver.command(FlushCache()).ok

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        """Abort the requests whose id begins with `rid`, or all."""
        self._frontend.abort(rid, abort_all)

    def get_server_info(self) -> dict[str, Any]:
        """Flags, versions, and under `internal_states` what the engine says of itself."""
        from vivace.config import public

        state = self._state()
        told = msgspec.to_builtins(state)
        return {
            **public(self.config),
            "model_path": self._frontend.served.path,
            "version": __version__,
            "max_total_num_tokens": state.total_tokens,
            "last_gen_throughput": state.last_gen_throughput,
            "audit": state.audit,
            "internal_states": [told],
        }

    def shutdown(self) -> None:
        """Abort what runs and free what can be freed; the engine cannot be used afterwards."""
        self._frontend.drain()
        self._frontend.close()
        self._driver.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    # -- one call --------------------------------------------------------------------------------

    def _state(self) -> EngineState:
        reply = self._driver.command(GetState())
        if reply.state is None:
            raise EngineUnavailable(reply.message or "the engine gave no state")
        return reply.state

    def _job(
        self, arguments: Arguments, texts: bool, stream: bool, priority: int | None
    ) -> tuple[Job, bool]:
        """Check everything, send nothing yet."""
        arrival = time.monotonic()
        asks, batch = split(arguments)
        requests = [
            request for ask in asks for request in self._requests(ask, stream, priority, arrival)
        ]
        several = batch or len(requests) > 1
        tokenizer = self._frontend.tokenizer
        answers = [
            NativeAnswer(
                request,
                weight_version=self._frontend.served.weight_version,
                index=index if several and stream else None,
                token_text=tokenizer.token_text if texts and tokenizer is not None else None,
                disjoint=bool(self.config.runtime.stream_output),
            )
            for index, request in enumerate(requests)
        ]
        return Job(self._frontend, requests, answers), several

    def _requests(
        self, ask: Ask, stream: bool, priority: int | None, arrival: float
    ) -> list[Request]:
        served, tokens = self._frontend.served, self._tokens(ask)
        sampling, n = build_sampling(ask.sampling, served, len(tokens))
        logprobs = build_logprobs(
            served,
            len(tokens),
            return_logprob=ask.return_logprob,
            logprob_start_len=ask.logprob_start_len,
            top_logprobs_num=ask.top_logprobs_num,
            token_ids_logprob=ask.token_ids_logprob,
        )
        return [
            self._frontend.request(
                tokens,
                settings,
                rid=f"{ask.rid}-{i}" if n > 1 and ask.rid is not None else ask.rid,
                logprobs=logprobs,
                priority=priority,
                stream=stream,
                arrival=arrival,
            )
            for i, settings in enumerate(samples(sampling, n))
        ]

    def _tokens(self, ask: Ask) -> list[int]:
        if not isinstance(ask.prompt, str):
            if not isinstance(ask.prompt, list):
                raise BadRequest(ask.place, "must be text or a list of token ids")
            return ask.prompt
        if self._frontend.tokenizer is None:
            raise BadRequest(ask.place, "skip_tokenizer_init is set; give input_ids")
        tokens = self._frontend.tokenizer.encode(ask.prompt)
        if not tokens:
            raise BadRequest(ask.place, "the prompt is empty")
        return tokens

    def _whole(self, job: Job, batch: bool) -> Answer | list[Answer]:
        job.start()
        try:
            while not job.done:
                self._driver.turn()
                job.take()
        finally:
            job.cancel()
        return job.bodies() if batch else job.bodies()[0]

    def _stream(self, job: Job) -> Iterator[Answer]:
        job.start()
        try:
            while not job.done:
                while job.has_news:
                    yield job.take_event()
                if not job.done:
                    self._driver.turn()
        finally:
            job.cancel()

    async def _async_whole(self, job: Job, batch: bool) -> Answer | list[Answer]:
        job.start()
        try:
            while not job.done:
                await self._turns.next()
                job.take()
        finally:
            job.cancel()
        return job.bodies() if batch else job.bodies()[0]

    async def _async_stream(self, job: Job) -> AsyncIterator[Answer]:
        job.start()
        try:
            while not job.done:
                while job.has_news:
                    yield job.take_event()
                if not job.done:
                    await self._turns.next()
        finally:
            job.cancel()
