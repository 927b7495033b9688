"""Calls written as Python does, `[look(city="Paris", days=3)]`: each becomes JSON when it is whole.
Nothing of it is evaluated."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from vivace.parsers.calls import CallReader
from vivace.parsers.json_values import MAX_NAME, NotJson, parse
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
            return json.dumps((yield from read_text(reader, first)), ensure_ascii=False)
        case "[" | "(":
            items = yield from read_items(reader, depth, {"[": "]", "(": ")"}[first])
            return f"[{', '.join(items)}]"
        case "{":
            items = yield from read_items(reader, depth, "}")
            return f"{{{', '.join(items)}}}"
        case _:
            return constant((yield from reader.run(NUMBER, MAX_NAME)))


def read_items(reader: TextReader, depth: int, last: str) -> Steps[list[str]]:
    """What stands in brackets, as JSON."""
    reader.take(reader.at + 1)
    items: list[str] = []
    while True:
        yield from reader.skip_space()
        if (yield from reader.skip(last)):
            return items
        item = yield from read_value(reader, depth + 1)
        if last == "}":
            if not item.startswith('"'):
                item = json.dumps(item)
            yield from reader.skip_space()
            yield from reader.expect(":")
            item = f"{item}: " + (yield from read_value(reader, depth + 1))
        items.append(item)
        yield from reader.skip_space()
        if not (yield from reader.skip(",")):
            yield from reader.expect(last)
            return items


def constant(text: str) -> str:
    """A number, or one of the words."""
    if text in CONSTANTS:
        return CONSTANTS[text]
    try:
        parse(text)
    except NotJson:
        raise NotACall from None
    return text


def read_text(reader: TextReader, quote: str) -> Steps[str]:
    """The characters of a string."""
    reader.take(reader.at + 1)
    parts: list[str] = []
    while True:
        parts.append((yield from reader.run(CHARACTERS[quote])))
        if (yield from reader.skip(quote)):
            return "".join(parts)
        if (yield from reader.skip("\\")):
            parts.append((yield from read_escape(reader)))
        else:
            yield from reader.expect("\n")  # as models write it; Python would not
            parts.append("\n")


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
