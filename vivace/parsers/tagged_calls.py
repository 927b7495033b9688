"""Calls whose arguments stand in tags, one value each: they become JSON as they come."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from vivace.parsers.call_syntax import KEY, ParameterTags
from vivace.parsers.calls import NAME, CallReader
from vivace.parsers.json_values import MAX_NAME, NotJson, escape, parse
from vivace.parsers.pythonic import literal_json, number
from vivace.parsers.reader import MarkerSet, NotACall, Steps, TextReader, Write, marker_set
from vivace.parsers.schema_types import STRING, json_kinds

KEYS = re.compile(r'[^<>"\n]*')
WORD = re.compile(r"[a-z]*")
MAX_PYTHON = 1 << 13
"""characters of a value that is read as Python writes it: all at once, 30 ms for short numbers"""
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
WHOLE = re.compile(r"[+-]?[0-9][0-9_]{0,4000}")
NUMBERED = {"1": "true", "0": "false"}
QUOTED = re.compile(r'"(?:[^"\\\n]|\\[^\n])*("?)')
OPEN_JSON = (
    r'\s*(?:[\[{](?:[^"]|"(?:[^"\\\n]|\\[^\n])*")*'
    r'|"(?:[^"\\\n]|\\[^\n])*"(?:[^"]|"(?:[^"\\\n]|\\[^\n])*")*|)'
    r'"(?:[^"\\\n]|\\[^\n])*'
)
"""text that goes on behind what ends a tag, for who may read JSON: a string in it is open"""
IN_STRING = re.compile(r'[^"\\\n]*')


@dataclass(frozen=True, kw_only=True)
class TaggedCall:
    """A name, then tags with a key and a value each.

    [kind [name]] head name after_name (key_open key key_close [value_open] value value_close)*
    close

    `unclosed`: what comes behind a value ends one, too, that nobody closed. `flagged`: a tag may
    say whether its value is a string. `newlines`: one at each edge of a value is not part of it.
    `untyped`: a value without a schema may be JSON. `or_json`: an object may stand for all tags.
    """

    key_open: str
    key_close: str
    value_close: str
    kind: str = ""
    head: str = ""
    after_name: str = ""
    value_open: str = ""
    close: str = ""
    unclosed: bool = False
    flagged: bool = False
    newlines: bool = False
    untyped: bool = False
    or_json: bool = False

    @property
    def value_ends(self) -> tuple[str, ...]:
        """Before which a value ends, its own end first."""
        others = (self.key_open, self.close) if self.unclosed else ()
        return (self.value_close, *others)

    def tags(self, *, after_key: str = "", after_value: str = "") -> ParameterTags:
        """The arguments as models write them, with white space in these places."""
        key = f"{self.key_open}{KEY}{self.key_close}"
        begin = f'{key} string="true">' if self.flagged else f"{key}{after_key}{self.value_open}"
        return ParameterTags(
            begin=begin,
            end=self.value_close + after_value,
            excluded=self.value_ends,
            json_begin=f'{key} string="false">' if self.flagged else "",
            edge="\n" if self.newlines else "",
            untyped=self.untyped,
        )

    def read(self, calls: CallReader, end: str) -> Steps[None]:
        reader = calls.reader
        yield from reader.skip_space()
        if self.kind and (yield from reader.skip(self.kind)):
            yield from reader.run(NAME, MAX_NAME)
            yield from reader.skip_space()
        yield from reader.expect(self.head)
        name = yield from reader.run(NAME, MAX_NAME)
        yield from reader.expect(self.after_name)
        yield from reader.skip_space()
        last = self.close or end
        if self.or_json and (yield from reader.peek()) == "{":
            calls.begin(name)
            yield from calls.copy_arguments(last)
        else:
            tagged = yield from reader.is_next(self.key_open)
            if not (tagged or (yield from reader.is_next(last)) or reader.is_cut(last)):
                raise NotACall
            calls.begin(name)
            yield from self._read_arguments(calls, name)
        yield from reader.skip_space()
        yield from reader.skip(self.close)

    def _read_arguments(self, calls: CallReader, name: str) -> Steps[None]:
        reader, write = calls.reader, calls.writer.arguments
        before = "{"
        while True:
            reader.record()
            yield from reader.skip_space()
            if not (yield from reader.skip(self.key_open)):
                break
            try:
                key, is_string = yield from self._read_key(calls)
            except NotACall:
                if not reader.ended:
                    write("{}" if before == "{" else "}")
                raise
            reader.take_record()
            write(f'{before}"{escape(key)}": ')
            before = ", "
            allowed = calls.parameter_kinds(name, key)
            if is_string is None:
                is_string = allowed == STRING or not (allowed or self.untyped)
            yield from self._copy_value(calls, allowed, is_string=is_string)
        if (yield from reader.more()):  # else it was cut off, as a reader may see
            write("{}" if before == "{" else "}")

    def _read_key(self, calls: CallReader) -> Steps[tuple[str, bool | None]]:
        """(the key, whether the tag says that its value is a string)"""
        reader, is_string = calls.reader, None
        key = (yield from reader.run(KEYS, MAX_NAME)).strip()
        yield from reader.expect(self.key_close)
        if self.flagged:
            yield from reader.skip_space()
            if (yield from reader.skip('string="')):
                is_string = (yield from reader.run(WORD, MAX_NAME)) == "true"
                yield from reader.expect('"')
            yield from reader.expect(">")
        if self.value_open:
            yield from reader.skip_space()
            yield from reader.expect(self.value_open)
        return key, is_string

    def _copy_value(self, calls: CallReader, allowed: set[str], *, is_string: bool) -> Steps[None]:
        reader, write = calls.reader, calls.writer.arguments
        markers = marker_set(*self.value_ends)
        if is_string:
            string = StringWriter(write, newlines=self.newlines)
            marker = yield from reader.copy_until(markers, string.push, self.value_close)
            if marker:
                write('"')
        else:
            text, marker = yield from read_value(reader, markers, self.value_close)
            if self.newlines:
                text = text.removeprefix("\n").removesuffix("\n")
            write(converted(text, allowed) if marker else text)
        if marker != self.value_close:
            reader.unread(marker)


def read_value(reader: TextReader, markers: MarkerSet, end: str) -> Steps[tuple[str, str]]:
    """(a value that need not be a string, the marker that ends it), "" when the text ends first;
    `end`: see `copy_until`. What stands in a string of JSON is no marker, if the whole is JSON, or
    its beginning."""
    parts: list[str] = []
    marker = yield from reader.copy_until(markers, parts.append, end)
    text = "".join(parts)
    first, passed, segment = marker, [text], text
    may_be_json = text.lstrip()[:1] in ("[", "{", '"')
    while marker and may_be_json and opens_string(segment):
        reader.unread(marker)
        may_be_json = yield from read_string_end(reader, passed)
        more: list[str] = []
        read = reader.copy_until(markers, more.append, end)
        marker = (yield from read) if may_be_json else ""
        segment = "".join(more)
        passed.append(segment)
    whole = "".join(passed)
    if whole == text:
        return text, first
    if is_json(whole) if marker else not (yield from reader.more()):  # or it was cut off
        return whole, marker
    reader.give_back(whole[len(text) + len(first) :] + marker)
    return text, first


def opens_string(text: str) -> bool:
    """Whether the last string of JSON in the text is still open."""
    last = None
    for last in QUOTED.finditer(text):
        if not last[1]:
            break
    return last is not None and not last[1] and last.end() == len(text)


def read_string_end(reader: TextReader, parts: list[str]) -> Steps[bool]:
    """The rest of a string of JSON and its quote; False when it is none."""
    while True:
        parts.append((yield from reader.run(IN_STRING)))
        kind = yield from reader.peek()
        if kind in ("", "\n"):
            return False
        parts.append(reader.take(reader.at + 1))
        if kind == '"':
            return True
        if (yield from reader.peek()) in ("", "\n"):
            return False
        parts.append(reader.take(reader.at + 1))


def is_json(text: str) -> bool:
    try:
        parse(text)
    except NotJson:
        return False
    return True


class StringWriter:
    """A JSON string, escaped as it comes, but for its last quote."""

    def __init__(self, write: Write, *, newlines: bool) -> None:
        self._write = write
        self._newlines = newlines
        self._begun = False
        self._held = ""
        """a newline that may be the last character"""
        write('"')

    def push(self, text: str) -> None:
        if self._newlines:
            if not self._begun and text:
                self._begun = True
                text = text.removeprefix("\n")
            if text:
                text = self._held + text
                self._held = "\n" if text.endswith("\n") else ""
                text = text.removesuffix("\n")
        self._write(escape(text))


def converted(text: str, allowed: set[str]) -> str:
    """The JSON of a value that need not be a string by its schema, which allows these types; a
    string where it is no JSON, or where strings are allowed and nothing else that it is."""
    value = text.strip()
    if allowed:
        value = PYTHON_WORDS.get(value, value)
    try:
        found = json_kinds(parse(value))
    except NotJson:
        return other_json(value, allowed) or f'"{escape(text)}"'
    if found & allowed or not allowed:
        return value
    if "string" in allowed:
        return f'"{escape(text)}"'
    return NUMBERED.get(value, value) if "boolean" in allowed else value


def other_json(text: str, allowed: set[str]) -> str:
    """The JSON of a number or word as others than JSON write it, or of a list or dict in Python's
    syntax, where the schema wants one and no string; "" for anything else."""
    if "string" in allowed:
        return ""
    word = text.lower()
    if "boolean" in allowed and word in ("true", "false"):
        return word
    if "null" in allowed and word in ("null", "none"):
        return "null"
    if "number" in allowed or ("integer" in allowed and WHOLE.fullmatch(text)):
        with suppress(NotACall):
            return number(text)
    if not allowed & {"object", "array"} or len(text) > MAX_PYTHON:
        return ""
    try:
        found = literal_json(text)
        return found if json_kinds(parse(found)) & allowed else ""
    except (NotACall, NotJson):
        return ""
