"""The offline API: `vivace.Engine(...).generate(...)`, in one process and one thread; chat
templates are rendered in a second one, which can be killed, and further ranks are processes.
Arguments and result fields are those of SGLang's Engine; docs/python.md shows them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack, cast

import msgspec

from vivace.frontend.errors import BadRequest, EngineUnavailable, NotSupported
from vivace.frontend.tokenizer import Tokenizer
from vivace.offline.build import report, resolve_arguments, start
from vivace.offline.conversations import (
    ChatOptions,
    ChatPrompts,
    configured_syntax,
    read_chat,
)
from vivace.offline.driver import AsyncDriver
from vivace.offline.job import Job, create_embedding_job, create_job
from vivace.offline.keywords import check_keywords
from vivace.offline.prompts import (
    GenerateOptions,
    read_call,
    read_encode_call,
)
from vivace.offline.scores import (
    ScoreResult,
    create_pair_job,
    read_rerank_call,
    read_score_call,
)
from vivace.protocol.messages import EngineState, FlushCache, GetState
from vivace.requests.classes import scores_pairs
from vivace.requests.embeddings import EncodeRequest
from vivace.requests.schema import GenerateRequest
from vivace.requests.scores import PLAIN
from vivace.version import __version__

__all__ = ["BadRequest", "Engine", "EngineUnavailable", "NotSupported", "ScoreResult"]

Answer = dict[str, Any]
Conversation = list[dict[str, Any]]


@check_keywords
class Engine:
    """A model loaded in this process, or divided among it and others.

    `Engine(model_path=..., **flags)`: flags are those of `vivace serve` with underscores; without
    `model_path` the embedded model is used. `on_progress` is told each stage of loading and how
    much of it is done (0 to 1); with `needs_chat_template` a model that brings none, and was given
    none, is refused before its weights are loaded. Wrong flags and models that cannot be loaded
    raise `vivace.CannotStart` (flags: `vivace.ConfigError`, which is one), wrong requests
    `vivace.BadRequest`, what is not supported yet `vivace.NotSupported`, an engine that is dead
    or was shut down `vivace.EngineUnavailable`. Close it with `shutdown()` or use it as a context
    manager.
    """

    def __init__(
        self,
        model_path: str | PathLike[str] | None = None,
        *,
        on_progress: Callable[[str, float], None] = report,
        needs_chat_template: bool = False,
        **flags: Any,
    ) -> None:
        flags.setdefault("log_level", "warning")
        if model_path is not None:
            flags["model_path"] = model_path
        self.config = resolve_arguments(flags)
        self._frontend, self._driver = start(self.config, on_progress, needs_chat_template)
        self._async_driver = AsyncDriver(self._driver)
        self._syntax = configured_syntax(self.config, self._frontend)

    # -- generation ------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Answer | list[Answer] | Iterator[Answer]:
        """Generate for one prompt (a dict) or a batch or n > 1 (a list of dicts, prompt by prompt).

        Further keywords: `GenerateOptions`. `stream=True` returns an iterator of dicts instead,
        `text` growing from one to the next (with the flag `stream_output`: only what is new); in
        batches `index` says whose it is.
        """
        call = read_call(sampling_params, options)
        job = self._job(call, prompt, input_ids)
        return self._stream(job) if call.stream else self._whole(job)

    async def async_generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Answer | list[Answer] | AsyncIterator[Answer]:
        """`generate` for asyncio; concurrent calls share the engine's steps."""
        call = read_call(sampling_params, options)
        job = self._job(call, prompt, input_ids)
        return self._async_stream(job) if call.stream else await self._async_whole(job)

    def chat(
        self,
        messages: Conversation | list[Conversation],
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        **options: Unpack[ChatOptions],
    ) -> Answer | list[Answer] | Iterator[Answer]:
        """Answer a conversation, or each of a list of them, through the model's chat template.

        `messages` are OpenAI's; the result is that of `generate`, and a whole answer has its
        `message` besides. Further keywords: `ChatOptions`. As in /v1/chat/completions an answer may
        take the rest of the context when `max_new_tokens` is absent.
        """
        self._driver.require_alive()
        chat = read_chat(self._frontend, self._syntax, messages, sampling_params, options)
        job = self._job(chat.call, None, chat.input_ids, chat)
        return self._stream(job) if chat.call.stream else self._whole(job)

    async def async_chat(
        self,
        messages: Conversation | list[Conversation],
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        **options: Unpack[ChatOptions],
    ) -> Answer | list[Answer] | AsyncIterator[Answer]:
        """`chat` for asyncio; templates are rendered beside the event loop."""
        self._driver.require_alive()
        chat = await asyncio.to_thread(
            read_chat, *(self._frontend, self._syntax, messages, sampling_params, options)
        )
        job = self._job(chat.call, None, chat.input_ids, chat)
        return self._async_stream(job) if chat.call.stream else await self._async_whole(job)

    def score(
        self,
        query: str | list[int] | None = None,
        items: str | list[str] | list[list[int]] | None = None,
        label_token_ids: list[int] | list[list[int]] | None = None,
        apply_softmax: bool = False,
        item_first: bool = False,
        embed_override_token_id: int | None = None,
        query_embed_overrides: Sequence[Any] | None = None,
        item_embed_overrides: Sequence[Any] | None = None,
    ) -> ScoreResult:
        """How probable each of `label_token_ids` is as the next token behind query + item.

        With `apply_softmax` the numbers of an item add up to 1. Overriding embeddings raises
        NotSupported.
        """
        overrides = embed_override_token_id, query_embed_overrides, item_embed_overrides
        call = read_score_call(
            self._frontend, query, items, label_token_ids, item_first, *overrides
        )
        answers: Any = self.generate(None, PLAIN, call.prompts, **call.options)
        return call.scores(answers, apply_softmax)

    async def async_score(
        self,
        query: str | list[int] | None = None,
        items: str | list[str] | list[list[int]] | None = None,
        label_token_ids: list[int] | list[list[int]] | None = None,
        apply_softmax: bool = False,
        item_first: bool = False,
        embed_override_token_id: int | None = None,
        query_embed_overrides: Sequence[Any] | None = None,
        item_embed_overrides: Sequence[Any] | None = None,
    ) -> ScoreResult:
        """`score` for asyncio."""
        overrides = embed_override_token_id, query_embed_overrides, item_embed_overrides
        call = read_score_call(
            self._frontend, query, items, label_token_ids, item_first, *overrides
        )
        answers: Any = await self.async_generate(None, PLAIN, call.prompts, **call.options)
        return call.scores(answers, apply_softmax)

    # -- embeddings ------------------------------------------------------------------------------

    def encode(
        self,
        prompt: str | list[str] | None = None,
        image_data: Any = None,
        audio_data: Any = None,
        video_data: Any = None,
        dimensions: int | None = None,
        lora_path: Any = None,
        rid: str | list[str] | None = None,
        priority: int | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
    ) -> Answer | list[Answer]:
        """A vector of one text (a dict with `embedding` and `meta_info`), or of each of several (a
        list of them), by an engine with the flag is_embedding.

        `dimensions`: only the first numbers, for models that were trained for it (Matryoshka).
        """
        media = {"image_data": image_data, "audio_data": audio_data, "video_data": video_data}
        params = read_encode_call(dimensions, rid, priority, lora_path=lora_path, **media)
        return self._whole(self._embedding_job(params, prompt, input_ids))

    async def async_encode(
        self,
        prompt: str | list[str] | None = None,
        image_data: Any = None,
        audio_data: Any = None,
        video_data: Any = None,
        dimensions: int | None = None,
        lora_path: Any = None,
        rid: str | list[str] | None = None,
        priority: int | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
    ) -> Answer | list[Answer]:
        """`encode` for asyncio; concurrent calls share the engine's steps."""
        media = {"image_data": image_data, "audio_data": audio_data, "video_data": video_data}
        params = read_encode_call(dimensions, rid, priority, lora_path=lora_path, **media)
        return await self._async_whole(self._embedding_job(params, prompt, input_ids))

    def rerank(self, prompt: list[list[str]], instruct: str | None = None) -> list[Answer]:
        """How well documents answer queries: for each pair of the two a dict whose `embedding` is
        a number from 0 to 1. `instruct`: the task, for models that are asked in words."""
        self._driver.require_alive()
        if scores_pairs(self._frontend.served):
            job = create_pair_job(self._frontend, prompt, instruct)
            return cast("list[Answer]", self._whole(job))
        call = read_rerank_call(self._frontend, prompt, instruct)
        answers: Any = self.generate(None, PLAIN, call.prompts, **call.options)
        return call.ranks(answers)

    # -- the rest --------------------------------------------------------------------------------

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer. BadRequest with the flag skip_tokenizer_init."""
        if self.tokenizer is None:
            raise BadRequest("tokenizer", "skip_tokenizer_init is set: there is none")
        return self.tokenizer

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._frontend.tokenizer

    def flush_cache(self) -> bool:
        """Drop the prefix cache; False while requests run."""
        return self._driver.command(FlushCache()).ok

    def save_sharded_model(
        self,
        path: str | PathLike[str],
        pattern: str | None = None,
        max_size: int | None = None,
    ) -> None:
        """Write files for `load_format="sharded_state"` (docs/python.md). Raises CannotStart."""
        from vivace.offline.sharded_state import save_sharded_state

        save_sharded_state(self.config, Path(path), pattern, max_size, report=report)

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        """Abort the requests whose id begins with `rid`, or all."""
        if rid or abort_all:
            self._frontend.abort("" if abort_all else rid)

    def get_server_info(self) -> dict[str, Any]:
        """Flags, versions, and under `internal_states` what the engine says of itself."""
        from vivace.config.serialize import public

        state, known = self._state(), public(self.config)
        internal = msgspec.to_builtins(state)
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
            "internal_states": [internal],
        }

    def shutdown(self) -> None:
        """Abort what runs and free what can be freed; calls raise EngineUnavailable afterwards."""
        self._driver.close()
        self._frontend.close()
        if self.tokenizer is not None and self.tokenizer.chat is not None:
            self.tokenizer.chat.close()

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
        self,
        call: GenerateRequest,
        prompt: Any,
        input_ids: Any,
        chat: ChatPrompts | None = None,
    ) -> Job:
        self._driver.require_alive()
        disjoint = bool(self.config.runtime.stream_output)
        return create_job(self._frontend, call, prompt, input_ids, disjoint=disjoint, chat=chat)

    def _embedding_job(self, params: EncodeRequest, prompt: Any, input_ids: Any) -> Job:
        self._driver.require_alive()
        return create_embedding_job(self._frontend, params, prompt, input_ids)

    def _start(self, job: Job) -> None:
        self._driver.require_alive()
        job.start()

    def _whole(self, job: Job) -> Answer | list[Answer]:
        self._start(job)
        try:
            while not job.done:
                self._driver.step()
                job.take()
        finally:
            job.cancel()
        return job.result()

    def _stream(self, job: Job) -> Iterator[Answer]:
        self._start(job)
        try:
            while not job.done:
                while job.has_news:
                    yield job.take_event()
                if not job.done:
                    self._driver.step()
        finally:
            job.cancel()

    async def _async_whole(self, job: Job) -> Answer | list[Answer]:
        self._start(job)
        try:
            while not job.done:
                await self._async_driver.next()
                job.take()
        finally:
            job.cancel()
        return job.result()

    async def _async_stream(self, job: Job) -> AsyncIterator[Answer]:
        self._start(job)
        try:
            while not job.done:
                while job.has_news:
                    yield job.take_event()
                if not job.done:
                    await self._async_driver.next()
        finally:
            job.cancel()
