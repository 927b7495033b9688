"""The offline API: `vivace.Engine(...).generate(...)`, in one process and, on one device, one
thread. Arguments and result fields are those of SGLang's Engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, NoReturn, Unpack

import msgspec

from vivace import __version__
from vivace.frontend.errors import BadRequest, EngineUnavailable
from vivace.frontend.tokenizer import Tokenizer
from vivace.offline.build import configured, start
from vivace.offline.driver import AsyncTurns
from vivace.offline.job import Job, job_of
from vivace.offline.prompts import Asked, read_call
from vivace.protocol.control import EngineState, FlushCache, GetState
from vivace.server.schema import GenerateRequest

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
        **asked: Unpack[Asked],
    ) -> Answer | list[Answer] | Iterator[Answer]:
        """Generate for one prompt (a dict) or a batch or n > 1 (a list of dicts, prompt by prompt).

        Keyword arguments: see `Asked`. `stream=True` returns an iterator of dicts instead, `text`
        growing from one to the next (only the news with the flag `stream_output`); in batches
        `index` says whose it is.
        """
        call = read_call(sampling_params, asked)
        job = self._job(call, prompt, input_ids)
        return self._stream(job) if call.stream else self._whole(job)

    async def async_generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        **asked: Unpack[Asked],
    ) -> Answer | list[Answer] | AsyncIterator[Answer]:
        """`generate` for asyncio; concurrent calls share the engine's steps."""
        call = read_call(sampling_params, asked)
        job = self._job(call, prompt, input_ids)
        return self._async_stream(job) if call.stream else await self._async_whole(job)

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

        state, known = self._state(), public(self.config)
        told = msgspec.to_builtins(state)
        capacity = self._frontend.capacity
        sized = msgspec.to_builtins(capacity.rewrites) if capacity else ()
        return {
            **known,
            "rewrites": [*known.get("rewrites", ()), *sized],
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
        if self.tokenizer is not None and self.tokenizer.chat is not None:
            self.tokenizer.chat.close()
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

    def _job(self, call: GenerateRequest, prompt: Any, input_ids: Any) -> Job:
        disjoint = bool(self.config.runtime.stream_output)
        return job_of(self._frontend, call, prompt, input_ids, disjoint=disjoint)

    def _whole(self, job: Job) -> Answer | list[Answer]:
        job.start()
        try:
            while not job.done:
                self._driver.turn()
                job.take()
        finally:
            job.cancel()
        return job.result()

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

    async def _async_whole(self, job: Job) -> Answer | list[Answer]:
        job.start()
        try:
            while not job.done:
                await self._turns.next()
                job.take()
        finally:
            job.cancel()
        return job.result()

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
