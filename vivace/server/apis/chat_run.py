"""OpenAI's paths as other APIs use them: a `ChatRequest` in, and out what its answer says.

An adapter turns its own body into a `ChatRequest`, and what comes back into its own objects. So
whatever the chat path learns to say (tool calls, reasoning) it can say too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import validation_error
from vivace.parsers.json_values import whole_part
from vivace.requests.schema import Message
from vivace.server.body import Body
from vivace.server.context import Context
from vivace.server.openai.chat import answer_chat
from vivace.server.openai.completions import answer_completions
from vivace.server.openai.schema import ChatRequest, CompletionRequest
from vivace.server.responses import HTTPError
from vivace.server.sse import STREAM_FORM, StreamForm


class ResultFunction(msgspec.Struct, kw_only=True):
    name: str | None = None
    arguments: str | None = None


class ResultInput(msgspec.Struct, kw_only=True):
    name: str | None = None
    input: str | None = None


class ResultCall(msgspec.Struct, kw_only=True):
    """A tool call, or what is new of one: then `arguments` is a part of their JSON. Of a custom
    tool `custom` says it."""

    function: ResultFunction = msgspec.field(default_factory=ResultFunction)
    custom: ResultInput | None = None
    id: str | None = None
    index: int | None = None


class ResultMessage(msgspec.Struct, kw_only=True):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ResultCall] | None = None


class ResultLogprobs(msgspec.Struct, kw_only=True):
    content: list[msgspec.Raw] | None = None
    """as they came: twenty objects for each token would take seconds to make"""


class ResultChoice(msgspec.Struct, kw_only=True):
    """`message` is that of a whole answer, `delta` what is new in an event; text completions have
    `text` in their place."""

    message: ResultMessage | None = None
    delta: ResultMessage | None = None
    text: str | None = None
    logprobs: ResultLogprobs | None = None
    finish_reason: str | None = None
    matched_stop: int | str | None = None


class CachedTokens(msgspec.Struct, kw_only=True):
    cached_tokens: int = 0


class ResultUsage(msgspec.Struct, kw_only=True):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: CachedTokens | None = None
    reasoning_tokens: int | None = 0

    @property
    def cached(self) -> int:
        """Prompt tokens that the prefix cache had; 0 without --enable-cache-report."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else 0

    @property
    def output(self) -> int:
        return self.completion_tokens or 0


class ResultError(msgspec.Struct, kw_only=True):
    message: str
    code: int | str | None = None


class ChatResult(msgspec.Struct, kw_only=True):
    """A whole answer of the chat path, or one event of its stream."""

    id: str = ""
    created: int = 0
    model: str = ""
    choices: list[ResultChoice] = []
    usage: ResultUsage | None = None
    error: ResultError | None = None
    code: int | None = None
    """the status of an error"""


_RESULT = msgspec.json.Decoder(ChatResult)
_DATA = b"data: "
_DONE = b"[DONE]"


Params = ChatRequest | CompletionRequest


async def run(
    context: Context,
    http: web.Request,
    body: Body,
    params: Params,
    arrival: float,
    form: StreamForm | None = None,
) -> web.StreamResponse:
    """The answer of the path that takes `params`; of a stream with its events in another `form`."""
    if form is not None:
        http[STREAM_FORM] = form
    if isinstance(params, CompletionRequest):
        return await answer_completions(context, http, body, params, arrival)
    return await answer_chat(context, http, body, params, arrival)


async def complete(
    context: Context, http: web.Request, body: Body, params: Params, arrival: float
) -> ChatResult:
    """What a whole answer says. BadRequest or HTTPError as of the path that takes `params`, and
    BadRequest when it was aborted."""
    response = await run(context, http, body, params, arrival)
    assert isinstance(response, web.Response) and isinstance(response.body, bytes)
    result = _RESULT.decode(response.body)
    if result.choices[0].finish_reason == "abort":
        raise BadRequest("", ABORTED_ANSWER)
    return result


ABORTED_ANSWER = "the request was aborted"


def read_events(data: bytes) -> Iterator[ChatResult | None]:
    """The events in what a chat stream says at a time; None for its end."""
    for line in data.split(b"\n\n"):
        if line:
            text = line.removeprefix(_DATA)
            yield None if text == _DONE else _RESULT.decode(text)


def chat_request(fields: Mapping[str, Any]) -> ChatRequest:
    """The request of the chat path with these fields and no messages yet; what is None is left out.
    BadRequest for values that the chat path does not take."""
    return _request({"messages": [], **fields}, ChatRequest)


def completion_request(fields: Mapping[str, Any]) -> CompletionRequest:
    """The same of text completions, which answer with all that the context has room for."""
    return _request({"max_tokens": None, **fields}, CompletionRequest)


def goes_on(messages: Sequence[Message]) -> bool:
    """Whether the last message is the beginning of an answer, which is to be gone on with."""
    last = messages[-1] if messages else None
    said = last is not None and last.role == "assistant" and not last.tool_calls
    return said and bool(last and last.content)


_PLACE = re.compile(r"\b(?:tools\[\d+\]|response_format)(?:\.\w+)*")
"""of what a body may have by another name, in what is said of another field"""

P = TypeVar("P", ChatRequest, CompletionRequest)


def _request(fields: Mapping[str, Any], kind: type[P]) -> P:
    given = {
        name: value for name, value in fields.items() if value is not None or name == "max_tokens"
    }
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise validation_error(str(error)) from None


def renamed(name: str, table: Mapping[str, str]) -> str:
    """What a body calls a field of the chat path, also one inside a field that `table` has."""
    for inner in sorted(table, key=len, reverse=True):
        if name == inner or name.startswith((f"{inner}.", f"{inner}[")):
            return table[inner] + name.removeprefix(inner)
    return name


@contextmanager
def own_names(rename: Callable[[str], str]) -> Iterator[None]:
    """Errors raised inside, also by the engine, name the fields of the body that came, not those
    of the chat path; so do other places in what they say."""

    def own_places(text: str) -> str:
        return _PLACE.sub(lambda place: rename(place[0]), text)

    try:
        yield
    except BadRequest as error:
        raise error.of_field(rename(error.field), own_places(error.reason)) from None
    except HTTPError as error:
        if error.param is not None:
            own = rename(error.param)
            error.message = own + own_places(error.message.removeprefix(error.param))
            error.param = own
        raise


def call_arguments(given: str) -> msgspec.Raw:
    """The arguments of a call as an object, which clients of these APIs and next turns rely on: of
    one that was cut off what is whole, of what is none, or nests too deep to be read, {}."""
    for text in (given, whole_part(given)):
        try:
            msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            continue
        return msgspec.Raw(text.encode())
    return msgspec.Raw(b"{}")
