"""From the bytes of a body to a struct. Small bodies are decoded at once; large ones are looked
over first (`structure`), and their lists are decoded in pieces."""

from __future__ import annotations

import logging
import re
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from vivace.frontend.errors import BadRequest
from vivace.server.body import Body
from vivace.server.context import Context
from vivace.server.fields import validation_error
from vivace.server.http_metrics import UNKNOWN_FIELD
from vivace.server.limits import VALUES
from vivace.server.pace import Work
from vivace.server.structure import Cuts, Data, ListField, Scan, check_utf8, is_shallow, too_deep

T = TypeVar("T")

log = logging.getLogger("vivace.server")

SMALL = 64 << 10
"""Bytes of a body that is decoded at once: less than 3 ms, whatever it holds."""
_TOO_LONG = re.compile(r"of length <= (\d+)")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")


class Reader(Generic[T]):
    """Decodes bodies into a struct. A field the struct does not know is ignored, as SGLang and
    OpenAI's servers do, but the request is counted and the field is named in the debug log."""

    def __init__(self, kind: type[T]) -> None:
        strict: Any = msgspec.defstruct(
            kind.__name__, [], bases=(kind,), kw_only=True, forbid_unknown_fields=True
        )
        self._strict = msgspec.json.Decoder(strict)
        self._lenient = msgspec.json.Decoder(kind)
        lists = list_fields(kind)
        self._fields = {name: found for name, (found, _) in lists.items()}
        self._entries = {
            name: msgspec.json.Decoder(list[entry]) for name, (_, entry) in lists.items()
        }

    async def read(self, context: Context, body: Body, default: bytes = b"") -> T:
        """The struct in `body` (or in `default` when it is empty); BadRequest names the field and
        the reason."""
        data = body.take() or default
        if len(data) > SMALL:
            return await context.pace.run(self._large(context, data))
        if not is_shallow(data):
            raise too_deep()
        if not data.isascii():
            for _ in check_utf8(data):
                pass
        return self._decode(context, data)

    def _large(self, context: Context, data: Data) -> Work[T]:
        yield from check_utf8(data)
        scan = Scan(data, self._fields)
        yield from scan.run()
        long = [cuts for cuts in scan.cuts if cuts.commas]
        asked = self._decode(context, without(data, long) if long else data)
        for name, cuts in {cuts.name: cuts for cuts in scan.cuts}.items():  # the last one counts
            if cuts.commas and getattr(asked, name) == []:
                setattr(asked, name, (yield from self._pieces(data, cuts)))
        return asked

    def _pieces(self, data: Data, cuts: Cuts) -> Work[list[Any]]:
        """The entries of a list, decoded piece by piece."""
        decoder = self._entries[cuts.name]
        found: list[Any] = []
        start = cuts.start
        for end in (*cuts.commas, cuts.end):
            try:
                piece = decoder.decode(b"[%b]" % data[start:end])
            except msgspec.ValidationError as error:
                raise validation_error(_moved(str(error), cuts.name, len(found))) from None
            except (ValueError, RecursionError) as error:
                raise BadRequest(cuts.name, f"is not valid JSON: {error}") from None
            if not piece:
                raise BadRequest(cuts.name, "is not valid JSON: two commas in a row")
            found += piece
            start = end + 1
            yield
        return found

    def _decode(self, context: Context, data: Data) -> T:
        try:
            return self._strict.decode(data)
        except (ValueError, RecursionError) as error:
            reason = error
        asked = decode(data, self._lenient)  # raises when more is wrong than an unknown field
        context.http_metrics.note(UNKNOWN_FIELD)
        log.debug("a request brings more than is known: %s", reason)
        return asked


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
                    ListField(meta.max_length, ids=int in (entry, *get_args(entry))),
                    entry,
                )
    return found


def without(data: Data, lists: list[Cuts]) -> bytes:
    """The body with empty lists in place of these."""
    parts: list[Data] = []
    place = 0
    for cuts in lists:
        parts.append(data[place : cuts.start])
        place = cuts.end
    parts.append(data[place:])
    return b"".join(parts)


def decode(data: Data, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode JSON into the decoder's struct; BadRequest names the field and the reason."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise too_long(str(error), data) or validation_error(str(error)) from None
    except UnicodeDecodeError:
        raise BadRequest("body", "is not valid UTF-8") from None
    except msgspec.DecodeError as error:
        raise BadRequest("body", f"is not valid JSON: {error}") from None
    except RecursionError:
        raise BadRequest("body", "is nested too deeply") from None
    except ValueError as error:
        raise BadRequest("body", f"cannot be decoded: {error}") from None


def too_long(text: str, data: Data) -> BadRequest | None:
    """The refusal of a list or an object that is too long, with its length."""
    limit = _TOO_LONG.search(text)
    if limit is None:
        return None
    refusal = validation_error(text)
    value: Any = msgspec.json.decode(data)
    try:
        for name, index in _STEP.findall("." + refusal.field):
            value = value[name] if name else value[int(index)]
    except (LookupError, TypeError):
        return refusal
    return BadRequest(refusal.field, f"has {len(value)} entries; at most {limit[1]} are allowed")


def _moved(text: str, name: str, offset: int) -> str:
    """An error in a piece of a list, with the place in the list."""
    return re.sub(
        r"\$\[(\d+)\]", lambda found: f"$.{name}[{offset + int(found[1])}]", text, count=1
    )
