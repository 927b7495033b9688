"""What an answer consists of once it is parsed, in the order in which it is written."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field

from vivace.parsers.inputs import InputReader


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """Of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentText:
    """Of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins, the `index`-th of the answer. `custom`: it has an input, no arguments."""

    index: int
    id: str
    name: str
    custom: bool = False


@dataclass(frozen=True, slots=True)
class CallArguments:
    """What comes next of the JSON of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallInput:
    """What comes next of the input of a custom tool."""

    index: int
    text: str


AnswerEvent = ReasoningText | ContentText | CallStart | CallArguments | CallInput
OfCall = CallArguments | CallInput


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """`arguments`: of a `custom` tool its input."""

    id: str
    name: str
    arguments: str
    custom: bool = False


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """What all events of an answer come to."""

    reasoning: str
    text: str
    calls: list[ParsedCall] = field(default_factory=list[ParsedCall])

    @property
    def content(self) -> str | None:
        """As OpenAI has it: None where there are only calls."""
        return self.text if self.text or not self.calls else None


def gather(events: Iterable[AnswerEvent]) -> Generator[None, None, ParsedAnswer]:
    """What they come to; yields behind each: a text may have 100,000 calls."""
    reasoning, content = list[str](), list[str]()
    calls: list[tuple[CallStart, list[str]]] = []
    for event in events:
        match event:
            case ReasoningText(text):
                reasoning.append(text)
            case ContentText(text):
                content.append(text)
            case CallStart():
                calls.append((event, []))
            case CallArguments(_, text) | CallInput(_, text):
                calls[-1][1].append(text)
        yield
    found = list[ParsedCall]()
    for one, parts in calls:
        found.append(ParsedCall(one.id, one.name, "".join(parts), one.custom))
        yield
    return ParsedAnswer("".join(reasoning), "".join(content), found)


class EdgeSpace:
    """White space at the edges of a text: it is dropped at the start with `trim`, and held back at
    the end until it is known what follows."""

    def __init__(self, *, trim: bool) -> None:
        self.trim = trim
        self._held: list[str] = []

    def push(self, text: str) -> str:
        """What may be shown of the text so far."""
        if self.trim:
            text = text.lstrip()
            if not text:
                return ""
            self.trim = False
        body = text.rstrip()
        if not body:
            self._held.append(text)
            return ""
        shown = "".join((*self._held, body))
        self._held = [text[len(body) :]]
        return shown

    def take(self) -> str:
        """What was held back."""
        held, self._held = "".join(self._held), []
        return held

    def begin(self) -> None:
        """Something else came between: drop the white space on both sides of it."""
        self.trim, self._held = True, []


class EventWriter:
    """Collects events. What follows each other of one kind becomes one; white space around
    reasoning and around calls is dropped.

    `new_id` makes the id of a call from its name and its place among the answer's calls. Without
    `stream_reasoning` each part of the reasoning is one event, when it is complete.
    """

    def __init__(self, new_id: Callable[[str, int], str], *, stream_reasoning: bool = True) -> None:
        self.calls = 0
        self.thinking = False
        """the last text was reasoning"""
        self.plain = False
        """there was something else, and no reasoning before"""
        self._thought = False
        self._new_id = new_id
        self._stream_reasoning = stream_reasoning
        self._events: list[AnswerEvent] = []
        self._kind: type[ReasoningText | ContentText | OfCall] = ContentText
        self._input: InputReader | None = None
        """of the call that began last, if it has one"""
        self._parts: list[str] = []
        self._content_space = EdgeSpace(trim=False)
        self._reasoning_space = EdgeSpace(trim=True)

    def begin_reasoning(self) -> None:
        self.thinking = self._thought = True

    def reasoning(self, text: str) -> None:
        self.begin_reasoning()
        self._add(ReasoningText, self._reasoning_space.push(text))

    def content(self, text: str) -> None:
        if text:
            self._begin_other()
        self._add(ContentText, self._content_space.push(text))

    def _begin_other(self) -> None:
        self.plain = not self._thought
        if self.thinking:
            self.end_reasoning()

    def end_reasoning(self) -> None:
        """What comes next is something else."""
        self.thinking = False
        self._reasoning_space.begin()
        self._content_space.begin()

    def start_call(self, name: str, *, custom: bool = False) -> None:
        self._begin_other()
        self._content_space.begin()
        self._flush()
        self._input = InputReader() if custom else None
        self._events.append(CallStart(self.calls, self._new_id(name, self.calls), name, custom))
        self.calls += 1

    def arguments(self, text: str) -> None:
        """JSON, of the call that began last."""
        if self._input is None:
            self._add(CallArguments, text)
        else:
            self._add(CallInput, self._input.push(text))

    def input(self, text: str) -> None:
        """The input itself of that call."""
        self._add(CallInput, text)

    def take(self) -> list[AnswerEvent]:
        """What is new."""
        if not self.thinking or self._stream_reasoning:
            self._flush()
        events, self._events = self._events, []
        return events

    def finish(self) -> list[AnswerEvent]:
        """The rest."""
        self._add(ContentText, self._content_space.take())
        self._flush()
        return self.take()

    def _add(self, kind: type[ReasoningText | ContentText | OfCall], text: str) -> None:
        if not text:
            return
        if kind is not self._kind:
            self._flush()
            self._kind = kind
        self._parts.append(text)

    def _flush(self) -> None:
        if not self._parts:
            return
        text, self._parts = "".join(self._parts), []
        if issubclass(self._kind, OfCall):
            self._events.append(self._kind(self.calls - 1, text))
        else:
            self._events.append(self._kind(text))
