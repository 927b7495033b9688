"""One answer, parsed as it comes: pieces of text in, events out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Protocol

from vivace.parsers.answer import (
    ReasoningFormat,
    ThinkingFrame,
    ThinkingState,
    ToolFormat,
    begins_call,
    random_id,
    read_calls,
    read_reasoning,
    read_text,
)
from vivace.parsers.call_syntax import AnswerShape
from vivace.parsers.calls import CallReader
from vivace.parsers.events import AnswerEvent, ContentText, EventWriter
from vivace.parsers.formats import JSON_CALLS, REASONING_FORMATS, TOOL_FORMATS
from vivace.parsers.harmony import FRAMES, MARKERS, SHAPE, read_analysis, read_messages
from vivace.parsers.names import HARMONY
from vivace.parsers.reader import Steps, TextReader

SLICE = 1 << 11
"""Characters of a long text that are parsed at a time."""


@dataclass(frozen=True, kw_only=True)
class ParseOptions:
    """What one request says of its answers. `tools`: the schemas of the functions that may be
    called, at most `most_calls` times; calls of others are text unless they are `forwarded`.
    `inputs`: custom tools among them. `state`: where the answer begins.
    `first_call`: calls that the conversation has had. `calls_only`: an answer has nothing else
    behind its thinking, so what is left of a frame where it ends is no text. `calls_apart`: an
    answer that does not begin with a call has none. `thinking_ends`: where a constraint begins
    behind the thinking, what ends that for it, if there is any."""

    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    inputs: Collection[str] = ()
    separate_reasoning: bool = True
    stream_reasoning: bool = True
    state: ThinkingState = ThinkingState.BEFORE
    forwarded: bool = False
    most_calls: int | None = None
    first_call: int = 0
    calls_only: bool = False
    calls_apart: bool = False
    thinking_ends: tuple[str, ...] | None = None


class ParserFormat(Protocol):
    """How the answers of a model are written."""

    def literals(self, *, tools: bool) -> Sequence[str]:
        """Text that must reach the parser, if it is a special token, too; `tools`: so that it finds
        calls."""
        ...

    @property
    def reasoning_ends(self) -> tuple[str, ...]:
        """What ends reasoning, and behind it what interrupts it; none when none is split off."""
        ...

    @property
    def new_id(self) -> Callable[[str, int], str]:
        """Makes ids of calls."""
        ...

    def parses(self, options: ParseOptions) -> bool:
        """Whether there is anything to find in the answers of such a request."""
        ...

    def state(self, prompt: str, beginning: str) -> ThinkingState:
        """See `ReasoningFormat.state`."""
        ...

    @property
    def shape(self) -> AnswerShape | None:
        """Of answers whose calls have to obey; None where it is not known how calls are written."""
        ...

    @property
    def thinking(self) -> ThinkingFrame | None:
        """What frames thinking; None where none is known."""
        ...

    def of_json_calls(self) -> ParserFormat:
        """The format of answers that have to be a JSON list of calls, behind thinking."""
        ...

    def read(self, calls: CallReader, options: ParseOptions) -> Steps[None]:
        """An answer to its end."""
        ...


@dataclass(frozen=True, kw_only=True)
class TextParserFormat:
    """Thinking in front, calls in the text behind it."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None

    def literals(self, *, tools: bool) -> Sequence[str]:
        parts = (self.tools if tools else None, self.reasoning)
        return tuple(texts([astuple(part) for part in parts if part is not None]))

    @property
    def reasoning_ends(self) -> tuple[str, ...]:
        form = self.reasoning
        return () if form is None or form.kept else (form.end, *form.interrupts)

    @property
    def new_id(self) -> Callable[[str, int], str]:
        return random_id if self.tools is None else self.tools.new_id

    def parses(self, options: ParseOptions) -> bool:
        splits = self.reasoning is not None and options.separate_reasoning
        return splits or (self.tools is not None and bool(options.tools))

    def state(self, prompt: str, beginning: str) -> ThinkingState:
        form = self.reasoning
        return ThinkingState.BEFORE if form is None else form.state(prompt, beginning)

    @property
    def shape(self) -> AnswerShape | None:
        return self.tools and self.tools.shape

    @property
    def thinking(self) -> ThinkingFrame | None:
        form = self.reasoning
        return form and ThinkingFrame(form.begin, form.end, form.interrupts)

    def of_json_calls(self) -> ParserFormat:
        return replace(self, tools=JSON_CALLS)

    def read(self, calls: CallReader, options: ParseOptions) -> Steps[None]:
        form, tools = self.reasoning, self.tools if options.tools else None
        if form is not None:
            if form.kept and options.separate_reasoning:
                calls.writer.content(form.begin)
            split = options.separate_reasoning and not form.kept
            if ends := thinking_ends(form, tools, options, split=split):
                inside = options.state is ThinkingState.INSIDE
                yield from read_reasoning(calls, form, ends, inside=inside, split=split)
        if tools is not None and options.calls_apart and not (yield from begins_call(calls, tools)):
            tools = None
        yield from read_calls(calls, tools) if tools is not None else read_text(calls)


def thinking_ends(
    form: ReasoningFormat, tools: ToolFormat | None, options: ParseOptions, *, split: bool
) -> Sequence[str]:
    """What ends the thinking in front of an answer; nothing where there is none to look for."""
    if options.thinking_ends is not None:
        return options.thinking_ends
    if split:
        return (form.end, *form.interrupts)
    bare = tools is not None and tools.bare  # such a call comes behind the thinking, in the text
    return (form.end, tools.begin) if tools is not None and bare else ()


@dataclass(frozen=True, kw_only=True)
class MessageFormat:
    """Messages in channels (gpt-oss), whose frames are never text. `separate`: the analysis is
    reasoning."""

    separate: bool = True

    def literals(self, *, tools: bool) -> Sequence[str]:
        return MARKERS

    @property
    def reasoning_ends(self) -> tuple[str, ...]:
        return ("<|end|>",) if self.separate else ()

    @property
    def new_id(self) -> Callable[[str, int], str]:
        return random_id

    def parses(self, options: ParseOptions) -> bool:
        return True

    def state(self, prompt: str, beginning: str) -> ThinkingState:
        return ThinkingState.BEFORE

    @property
    def shape(self) -> AnswerShape | None:
        return SHAPE

    @property
    def thinking(self) -> ThinkingFrame | None:
        return ThinkingFrame(*SHAPE.messages[0], FRAMES, SHAPE.final)

    def of_json_calls(self) -> ParserFormat:
        return self

    def read(self, calls: CallReader, options: ParseOptions) -> Steps[None]:
        separate = self.separate and options.separate_reasoning
        for end in options.thinking_ends or ():
            yield from read_analysis(calls, end, separate=separate)
            if end.endswith(SHAPE.final):  # the text of that message obeys, whatever it spells
                return (yield from read_text(calls))
        yield from read_messages(calls, separate=separate)


def texts(value: Any) -> list[str]:
    """All strings in nested tuples and lists."""
    if isinstance(value, str):
        return [value] if value else []
    parts = value if isinstance(value, tuple | list) else ()
    return [text for item in parts for text in texts(item)]


def answer_format(tool_parser: str | None, reasoning_parser: str | None) -> ParserFormat:
    """The format that two names stand for. Raises KeyError for a name without a format."""
    if HARMONY in (tool_parser, reasoning_parser):
        return MessageFormat(separate=reasoning_parser is not None)
    return TextParserFormat(
        tools=TOOL_FORMATS[tool_parser] if tool_parser else None,
        reasoning=REASONING_FORMATS[reasoning_parser] if reasoning_parser else None,
    )


class AnswerParser:
    """Of one answer. However its text is cut, the events say the same."""

    def __init__(self, form: ParserFormat, options: ParseOptions) -> None:
        self._reader = TextReader()
        self._writer = EventWriter(
            lambda name, place: form.new_id(name, options.first_call + place),
            stream_reasoning=options.stream_reasoning,
        )
        calls = CallReader(
            self._reader,
            self._writer,
            options.tools,
            forwarded=options.forwarded,
            most=options.most_calls,
            inputs=options.inputs,
        )
        self._steps = form.read(calls, options)
        self._separate = options.separate_reasoning
        self._calls_only = options.calls_only

    @property
    def thinking(self) -> bool:
        """The last text was reasoning, or will be."""
        return self._writer.thinking

    @property
    def plain(self) -> bool:
        """It has begun without reasoning."""
        return self._separate and self._writer.plain

    def push(self, text: str) -> list[AnswerEvent]:
        """The next piece of text."""
        self._reader.feed(text)
        next(self._steps, None)
        return self._writer.take()

    def finish(self, *, cut: bool = False) -> list[AnswerEvent]:
        """No text comes any more. `cut`: it would have gone on, so what is left of the tag that
        ends a call is no text."""
        self._reader.ended, self._reader.cut = True, cut
        next(self._steps, None)
        dropped = ContentText if self._calls_only else ()
        return [event for event in self._writer.finish() if not isinstance(event, dropped)]

    def push_slices(self, text: str) -> Steps[list[AnswerEvent]]:
        """`push` of a long text; yields between the slices."""
        events: list[AnswerEvent] = []
        for start in range(0, len(text), SLICE):
            events += self.push(text[start : start + SLICE])
            yield
        return events
