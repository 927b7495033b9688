"""Request bodies and answer readers of the three protocols.

A reader sees each server-sent event once, while the clock runs, so it decodes only the fields that
are measured (msgspec skips the rest without building objects).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from vivace.bench.errors import BenchError
from vivace.bench.workload import BenchRequest, Prompt


@dataclass(frozen=True, kw_only=True)
class RequestSettings:
    """What all requests of a run have in common."""

    model: str = ""
    stream: bool = True
    temperature: float = 0.0
    top_p: float = 1.0
    ignore_eos: bool = True
    return_logprob: bool = False
    top_logprobs: int = 0
    token_ids_logprob: tuple[int, ...] = ()
    logprob_start_len: int = -1
    return_routed_experts: bool = False
    cache_report: bool = False
    """Ask for the cached tokens of each tier."""
    extra: dict[str, Any] = field(default_factory=dict)


class ResponseReader(Protocol):
    """Collects one answer. `tokens` grows; `text_seen` tells whether an event brought text."""

    tokens: int | None
    """Completion tokens so far by the server's count; None while it has not said."""
    prompt_tokens: int | None
    cached_tokens: int | None
    cached_tiers: dict[str, int]
    """`cached_tokens` by tier; empty when the server does not say."""
    finished: bool
    error: str

    def feed(self, payload: bytes) -> bool:
        """Take one event (or the whole answer); True when it brought new text."""
        ...

    def text(self) -> str: ...
    def pieces(self) -> list[str]: ...


class _Reason(msgspec.Struct):
    type: str = ""
    message: str | None = None


class _Meta(msgspec.Struct):
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    cached_tokens_details: dict[str, Any] | None = None
    finish_reason: _Reason | None = None


class _NativeEvent(msgspec.Struct):
    text: str | None = None
    output_ids: msgspec.Raw = msgspec.Raw()
    meta_info: _Meta | None = None
    error: Any = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Content(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Content | None = None
    message: _Content | None = None
    finish_reason: str | None = None


class _SglExt(msgspec.Struct):
    cached_tokens_details: dict[str, Any] | None = None


class _OpenAIEvent(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    sglext: _SglExt | None = None
    error: Any = None


class NativeReader:
    """Events of /generate; `text` is everything so far, or only what is new (`incremental`)."""

    decode = msgspec.json.Decoder(_NativeEvent).decode

    def __init__(self, incremental: bool) -> None:
        self.tokens: int | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.cached_tiers: dict[str, int] = {}
        self.finished = False
        self.error = ""
        self._incremental = incremental
        self._parts: list[str] = []

    def feed(self, payload: bytes) -> bool:
        event = self.decode(payload)
        if event.error is not None:
            self.error = f"server error: {event.error}"
            return False
        meta = event.meta_info
        if meta is not None:
            self._note(meta)
        if event.text is None:
            return bytes(event.output_ids) not in (b"", b"[]", b"null")
        if not event.text:
            return False
        if self._incremental:
            self._parts.append(event.text)
        else:
            self._parts = [event.text]
        return True

    def _note(self, meta: _Meta) -> None:
        self.tokens = meta.completion_tokens
        self.prompt_tokens = meta.prompt_tokens
        self.cached_tokens = meta.cached_tokens
        if meta.finish_reason is not None:
            self.cached_tiers = tier_counts(meta.cached_tokens_details)
        if meta.finish_reason is not None:
            self.finished = True
            if meta.finish_reason.type == "abort":
                self.error = f"aborted by the server: {meta.finish_reason.message}"

    def text(self) -> str:
        return "".join(self._parts)

    def pieces(self) -> list[str]:
        return []


class OpenAIReader:
    """Events of /v1/completions and /v1/chat/completions."""

    decode = msgspec.json.Decoder(_OpenAIEvent).decode

    def __init__(self) -> None:
        self.tokens: int | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.cached_tiers: dict[str, int] = {}
        self.finished = False
        self.error = ""
        self._parts: list[str] = []

    def feed(self, payload: bytes) -> bool:
        event = self.decode(payload)
        if event.error is not None:
            self.error = f"server error: {event.error}"
            return False
        if event.usage is not None:
            self._note(event.usage)
        if event.sglext is not None:
            self.cached_tiers = tier_counts(event.sglext.cached_tokens_details)
            self.cached_tokens = sum(self.cached_tiers.values())
        if not event.choices:
            return False
        choice = event.choices[0]
        if choice.finish_reason is not None:
            self.finished = True
            if choice.finish_reason in ("abort", "error"):
                self.error = f"the server ended the answer with {choice.finish_reason!r}"
        part = choice.text
        content = choice.delta or choice.message
        if part is None and content is not None:
            part = content.content or content.reasoning_content
        if not part:
            return False
        self._parts.append(part)
        return True

    def _note(self, usage: _Usage) -> None:
        self.tokens = usage.completion_tokens
        self.prompt_tokens = usage.prompt_tokens
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens

    def text(self) -> str:
        return "".join(self._parts)

    def pieces(self) -> list[str]:
        return self._parts


def tier_counts(details: dict[str, Any] | None) -> dict[str, int]:
    """Counts by tier; what else SGLang puts there (the name of the storage) is left out."""
    return {tier: count for tier, count in (details or {}).items() if isinstance(count, int)}


class ApiFormat(Protocol):
    """A protocol: how a query becomes a body, and who reads the answer."""

    counts_tokens: bool
    """Every event carries the token count (the gap is then shared among the new tokens)."""

    def body(self, query: BenchRequest, settings: RequestSettings) -> dict[str, Any]: ...
    def reader(self) -> ResponseReader: ...


class Native:
    """SGLang's /generate."""

    counts_tokens = True

    def __init__(self, *, incremental: bool = False) -> None:
        self._incremental = incremental

    def body(self, query: BenchRequest, settings: RequestSettings) -> dict[str, Any]:
        body: dict[str, Any] = {
            "sampling_params": {
                "temperature": settings.temperature,
                "top_p": settings.top_p,
                "max_new_tokens": query.output_len,
                "ignore_eos": settings.ignore_eos,
            },
            "stream": settings.stream,
        }
        body["text" if isinstance(query.prompt, str) else "input_ids"] = text_or_ids(query.prompt)
        if query.json_schema is not None:
            schema = msgspec.json.encode(query.json_schema).decode()
            body["sampling_params"]["json_schema"] = schema
        if settings.return_logprob:
            body["return_logprob"] = True
            body["logprob_start_len"] = settings.logprob_start_len
            body["top_logprobs_num"] = settings.top_logprobs
            if settings.token_ids_logprob:
                body["token_ids_logprob"] = list(settings.token_ids_logprob)
        if settings.return_routed_experts:
            body["return_routed_experts"] = True
        return merge_body(body, settings.extra, query.extra)

    def reader(self) -> ResponseReader:
        return NativeReader(self._incremental)


class Completions:
    """/v1/completions. Prompts are text or token ids."""

    counts_tokens = False

    def body(self, query: BenchRequest, settings: RequestSettings) -> dict[str, Any]:
        body = shared_fields(query, settings)
        body["prompt"] = text_or_ids(query.prompt)
        if settings.return_logprob:
            body["logprobs"] = max(settings.top_logprobs, 1)
        return merge_body(body, settings.extra, query.extra)

    def reader(self) -> ResponseReader:
        return OpenAIReader()


class Chat:
    """/v1/chat/completions. A text becomes one user message."""

    counts_tokens = False

    def body(self, query: BenchRequest, settings: RequestSettings) -> dict[str, Any]:
        body = shared_fields(query, settings)
        body["messages"] = to_messages(query.prompt)
        if settings.return_logprob:
            body["logprobs"] = True
            body["top_logprobs"] = settings.top_logprobs
        return merge_body(body, settings.extra, query.extra)

    def reader(self) -> ResponseReader:
        return OpenAIReader()


def make_api_format(name: str, *, incremental: bool = False) -> ApiFormat:
    if name == "native":
        return Native(incremental=incremental)
    return Chat() if name == "chat" else Completions()


def shared_fields(query: BenchRequest, settings: RequestSettings) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": settings.model,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_tokens": query.output_len,
        "stream": settings.stream,
        "ignore_eos": settings.ignore_eos,
    }
    if settings.cache_report:
        body["return_cached_tokens_details"] = True
    if settings.stream:
        body["stream_options"] = {"include_usage": True}
    if query.json_schema is not None:
        schema = {"name": "answer", "strict": True, "schema": query.json_schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


def merge_body(body: dict[str, Any], *extras: dict[str, Any]) -> dict[str, Any]:
    """`extras` over `body`; sampling_params are merged field by field."""
    for extra in extras:
        for name, value in extra.items():
            inner = body.get(name)
            if name == "sampling_params" and isinstance(inner, dict) and isinstance(value, dict):
                body[name] = inner | value
            else:
                body[name] = value
    return body


def text_or_ids(prompt: Prompt) -> Prompt:
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict):
        raise BenchError("chat messages need a -chat back end")
    return prompt


def to_messages(prompt: Prompt) -> Prompt:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if prompt and isinstance(prompt[0], int):
        raise BenchError("a -chat back end takes no token ids: leave --tokenize-prompt out")
    return prompt
