"""Calls whose arguments are JSON, and what calls of every shape have in common."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from vivace.parsers.events import EventWriter
from vivace.parsers.inputs import FENCE, FENCE_END
from vivace.parsers.json_values import MAX_NAME, copy_value, object_text, read_string
from vivace.parsers.reader import NotACall, Steps, TextReader, marker_set
from vivace.parsers.schema_types import MAX_WORK, read_kinds, referred

NAME = re.compile(r"[\w.:/\-]*")
ARGUMENTS = ("arguments", "parameters")
OTHER_KEYS = ("id", "index", "type")


class CallReader:
    """The calls of one answer. `tools`: the schema of each function that is offered, by its name;
    calls of others are text, unless they are `forwarded`; so are those beyond `most`. `inputs`:
    custom tools among them."""

    def __init__(
        self,
        reader: TextReader,
        writer: EventWriter,
        tools: Mapping[str, Mapping[str, Any]],
        *,
        forwarded: bool = False,
        most: int | None = None,
        inputs: Collection[str] = (),
    ) -> None:
        self.reader = reader
        self.writer = writer
        self._tools = tools
        self._forwarded = forwarded
        self._most = most
        self._inputs = inputs
        self._parameters: dict[str, tuple[Mapping[str, Any], Any]] = {}
        """schemas of parameters by function, as far as somebody asked: those with names, and of all
        others"""
        self._kinds: dict[tuple[str, int], set[str]] = {}
        """by function and schema: one may be long, and the schema of a thousand names"""
        self._work = MAX_WORK
        """that is left for them; what it does not reach says nothing of types"""

    def begin(self, name: str) -> None:
        """From here on what is read is the call's. Raises NotACall when it is not to be made."""
        if not name or not (self._forwarded or name in self._tools):
            raise NotACall
        if self._most is not None and self.writer.calls >= self._most:
            raise NotACall
        self.reader.take_record()
        self.writer.start_call(name, custom=name in self._inputs)

    def parameter_kinds(self, name: str, key: str) -> set[str]:
        """The types that the schema of a function's parameter allows; none if it does not say."""
        if name not in self._tools:
            return set()
        if name not in self._parameters:
            self._parameters[name] = self._schemas(name)
        listed, others = self._parameters[name]
        schema = listed.get(key, others)
        place = name, id(schema)
        if place not in self._kinds:
            root = self._tools[name]
            self._kinds[place], self._work = read_kinds(schema, root, self._work)
        return self._kinds[place]

    def _schemas(self, name: str) -> tuple[Mapping[str, Any], Any]:
        schema = referred(self._tools[name], self._tools[name])
        if not isinstance(schema, Mapping):
            return {}, None
        properties, others = schema.get("properties"), schema.get("additionalProperties")
        return (properties if isinstance(properties, Mapping) else {}), others

    def fenced(self, name: str) -> Steps[bool]:
        """Whether what comes is the input of a custom tool as a grammar has demanded it."""
        return name in self._inputs and (yield from self.reader.is_next(FENCE))

    def copy_fenced(self, close: str) -> Steps[None]:
        """That input. `close`, or the end of the answer, follows its fence, and stays."""
        reader, write = self.reader, self.writer.input
        yield from reader.skip(FENCE)
        while (yield from reader.copy_until(marker_set(FENCE_END), write, FENCE_END)):
            closes = (yield from reader.is_next(close)) or reader.is_cut(close)
            if closes or not (yield from reader.more()):
                break
            write(FENCE_END)

    def copy_arguments(self, end: str) -> Steps[None]:
        """The arguments as the model writes them; null and strings as `object_text` has them."""
        if (yield from self.reader.peek()) not in ("n", '"'):
            yield from copy_value(self.reader, self.writer.arguments, end)
            return
        other: list[str] = []
        yield from copy_value(self.reader, other.append)
        self.writer.arguments(object_text("".join(other)))


class CallBody(Protocol):
    """What stands between the literals that frame a call."""

    def read(self, calls: CallReader, end: str) -> Steps[None]:
        """Read one call, or what one frame has of them; `end` closes the frame and stays. Raises
        NotACall as long as nothing was made of what was read."""
        ...


@dataclass(frozen=True, kw_only=True)
class JsonCalls:
    """Objects with a name and arguments: one, several with `separator` between them, or a list of
    them. `head` stands before."""

    head: str = ""
    separator: str = ""

    def read(self, calls: CallReader, end: str) -> Steps[None]:
        reader = calls.reader
        yield from reader.skip_space()
        yield from reader.expect(self.head)
        yield from reader.skip_space()
        in_list = yield from reader.skip("[")
        separator = "," if in_list else self.separator
        while True:
            yield from reader.skip_space()
            yield from self._read_object(calls, end)
            reader.record()
            yield from reader.skip_space()
            if separator and (yield from reader.skip(separator)):
                continue
            if in_list or not separator or (yield from reader.peek()) != "{":
                break
        if in_list:
            yield from reader.skip("]")

    def _read_object(self, calls: CallReader, end: str) -> Steps[None]:
        reader, name, begun = calls.reader, "", False
        early: list[str] = []
        """arguments that come before the name"""
        yield from reader.expect("{")
        while True:
            yield from reader.skip_space()
            if (yield from reader.skip("}")):
                break
            key = yield from read_string(reader)
            yield from reader.skip_space()
            yield from reader.expect(":")
            yield from reader.skip_space()
            if key == "name":
                name = yield from read_string(reader)
            elif key not in ARGUMENTS:
                yield from skip_value(calls, key, begun=begun)
            elif name and not begun:
                calls.begin(name)
                begun = True
                if (yield from calls.fenced(name)):
                    yield from calls.copy_fenced("}")
                else:
                    yield from calls.copy_arguments(end)
            else:
                yield from copy_value(reader, early.append)
            yield from reader.skip_space()
            yield from reader.skip(",")
        if not begun:
            calls.begin(name)
            calls.writer.arguments(object_text("".join(early)))


def skip_value(calls: CallReader, key: str, *, begun: bool) -> Steps[None]:
    """Of a key that says nothing about a call. Raises NotACall for one that no call has, unless the
    call has `begun`: half of it would become text."""
    if key not in OTHER_KEYS and not begun:
        raise NotACall
    yield from copy_value(calls.reader, lambda text: None)


@dataclass(frozen=True, kw_only=True)
class NamedCall:
    """A name, a literal behind it, and a JSON object. `head` comes first and `tail` last (or in the
    literal's place, too), an id behind `id_open` where that comes. `behind_input`: as in
    `CallSyntax`, where nothing ends a call. With `numbered` the name is one of a namespace and has
    a number: `functions.look:0`."""

    separator: str
    behind_input: str = ""
    head: str = ""
    tail: str = ""
    id_open: str = ""
    numbered: bool = False

    def read(self, calls: CallReader, end: str) -> Steps[None]:
        reader = calls.reader
        yield from reader.skip_space()
        yield from reader.expect(self.head)
        name = yield from reader.run(NAME, MAX_NAME)
        yield from reader.skip_space()
        if self.id_open and (yield from reader.skip(self.id_open)):
            yield from reader.run(NAME, MAX_NAME)
        if not (yield from reader.skip(self.separator)):
            yield from reader.skip(self.tail)  # a fence that does not say what is in it
        yield from reader.skip_space()
        if self.numbered:
            name = name.removeprefix("functions.").rpartition(":")[0]
        if (yield from reader.peek()) == "{":
            calls.begin(name)
            yield from calls.copy_arguments(self.tail or end)
        elif (yield from calls.fenced(name)):
            calls.begin(name)
            yield from calls.copy_fenced(end or self.behind_input)
        elif (yield from self._ends(reader, end)):
            calls.begin(name)
            calls.writer.arguments("{}")
        else:
            raise NotACall
        yield from reader.skip_space()
        yield from reader.skip(self.tail)

    def _ends(self, reader: TextReader, end: str) -> Steps[bool]:
        """Whether there are no arguments: null, or what comes behind them."""
        last = self.tail or end or self.behind_input
        yield from reader.skip("null")
        yield from reader.skip_space()
        ended = (yield from reader.is_next(last)) or (yield from reader.is_next(end or last))
        return ended or reader.is_cut(last) or not (end or (yield from reader.more()))


@dataclass(frozen=True)
class JsonOrNamed:
    """Either, by the first character: Mistral's formats."""

    json: JsonCalls
    named: NamedCall

    def read(self, calls: CallReader, end: str) -> Steps[None]:
        yield from calls.reader.skip_space()
        json = (yield from calls.reader.peek()) in ("[", "{")
        yield from (self.json if json else self.named).read(calls, end)
