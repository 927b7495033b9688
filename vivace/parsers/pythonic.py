"""Calls written as Python does, `[look(city="Paris", days=3)]`: each becomes JSON when it is whole.
Nothing of it is evaluated."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass

from vivace.parsers.calls import CallReader
from vivace.parsers.json_values import MAX_NAME, NotJson, parse, whole_characters
from vivace.parsers.reader import NotACall, Steps, TextReader

IDENTIFIER = re.compile(r"[\w.]*")
NUMBER = re.compile(r"[\w.+\-]*")
CHARACTERS = {quote: re.compile(rf"[^\\\n{quote}]*") for quote in "\"'"}
CONSTANTS = {"True": "true", "False": "false", "None": "null"}
CONSTANTS |= {value: value for value in CONSTANTS.values()}
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
HEX = re.compile(r"[0-9a-fA-F]*")
DIGITS = {"x": 2, "u": 4, "U": 8}
MAX_DEPTH = 64
MAX_DIGITS = 4096
LAST = {"[": "]", "(": ")", "{": "}"}


@dataclass(frozen=True)
class PythonicCalls:
    """What stands in the brackets; the first one is read."""

    def read(self, calls: CallReader, end: str) -> Steps[None]:
        reader = calls.reader
        while True:
            yield from read_call(calls)
            reader.record()
            yield from reader.skip_space()
            if not (yield from reader.skip(",")):
                break
        yield from reader.expect("]")


def read_call(calls: CallReader) -> Steps[None]:
    """A function and its arguments, which have names."""
    reader = calls.reader
    yield from reader.skip_space()
    name = yield from reader.run(IDENTIFIER, MAX_NAME)
    yield from reader.expect("(")
    if (yield from calls.fenced(name)):
        calls.begin(name)
        yield from calls.copy_fenced(")")
        yield from reader.skip(")")
        return
    members: list[str] = []
    while True:
        yield from reader.skip_space()
        if (yield from reader.skip(")")):
            break
        key = yield from reader.run(IDENTIFIER, MAX_NAME)
        yield from reader.skip_space()
        yield from reader.expect("=" if key else ")")
        members.append(f"{json.dumps(key)}: " + (yield from read_value(reader)))
        yield from reader.skip_space()
        yield from reader.skip(",")
    calls.begin(name)
    calls.writer.arguments("{" + ", ".join(members) + "}")


def read_value(reader: TextReader, depth: int = 0) -> Steps[str]:
    """The JSON of one literal. Raises NotACall for anything else."""
    if depth > MAX_DEPTH:
        raise NotACall
    yield from reader.skip_space()
    first = yield from reader.peek()
    match first:
        case "'" | '"':
            return json.dumps((yield from read_texts(reader)), ensure_ascii=False)
        case "[" | "(" | "{":
            return (yield from read_items(reader, depth, LAST[first]))
        case _:
            return constant((yield from reader.run(NUMBER, MAX_DIGITS)))


def read_items(reader: TextReader, depth: int, last: str) -> Steps[str]:
    """The JSON of what stands in brackets: an object in braces with keys, of all others a list."""
    reader.take(reader.at + 1)
    items: list[str] = []
    keyed = last == "}"
    yield from reader.skip_space()
    while not (yield from reader.skip(last)):
        item = yield from read_value(reader, depth + 1)
        yield from reader.skip_space()
        if keyed and not items:
            keyed = yield from reader.is_next(":")
        if keyed:
            yield from reader.expect(":")
            key = item if item.startswith('"') else json.dumps(item)
            item = f"{key}: " + (yield from read_value(reader, depth + 1))
            yield from reader.skip_space()
        items.append(item)
        if not (yield from reader.skip(",")):
            yield from reader.expect(last)
            break
        yield from reader.skip_space()
    inside = ", ".join(items)
    return f"{{{inside}}}" if keyed else f"[{inside}]"


def constant(text: str) -> str:
    """A number, or one of the words. Models write 07, too, which Python does not take."""
    if text in CONSTANTS:
        return CONSTANTS[text]
    try:
        parse(text)
    except NotJson:
        return number(text)
    return text


def number(text: str) -> str:
    for kind in (int, float):
        with suppress(ValueError):
            return json.dumps(kind(text), allow_nan=False)
    raise NotACall


def literal_json(text: str) -> str:
    """The JSON of a text that is one literal. Raises NotACall for any other."""
    reader = TextReader()
    reader.feed(text)
    reader.ended = True  # so it never waits
    try:
        next(reading := read_value(reader))
    except StopIteration as done:
        if reader.at == len(text):
            return str(done.value)
    else:
        reading.close()
    raise NotACall


def read_texts(reader: TextReader) -> Steps[str]:
    """A string, or several that stand behind each other and are one."""
    parts: list[str] = []
    while (quote := (yield from reader.peek())) in ("'", '"'):
        parts.append((yield from read_text(reader, quote)))
        yield from reader.skip_space()
    return "".join(parts)


def read_text(reader: TextReader, quote: str) -> Steps[str]:
    """The characters of a string, whose quote may be three of these."""
    reader.take(reader.at + 1)
    end = quote * 3 if (yield from reader.skip(quote * 2)) else quote
    parts: list[str] = []
    while True:
        parts.append((yield from reader.run(CHARACTERS[quote])))
        if (yield from reader.skip(end)):
            return whole_characters("".join(parts))
        if (yield from reader.skip("\\")):
            parts.append((yield from read_escape(reader)))
        elif (yield from reader.more()):
            parts.append(reader.take(reader.at + 1))  # newlines in any string: so models write
        else:
            raise NotACall


def read_escape(reader: TextReader) -> Steps[str]:
    """What stands for the characters behind a backslash."""
    kind = yield from reader.peek()
    if not kind:
        raise NotACall
    reader.take(reader.at + 1)
    if kind not in DIGITS:
        known = ESCAPES.get(kind, kind)
        return known if kind in ESCAPES or kind in "\\'\"" else "\\" + known
    digits = yield from reader.run(HEX, DIGITS[kind])
    if len(digits) < DIGITS[kind] or int(digits, 16) > 0x10FFFF:
        raise NotACall
    return chr(int(digits, 16))
