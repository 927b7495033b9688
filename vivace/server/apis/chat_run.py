"""The chat path as other APIs use it: a `ChatRequest` in, and out what its answer says.

An adapter turns its own body into a `ChatRequest`, and what comes back into its own objects. So
whatever the chat path learns to say (tool calls, reasoning) it can say too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import validation_error
from vivace.server.body import Body
from vivace.server.context import Context
from vivace.server.openai.chat import answer_chat
from vivace.server.openai.schema import ChatRequest
from vivace.server.sse import STREAM_FORM, StreamForm


class ResultFunction(msgspec.Struct, kw_only=True):
    name: str | None = None
    arguments: str | None = None


class ResultCall(msgspec.Struct, kw_only=True):
    """A tool call, or what is new of one: then `arguments` is a part of their JSON."""

    function: ResultFunction
    id: str | None = None
    index: int | None = None


class ResultMessage(msgspec.Struct, kw_only=True):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ResultCall] | None = None


class ResultChoice(msgspec.Struct, kw_only=True):
    """`message` is that of a whole answer, `delta` what is new in an event."""

    message: ResultMessage | None = None
    delta: ResultMessage | None = None
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


async def complete_chat(
    context: Context, http: web.Request, body: Body, params: ChatRequest, arrival: float
) -> ChatResult:
    """The whole answer to a conversation. BadRequest or HTTPError as of the chat path, and
    BadRequest when it was aborted."""
    response = await answer_chat(context, http, body, params, arrival)
    assert isinstance(response, web.Response) and isinstance(response.body, bytes)
    result = _RESULT.decode(response.body)
    if result.choices[0].finish_reason == "abort":
        raise BadRequest("", ABORTED_ANSWER)
    return result


ABORTED_ANSWER = "the request was aborted"


async def stream_chat(
    context: Context,
    http: web.Request,
    body: Body,
    params: ChatRequest,
    arrival: float,
    form: StreamForm,
) -> web.StreamResponse:
    """The answer to a conversation as events of another API."""
    http[STREAM_FORM] = form
    return await answer_chat(context, http, body, params, arrival)


def read_events(data: bytes) -> Iterator[ChatResult | None]:
    """The events in what a chat stream says at a time; None for its end."""
    for line in data.split(b"\n\n"):
        if line:
            text = line.removeprefix(_DATA)
            yield None if text == _DONE else _RESULT.decode(text)


def chat_request(fields: Mapping[str, Any]) -> ChatRequest:
    """The request of the chat path with these fields and no messages yet; what is None is left out.
    BadRequest for values that the chat path does not take."""
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return msgspec.convert({"messages": [], **given}, ChatRequest)
    except msgspec.ValidationError as error:
        raise validation_error(str(error)) from None


@contextmanager
def own_names(rename: Callable[[str], str]) -> Iterator[None]:
    """Errors raised inside name the fields of the body that came, not those of the chat path."""
    try:
        yield
    except BadRequest as error:
        raise error.of_field(rename(error.field)) from None
