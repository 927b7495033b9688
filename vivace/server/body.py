"""Request bodies: limits and memory first, then JSON into a struct. Small bodies are decoded at
once; large ones are looked over first (`json_scan`), and their lists are decoded in pieces."""

from __future__ import annotations

import asyncio
import codecs
import logging
import re
from collections import deque
from itertools import accumulate
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import Work
from vivace.frontend.fields import validation_error
from vivace.requests.json_scan import (
    PART_BYTES,
    WINDOW,
    Data,
    ListField,
    ListSpan,
    Scan,
    too_deep,
)
from vivace.requests.limits import DEPTH, VALUES
from vivace.requests.long_texts import LongTexts
from vivace.server.http_metrics import UNKNOWN_FIELD
from vivace.server.responses import HTTPError

if TYPE_CHECKING:
    from vivace.server.context import BodyBudget, Context, Share


class Body:
    """The bytes of one body. They are taken once, to be decoded; their share of the memory for
    bodies is held until the request is on its way.

    `lists`: long ones that were in it, to be freed in slices (`discard`)."""

    def __init__(self, data: bytes | bytearray = b"", share: Share | None = None) -> None:
        self._data = data
        self._share = share
        self.lists: list[Any] = []

    def take(self) -> bytes | bytearray:
        """The bytes, which are kept here no longer."""
        data, self._data = self._data, b""
        return data

    def release(self) -> None:
        """What came of the body is checked and on its way."""
        self._data = b""
        if self._share is not None:
            self._share.release()


async def read_body(request: web.Request, limit: int, timeout: float, budget: BodyBudget) -> Body:
    """The whole body: 413 as soon as it passes `limit`, 408 after `timeout` seconds, 503 when
    too much of other bodies is there already."""
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise HTTPError(415, f"Content-Encoding {encoding!r} is not accepted; send the body plain")
    if (request.content_length or 0) > limit:
        raise too_large(limit)
    loop = asyncio.get_running_loop()
    share: Share | None = None
    try:
        async with asyncio.timeout(timeout) as deadline:
            share = budget.share(lambda: deadline.reschedule(loop.time()))
            data = await _arrival(request, limit, share)
    except BaseException as error:
        if share is not None:
            share.release()
        raise _read_error(error, timeout) from None
    share.complete = True
    return Body(data, share)


async def _arrival(request: web.Request, limit: int, share: Share) -> bytes | bytearray:
    """The bytes of a body, whose number is checked while they come."""
    data: bytes | bytearray = b""
    size = 0
    while chunk := await request.content.readany():
        size += len(chunk)
        if size > limit:
            raise too_large(limit)
        share.take(len(chunk))
        if not data:
            data = chunk
            continue
        if isinstance(data, bytes):
            data = bytearray(data)
        data += chunk
    return data


def _read_error(error: BaseException, timeout: float) -> BaseException:
    """What the client is told about a body that did not come."""
    if isinstance(error, TimeoutError):
        return HTTPError(
            408,
            f"the request body did not arrive within {timeout:g} s, or too slowly for the "
            "memory it holds",
            headers={"Connection": "close"},
        )
    if isinstance(error, HttpProcessingError | web.RequestPayloadError):
        return HTTPError(400, f"the request body is malformed: {error}")
    return error


def too_large(limit: int) -> HTTPError:
    """The 413 answer; the connection is closed because the rest of the body is not read."""
    return HTTPError(
        413,
        f"the request body is larger than the limit of {limit} bytes"
        if limit
        else "a body came with a request that takes none; send it without",
        headers={"Connection": "close"},
    )


# -- decoding --------------------------------------------------------------------------------------

T = TypeVar("T")

log = logging.getLogger("vivace.server")

SMALL = 64 << 10
"""Bytes of a body that is decoded at once: less than 3 ms, whatever it holds."""
_IDS = msgspec.json.Decoder(list[int], strict=False)
_UNKNOWN = "contains unknown field"
"""msgspec's words"""
_TOO_LONG = re.compile(r"of length <= (\d+)")
_NULL_TEXT = re.compile(
    rb'"(?:n|\\u00[46]e)(?:u|\\u00[57]5)(?:l|\\u00[46]c)(?:l|\\u00[46]c)"', re.IGNORECASE
)
_ANOTHER_TEXT = b'"no null"'
"""msgspec takes the text null for null: where another text is refused, so is this one"""
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")

_STEPS = bytes.maketrans(b"[{]}", b"\1\1\xff\xff")
"""Of the depth at a bracket, as signed bytes."""
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class BodyReader(Generic[T]):
    """Decodes bodies into a struct. A field the struct does not know is ignored, as SGLang and
    OpenAI's servers do, but the request is counted and the field is named in the debug log.

    Numbers may be spelled as those servers take them: 5 as 5.0 or "5", true as 1 or "true". The
    text "null" is no null: it is refused where a text is."""

    def __init__(self, kind: type[T]) -> None:
        strict: Any = msgspec.defstruct(
            kind.__name__, [], bases=(kind,), kw_only=True, forbid_unknown_fields=True
        )
        self._strict = msgspec.json.Decoder(strict, strict=False)
        self._lenient = msgspec.json.Decoder(kind, strict=False)
        lists = list_fields(kind)
        self._fields = {name: found for name, (found, _) in lists.items()}
        self._entries = {
            name: msgspec.json.Decoder(list[entry], strict=False)
            for name, (_, entry) in lists.items()
        }

    async def read(self, context: Context, body: Body, default: bytes = b"") -> T:
        """The struct in `body` (or in `default` when it is empty); BadRequest names the field and
        the reason."""
        data = body.take() or default
        if data.startswith(codecs.BOM_UTF8):  # editors on Windows write it; SGLang skips it too
            data = data[len(codecs.BOM_UTF8) :]
        if len(data) > SMALL:
            return await context.slicer.run(self._large(context, data, body.lists))
        if not is_shallow(data):
            raise too_deep()
        if not data.isascii():
            for _ in check_utf8(data):
                pass
        return self._decode(context, data)

    def _large(self, context: Context, data: Data, lists: list[Any]) -> Work[T]:
        yield from check_utf8(data)
        scan = Scan(data, self._fields)
        yield from scan.run()
        texts = LongTexts()
        if scan.strings:
            data = yield from texts.take_out(data, scan.strings)
            scan = Scan(data, self._fields)
            yield from scan.run()
        long = [cuts for cuts in scan.cuts if cuts.commas or cuts.rows]
        rest = part(data, 0, len(data), long, "body")
        params = yield from texts.put_back(self._decode(context, rest), rest)
        for name, cuts in {cuts.name: cuts for cuts in scan.cuts}.items():  # the last one counts
            if (cuts.commas or cuts.rows) and getattr(params, name) == []:
                lists.append([])
                setattr(params, name, lists[-1])
                yield from self._pieces(data, cuts, lists[-1], texts)
        return params

    def _pieces(self, data: Data, cuts: ListSpan, found: list[Any], texts: LongTexts) -> Work[None]:
        """Put the entries of a list into `found`, decoded piece by piece."""
        decoder = self._entries[cuts.name]
        rows = deque(cuts.rows.items())
        start = cuts.start
        for end in (*cuts.commas, cuts.end):
            inside: list[tuple[int, ListSpan]] = []
            while rows and rows[0][1].start < end:
                inside.append(rows.popleft())
            place = f"{cuts.name}[{len(found)}]"
            raw = b"[%b]" % part(data, start, end, [row for _, row in inside], place)
            piece = decode_piece(decoder, raw, cuts.name, len(found))
            found += yield from texts.put_back(piece, raw)
            start = end + 1
            yield
            for number, row in inside:
                yield from read_row(data, row, f"{cuts.name}[{number}]", found[number])

    def _decode(self, context: Context, data: Data) -> T:
        if _NULL_TEXT.search(data):
            decode(_NULL_TEXT.sub(_ANOTHER_TEXT, data), self._lenient)
        try:
            return self._strict.decode(data)
        except (ValueError, RecursionError) as error:
            reason = str(error)  # the error itself would keep this frame, and so the body
            if _UNKNOWN not in reason:
                raise decoding_error(error, data) from None
        params = decode(data, self._lenient)  # raises when more is wrong than an unknown field
        context.http_metrics.note(UNKNOWN_FIELD)
        log.debug("a request brings more than is known: %s", reason)
        return params


def list_fields(kind: Any) -> dict[str, tuple[ListField, Any]]:
    """The fields of a struct whose values may be lists, with the type of their entries."""
    found: dict[str, tuple[ListField, Any]] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for choice in (hint, *get_args(hint)):
            if choice is Any:
                found[name] = ListField(VALUES, False), Any
            elif get_origin(choice) is Annotated and get_origin(get_args(choice)[0]) is list:
                listed, meta = get_args(choice)
                (entry,) = get_args(listed)
                found[name] = (
                    ListField(meta.max_length, ids=holds_ids(entry)),
                    entry,
                )
    return found


def holds_ids(hint: Any) -> bool:
    """Whether it is a number, or may have some in it."""
    return hint is int or any(map(holds_ids, get_args(hint)))


def part(data: Data, start: int, end: int, lists: list[ListSpan], place: str) -> Data:
    """A part of the body with empty lists in place of these. BadRequest when it is too long to be
    decoded without a pause."""
    parts: list[Data] = []
    for cuts in lists:
        parts.append(data[start : cuts.start])
        start = cuts.end
    parts.append(data[start:end])
    size = sum(map(len, parts))
    if size > PART_BYTES:
        raise BadRequest(
            place,
            f"has {size} bytes of names, numbers, blanks and short strings; "
            f"at most {PART_BYTES} are allowed",
        )
    return b"".join(parts) if lists else parts[0]


def decode_piece(
    decoder: msgspec.json.Decoder[list[Any]], raw: bytes, name: str, offset: int
) -> list[Any]:
    """The entries of a piece of the list `name`, which begins with entry `offset`."""
    try:
        if _NULL_TEXT.search(raw):
            decoder.decode(_NULL_TEXT.sub(_ANOTHER_TEXT, raw))
        piece = decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise validation_error(_shift_index(str(error), name, offset)) from None
    except (ValueError, RecursionError) as error:
        raise BadRequest(name, f"is not valid JSON: {error}") from None
    if not piece:
        raise BadRequest(name, "is not valid JSON: two commas in a row")
    return piece


def read_row(data: Data, row: ListSpan, name: str, ids: list[int]) -> Work[None]:
    """Put a long list of ids, which is an entry of a list, into `ids`."""
    start = row.start
    for end in (*row.commas, row.end):
        ids += decode_piece(_IDS, b"[%b]" % data[start:end], name, len(ids))
        start = end + 1
        yield


def decode(data: Data, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode JSON into the decoder's struct; BadRequest names the field and the reason."""
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise decoding_error(error, data) from None


def decoding_error(error: Exception, data: Data) -> BadRequest:
    """What a decoder's error says to the client."""
    match error:
        case msgspec.ValidationError():
            return too_long(str(error), data) or validation_error(str(error))
        case UnicodeDecodeError():
            return BadRequest("body", "is not valid UTF-8")
        case msgspec.DecodeError():
            return BadRequest("body", f"is not valid JSON: {error}")
        case RecursionError():
            return BadRequest("body", "is nested too deeply")
    return BadRequest("body", f"cannot be decoded: {error}")


def too_long(text: str, data: Data) -> BadRequest | None:
    """The refusal of a list or an object that is too long; of a small body with its length, for
    which all is decoded again."""
    limit = _TOO_LONG.search(text)
    if limit is None:
        return None
    problem = validation_error(text)
    if len(data) > SMALL:
        return BadRequest(problem.field, f"has too many entries; at most {limit[1]} are allowed")
    value: Any = msgspec.json.decode(data)
    try:
        for name, index in _STEP.findall("." + problem.field):
            value = value[name] if name else value[int(index)]
    except (LookupError, TypeError):
        return problem
    return BadRequest(problem.field, f"has {len(value)} entries; at most {limit[1]} are allowed")


def _shift_index(text: str, name: str, offset: int) -> str:
    """An error in a piece of a list, with the place in the list."""
    return re.sub(
        r"\$\[(\d+)\]", lambda found: f"$.{name}[{offset + int(found[1])}]", text, count=1
    )


def is_shallow(data: Data) -> bool:
    """Whether a small body is nested at most DEPTH deep, if its brackets match at all."""
    if data.count(b"[") + data.count(b"{") <= DEPTH:
        return True
    plain = b"".join(data.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])
    steps = memoryview(plain.translate(_STEPS, _NO_BRACKETS)).cast("b")
    return max(accumulate(steps), default=0) <= DEPTH


def check_utf8(data: Data) -> Work[None]:
    """BadRequest when a body is not UTF-8, also where a decoder would skip it."""
    if data.isascii():
        return
    read = codecs.getincrementaldecoder("utf-8")().decode
    try:
        for place in range(0, len(data), WINDOW):
            read(data[place : place + WINDOW])
            yield
        read(b"", True)
    except UnicodeDecodeError:
        raise BadRequest("body", "is not valid UTF-8") from None
