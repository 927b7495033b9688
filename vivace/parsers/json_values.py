"""JSON as models write it: copied as it is, however it is cut, without being understood."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, NoReturn

from vivace.parsers.reader import NotACall, Steps, TextReader, Write

STRING = re.compile(r'[^"\\]*')
SCALAR = re.compile(r"[\w.+\-]*")
ANY_STRING = r'"(?:[^"\\]++|\\.)*+"'
WHOLE_STRING = re.compile(ANY_STRING, re.DOTALL)
BETWEEN_BRACKETS = re.compile(rf'(?:[^"{{}}\[\]]++|{ANY_STRING})*+', re.DOTALL)
LAST_VALUE = re.compile(rf"\s*+,?\s*+({ANY_STRING}\s*:\s*)?{ANY_STRING}\s*\Z", re.DOTALL)
MEMBER_NAME = 1
MARKS, MOST_MARKS, LONGEST = '"[]{}\\', 1 << 14, 1 << 18
"""of a text, and its characters, that is looked at for what is whole of it: 20 ms"""
MAX_NAME = 256
"""Characters of a name or a key."""


@lru_cache(maxsize=64)
def outside_strings(first: str) -> re.Pattern[str]:
    """Characters that say nothing about where a value ends; `first` begins its end."""
    return re.compile(r'[^"{}\[\]' + re.escape(first) + "]*")


def copy_value(reader: TextReader, write: Write, end: str = "") -> Steps[bool]:
    """Copy one value. Objects and lists end with their last bracket, or before `end` when that
    comes outside of strings. False when it is not complete."""
    first = yield from reader.peek()
    if first == '"':
        return (yield from copy_string(reader, write))
    if first not in ("{", "["):
        write((yield from reader.run(SCALAR)))
        return True
    plain, depth = outside_strings(end[:1]), 0
    while (yield from reader.more()):
        found = plain.match(reader.text, reader.at)
        if found is not None and found.end() > reader.at:
            write(reader.take(found.end()))
            continue
        char = reader.text[reader.at]
        if char == '"':
            yield from copy_string(reader, write)
            continue
        if char not in "{}[]" and (yield from reader.is_next(end)):
            return False
        write(reader.take(reader.at + 1))
        depth += 1 if char in "{[" else -1 if char in "}]" else 0
        if not depth:
            return True
    return False


def copy_string(reader: TextReader, write: Write) -> Steps[bool]:
    """Copy a string with its quotes; False when it is not complete."""
    write(reader.take(reader.at + 1))
    while (yield from reader.more()):
        found = STRING.match(reader.text, reader.at)
        if found is not None and found.end() > reader.at:
            write(reader.take(found.end()))
            continue
        char = reader.take(reader.at + 1)
        write(char)
        if char == '"':
            return True
        if (yield from reader.more()):
            write(reader.take(reader.at + 1))
    return False


def read_string(reader: TextReader, limit: int = MAX_NAME) -> Steps[str]:
    """The value of a short string. Raises NotACall for anything else, behind `limit` characters of
    it wherever it was cut."""
    yield from reader.expect('"')
    parts, left = ['"'], limit
    while not (yield from reader.skip('"')):
        part = yield from reader.run(STRING, left)
        if not part and (yield from reader.skip("\\")):
            part = "\\" + (yield from reader.peek())
            reader.take(reader.at + len(part) - 1)
        parts.append(part)
        left -= len(part)
        if not part or left <= 0:
            raise NotACall
    try:
        return whole_characters(str(parse("".join(parts) + '"')))
    except NotJson:
        raise NotACall from None


def whole_part(text: str) -> str:
    """What is whole of a JSON object that ends too early, closed; a text that is no beginning of
    one, or has more behind it, gives what is none either."""
    if len(text) > LONGEST or sum(map(text.count, MARKS)) > MOST_MARKS:
        return ""
    closers, at, kept = list[str](), 0, 0
    while True:
        plain = BETWEEN_BRACKETS.match(text, at)
        at = plain.end() if plain is not None else at
        if at == len(text) or text[at] not in "{}[]":
            break
        if text[at] in "{[":
            closers.append("}" if text[at] == "{" else "]")
        elif not closers or closers.pop() != text[at]:
            return ""
        at += 1
        kept = at
    if not closers:
        return text  # nothing of it is missing
    at = kept
    while (quote := text.find('"', at)) >= 0 and (string := WHOLE_STRING.match(text, quote)):
        kept, at = max(kept, text.rfind(",", at, quote)), string.end()
    kept = max(kept, text.rfind(",", at, len(text) if quote < 0 else quote))
    last = LAST_VALUE.match(text, kept)
    if last is not None and (last[MEMBER_NAME] or closers[-1:] == ["]"]):  # it is a value
        kept = last.end()
    return text[:kept] + "".join(reversed(closers))


class NotJson(ValueError):
    """A text that is no JSON, or has NaN or infinity in it."""


def parse(text: str) -> Any:
    """NotJson for what is none."""
    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        raise NotJson from None


def refuse(constant: str) -> NoReturn:
    raise NotJson(constant)


def whole_characters(text: str) -> str:
    """With the halves of characters that escapes have written put together; one that is alone
    becomes a replacement character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def is_object(text: str) -> bool:
    """Whether it is a whole JSON object, nested no deeper than can be read."""
    try:
        return isinstance(parse(text), dict)
    except NotJson:
        return False


def object_text(text: str) -> str:
    """Arguments as an object: {} for nothing, null or an empty string, and what a string holds that
    some models write, the JSON text of an object. Anything else stays as it is."""
    if text in ("", "null", '""'):
        return "{}"
    if text.startswith('"'):
        try:
            inner = whole_characters(str(parse(text)))
            return inner if isinstance(parse(inner), dict) else text
        except NotJson:
            return text
    return text


def escape(text: str) -> str:
    """As it stands inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
