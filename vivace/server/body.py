"""Reading and decoding of request bodies: limits first, then one strict msgspec pass."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Generic, TypeVar

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from vivace.frontend.errors import BadRequest
from vivace.server.context import Context
from vivace.server.errors import Refusal
from vivace.server.fields import refuse_unsupported as refuse_unsupported
from vivace.server.fields import validation_error
from vivace.server.http_metrics import UNKNOWN_FIELD

T = TypeVar("T")

log = logging.getLogger("vivace.server")


class Reader(Generic[T]):
    """Decodes bodies into a struct. A field the struct does not know is ignored, as SGLang and
    OpenAI's servers do, but the request is counted and the field is named in the debug log."""

    def __init__(self, kind: type[T]) -> None:
        strict: Any = msgspec.defstruct(
            kind.__name__, [], bases=(kind,), kw_only=True, forbid_unknown_fields=True
        )
        self._strict = msgspec.json.Decoder(strict)
        self._lenient = msgspec.json.Decoder(kind)

    def read(self, context: Context, data: bytes) -> T:
        """BadRequest names the field and the reason."""
        try:
            return self._strict.decode(data)
        except (ValueError, RecursionError) as error:
            reason = error
        asked = decode(data, self._lenient)  # raises when more is wrong than an unknown field
        context.http_metrics.note(UNKNOWN_FIELD)
        log.debug("a request brings more than is known: %s", reason)
        return asked


async def read_body(request: web.Request, limit: int, timeout: float) -> bytes:
    """All bytes of the body: 413 as soon as it passes `limit`, 408 after `timeout` seconds."""
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise Refusal(415, f"Content-Encoding {encoding!r} is not accepted; send the body plain")
    if (request.content_length or 0) > limit:
        raise too_large(limit)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout):
            while chunk := await request.content.readany():
                size += len(chunk)
                if size > limit:
                    raise too_large(limit)
                chunks.append(chunk)
    except TimeoutError:
        raise Refusal(
            408,
            f"the request body did not arrive within {timeout:g} s",
            headers={"Connection": "close"},
        ) from None
    except (HttpProcessingError, web.RequestPayloadError) as error:
        raise Refusal(400, f"the request body is malformed: {error}") from None
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def too_large(limit: int) -> Refusal:
    """The 413 answer; the connection is closed because the rest of the body is not read."""
    return Refusal(
        413,
        f"the request body is larger than the limit of {limit} bytes",
        headers={"Connection": "close"},
    )


def decode(data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode JSON into the decoder's struct; BadRequest names the field and the reason."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise validation_error(str(error)) from None
    except UnicodeDecodeError:
        raise BadRequest("body", "is not valid UTF-8") from None
    except msgspec.DecodeError as error:
        raise BadRequest("body", f"is not valid JSON: {error}") from None
    except RecursionError:
        raise BadRequest("body", "is nested too deeply") from None
    except ValueError as error:
        raise BadRequest("body", f"cannot be decoded: {error}") from None
