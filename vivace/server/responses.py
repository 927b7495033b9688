"""JSON answers, whole or in parts, and errors as clients expect them: OpenAI's `{"error": {...}}`
and SGLang's flat fields at once."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import msgspec
from aiohttp import web

from vivace.frontend.fairness import Work

KINDS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    417: "ExpectationFailedError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
    504: "TimeoutError",
    505: "HTTPVersionNotSupportedError",
}


MAX_MESSAGE_CHARACTERS = 4096
"""Characters. Messages quote what came from outside."""


class HTTPError(Exception):
    """An answer other than 2xx. `code` is OpenAI's machine-readable code, if there is one."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.headers = headers or {}


class ErrorForm(Protocol):
    """The body of an error answer in some API's form."""

    def __call__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> dict[str, Any]: ...


def error_body(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The body of an error answer; also sent inside a stream that fails half-way."""
    message = message_text(message)
    param = None if param is None else message_text(param)
    kind = KINDS.get(status, "InternalServerError" if status >= 500 else "BadRequestError")
    return {
        "object": "error",
        "message": message,
        "type": kind,
        "param": param,
        "code": status,
        "error": {"message": message, "type": kind, "param": param, "code": code or status},
    }


def message_text(text: str) -> str:
    """The text as UTF-8 can have it, and no longer than a message may be: headers keep bytes that
    are no UTF-8 as lone surrogates."""
    if len(text) > MAX_MESSAGE_CHARACTERS:
        text = text[:MAX_MESSAGE_CHARACTERS] + "..."
    return text.encode("utf-8", "backslashreplace").decode()


def error_response(error: HTTPError, form: ErrorForm = error_body) -> web.Response:
    """JSON answer for a refusal, with Retry-After where waiting helps."""
    headers = dict(error.headers)
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    body = form(error.status, error.message, param=error.param, code=error.code)
    return web.Response(
        status=error.status,
        body=msgspec.json.encode(body),
        content_type="application/json",
        headers=headers,
    )


def json_response(value: Any, *, status: int = 200) -> web.Response:
    """A JSON answer; values JSON has no form for are shown as text."""
    return web.Response(
        status=status,
        body=msgspec.json.encode(value, enc_hook=str),
        content_type="application/json",
    )


def text_response(text: str, *, status: int = 200) -> web.Response:
    return web.Response(status=status, text=text, content_type="text/plain")


ROWS = 4
"""Tokens whose log-probabilities are encoded without a pause: hundreds of numbers each."""


SEGMENT = 1 << 16
"""Bytes up to which new entries are added to the last segment of an `EncodedList`."""


class EncodedList:
    """JSON of a list that grows. Its segments are kept as they are: to show it again copies
    nothing."""

    def __init__(self) -> None:
        self._segments: list[bytes] = []

    def __bool__(self) -> bool:
        return any(self._segments)

    def extend(self, entries: list[Any]) -> None:
        data = msgspec.json.encode(entries, enc_hook=str)[1:-1]
        segments = self._segments
        if not segments:
            segments.append(data)
        elif len(segments[-1]) < SEGMENT:
            segments[-1] = b",".join((segments[-1], data)) if segments[-1] else data
        elif data:
            segments.append(b"," + data)

    def parts(self) -> list[bytes]:
        """The whole list, to be written one after the other."""
        return [b"[", *self._segments, b"]"]


def batches(entries: Iterable[Any], run: int = ROWS) -> Iterator[list[Any]]:
    """`run` entries at a time."""
    rest = iter(entries)
    while batch := list(islice(rest, run)):
        yield batch


def encode_list(entries: Iterable[Any], run: int = 1) -> Work[msgspec.Raw]:
    """The entries as a JSON list, `run` of them without a pause."""
    parts: list[bytes] = []
    for batch in batches(entries, run):
        parts.append(msgspec.json.encode(batch, enc_hook=str)[1:-1])
        yield
    return msgspec.Raw(b"[%b]" % b",".join(parts))


JOINED = 1 << 18
"""Bytes up to which the parts become one body."""


async def json_parts(http: web.Request, parts: Sequence[bytes]) -> web.StreamResponse:
    """The answer to `http`: a long one is written as fast as the client reads it."""
    size = sum(map(len, parts))
    if size <= JOINED:
        return web.Response(body=b"".join(parts), content_type="application/json")
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = size
    await response.prepare(http)
    for part in parts:
        await response.write(part)
    await response.write_eof()
    return response


def free_frames(error: BaseException) -> None:
    """Drop what the functions that raised it held, such as a body. A variable of theirs that holds
    the error keeps all of it otherwise, until the garbage collector comes: it counts objects, not
    bytes, so that may take minutes."""
    chain: BaseException | None = error
    while chain is not None:
        traceback.clear_frames(chain.__traceback__)
        chain = chain.__context__
