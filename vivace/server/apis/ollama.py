"""POST /api/chat and /api/generate: Ollama's API."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
from aiohttp import web

from vivace.frontend.fields import refuse_unsupported
from vivace.server.apis.chat_run import (
    ABORTED_ANSWER,
    ChatResult,
    ResultCall,
    ResultChoice,
    ResultMessage,
    ResultUsage,
    call_arguments,
    complete,
    goes_on,
    own_names,
    read_events,
    run,
)
from vivace.server.apis.ollama_request import (
    read_chat,
    read_messages,
    read_prompt,
    read_raw,
    rename_chat,
    rename_generate,
)
from vivace.server.apis.ollama_schema import (
    GENERATE_REFUSED,
    OLLAMA_REFUSED,
    OllamaAnswer,
    OllamaAnswerMessage,
    OllamaChatAnswer,
    OllamaChatRequest,
    OllamaGenerateAnswer,
    OllamaGenerateRequest,
)
from vivace.server.body import Body, BodyReader
from vivace.server.context import Context
from vivace.server.openai.response import TIMINGS
from vivace.server.openai.schema import ChatRequest, CompletionRequest
from vivace.server.responses import json_response, message_text
from vivace.server.sse import StreamForm

CHAT = BodyReader(OllamaChatRequest)
GENERATE = BodyReader(OllamaGenerateRequest)
NANOSECONDS = 1e9
LOADED = "load"
"""the reason of an answer to a request that only asks for the model to be there"""
UNLOADED = "unload"
"""the same where it says that nobody needs it any more"""
HEADERS = {"Content-Type": "application/x-ndjson"}

Show = Callable[[ResultMessage, dict[str, Any]], OllamaAnswer]
"""What an answer, or what is new of it, looks like; the fields are those of `OllamaAnswer`."""


async def chat(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """Answer a conversation."""
    arrival = time.monotonic()
    params = await CHAT.read(context, body)
    if not params.messages:
        return loaded(context, show_message, params.keep_alive)
    refuse_unsupported(params, OLLAMA_REFUSED)
    with own_names(rename_chat):
        request = read_chat(params, new_rid())
        request.messages = await context.slicer.run(read_messages(params.messages))
        request.continue_final_message = goes_on(request.messages)
        return await answer(context, http, body, request, arrival, show_message)


async def generate(context: Context, http: web.Request, body: Body) -> web.StreamResponse:
    """Answer a prompt: through the chat template, or as it stands."""
    arrival = time.monotonic()
    params = await GENERATE.read(context, body)
    if not params.prompt and not params.suffix:
        return loaded(context, show_response, params.keep_alive)
    refuse_unsupported(params, GENERATE_REFUSED)
    tokenizer = context.tokenizer("prompt")
    with own_names(rename_generate):
        raw = params.raw or params.suffix or tokenizer.chat is None
        request = (read_raw if raw else read_prompt)(params, new_rid())
        return await answer(context, http, body, request, arrival, show_response)


def new_rid() -> str:
    return f"ollama_{secrets.token_hex(12)}"


def loaded(context: Context, show: Show, keep_alive: Any) -> web.Response:
    """To a request that has nothing to answer. Nothing is unloaded, whatever it says."""
    reason = UNLOADED if is_zero(keep_alive) else LOADED
    fields = {"model": context.served.name, "created_at": now(), "done_reason": reason}
    return json_response(show(ResultMessage(), {**fields, "done": True}))


def is_zero(duration: Any) -> bool:
    """Seconds, or a text such as 0, 0s and 0h0m."""
    if isinstance(duration, str):
        return re.fullmatch(r"0|(?:0+(?:\.0*)?(?:ns|us|ms|s|m|h))+", duration) is not None
    return not isinstance(duration, bool) and duration == 0


async def answer(
    context: Context,
    http: web.Request,
    body: Body,
    request: ChatRequest | CompletionRequest,
    arrival: float,
    show: Show,
) -> web.StreamResponse:
    """Run the request; one object, or lines of them."""
    if request.stream:
        lines = OllamaLines(show, arrival)
        form = StreamForm(headers=HEADERS, convert=lines.convert, failure=failure)
        return await run(context, http, body, request, arrival, form)
    result = await complete(context, http, body, request, arrival)
    choice = result.choices[0]
    first = http[TIMINGS].get("first", 0.0)
    counts = end_fields(choice, result.usage, first, time.monotonic() - arrival)
    fields = {**line_fields(result), **choice_logprobs(choice), **counts}
    return json_response(show(choice.message or ResultMessage(content=choice.text), fields))


# -- what lines and answers have -------------------------------------------------------------------


def show_message(message: ResultMessage, fields: dict[str, Any]) -> OllamaChatAnswer:
    shown = OllamaAnswerMessage(
        role="assistant",
        content=message.content or "",
        thinking=message.reasoning_content or None,
        tool_calls=[show_call(call) for call in message.tool_calls or ()] or None,
    )
    return OllamaChatAnswer(message=shown, **fields)


def show_response(message: ResultMessage, fields: dict[str, Any]) -> OllamaGenerateAnswer:
    thinking = message.reasoning_content or None
    return OllamaGenerateAnswer(response=message.content or "", thinking=thinking, **fields)


def show_call(call: ResultCall) -> dict[str, Any]:
    """A call with its arguments as an object."""
    name = call.function.name or ""
    arguments = call_arguments(call.function.arguments or "")
    function = {"index": call.index or 0, "name": name, "arguments": arguments}
    return {"id": call.id, "function": function} if call.id else {"function": function}


def line_fields(result: ChatResult) -> dict[str, Any]:
    return {"model": result.model, "created_at": now()}


def choice_logprobs(choice: ResultChoice) -> dict[str, Any]:
    found = choice.logprobs
    return {} if found is None or found.content is None else {"logprobs": found.content}


def end_fields(
    choice: ResultChoice, usage: ResultUsage | None, first: float, total: float
) -> dict[str, Any]:
    """Of the last line. `first` and `total`: seconds until the first token, and until the end."""
    counts = usage or ResultUsage()
    return {
        "done": True,
        "done_reason": "length" if choice.finish_reason == "length" else "stop",
        "total_duration": int(total * NANOSECONDS),
        "load_duration": 0,
        "prompt_eval_count": counts.prompt_tokens,
        "prompt_eval_duration": int(first * NANOSECONDS),
        "eval_count": counts.output,
        "eval_duration": int(max(total - first, 0.0) * NANOSECONDS),
    }


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def ollama_error(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The body of an error answer, also a line in a stream that fails half-way."""
    del status, param, code
    return {"error": message_text(message)}


def line(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def failure() -> bytes:
    """The end of a stream that an error of ours ends."""
    return line(ollama_error(500, "internal error"))


class OllamaLines:
    """Turns the events of one stream into lines. Tool calls come whole, each in a line of its own,
    when the next one begins or the answer ends."""

    def __init__(self, show: Show, arrival: float) -> None:
        self._show = show
        self._arrival = arrival
        self._first: float | None = None
        """seconds until the first token"""
        self._failed = False
        self._last = ChatResult()
        self._choice = ResultChoice()
        self._usage: ResultUsage | None = None
        self._call: ResultCall | None = None
        """the one whose arguments are coming"""
        self._arguments: list[str] = []
        """what has come of them"""

    def convert(self, data: bytes) -> bytes:
        """The lines of complete events."""
        return b"".join(part for result in read_events(data) for part in self._parts(result))

    def _parts(self, result: ChatResult | None) -> Iterator[bytes]:
        if self._failed:
            return
        if self._first is None:
            self._first = time.monotonic() - self._arrival
        if result is None:
            yield from self._end()
            return
        if result.error is not None:
            self._failed = True
            yield line(ollama_error(result.code or 500, result.error.message))
            return
        self._last = result
        self._usage = result.usage or self._usage
        for choice in result.choices:
            if choice.finish_reason is not None:
                self._choice = choice
            yield from self._news(choice)

    def _news(self, choice: ResultChoice) -> Iterator[bytes]:
        delta = choice.delta or ResultMessage(content=choice.text)
        for call in delta.tool_calls or ():
            yield from self._add(call)
        if delta.content or delta.reasoning_content or choice.logprobs is not None:
            yield from self._whole_call()
            message = ResultMessage(
                content=delta.content, reasoning_content=delta.reasoning_content
            )
            yield self._line(message, choice_logprobs(choice))

    def _add(self, part: ResultCall) -> Iterator[bytes]:
        """A call begins, or says more of its arguments."""
        if self._call is None or self._call.index != part.index:
            yield from self._whole_call()
            self._call = part
        self._arguments.append(part.function.arguments or "")

    def _whole_call(self) -> Iterator[bytes]:
        call, self._call = self._call, None
        if call is not None:
            call.function.arguments = "".join(self._arguments)
            self._arguments = []
            yield self._line(ResultMessage(tool_calls=[call]), {})

    def _line(self, message: ResultMessage, fields: dict[str, Any]) -> bytes:
        return line(self._show(message, {**line_fields(self._last), "done": False, **fields}))

    def _end(self) -> Iterator[bytes]:
        if self._choice.finish_reason == "abort":
            yield line(ollama_error(500, ABORTED_ANSWER))
            return
        yield from self._whole_call()
        total = time.monotonic() - self._arrival
        counts = end_fields(self._choice, self._usage, self._first or 0.0, total)
        yield line(self._show(ResultMessage(), {**line_fields(self._last), **counts}))
