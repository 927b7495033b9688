"""gpt-oss's answers (Harmony): messages in channels, of which some are calls."""

from __future__ import annotations

import re

from vivace.parsers.call_syntax import AnswerShape, CallSyntax
from vivace.parsers.calls import CallReader
from vivace.parsers.reader import NotACall, Steps, Write, marker_set

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
BEGINS = (START, CHANNEL)
CALL = "<|call|>"
CALLED = " to="
"""An answer begins so that goes on with the role, which the prompt ends with."""
ENDS = ("<|end|>", "<|return|>", CALL)
MARKERS = (*BEGINS, *ENDS, CONSTRAIN, MESSAGE)
FRAMES = tuple(marker for marker in MARKERS if marker != ENDS[0])
"""which no analysis has"""
WORDS = re.compile(r"[^<]*")
NOTHING = re.compile(r"[\snul]*")
NEXT = "<|end|><|start|>assistant"
HEADS = (
    "<|channel|>commentary to=functions.{name}",
    " to=functions.{name}<|channel|>commentary",
)
TYPES = (" <|constrain|>json", "<|constrain|>json", " json", "")
"""of a call's text, as models say it"""
SHAPE = AnswerShape(
    markers=MARKERS,
    syntaxes=tuple(
        CallSyntax(begin=f"{head}{kind}{MESSAGE}", behind_input=CALL)
        for head in HEADS
        for kind in TYPES
    ),
    messages=(("<|channel|>analysis<|message|>", NEXT), ("<|channel|>commentary<|message|>", NEXT)),
    final="<|channel|>final<|message|>",
    last=True,
)
MAX_HEADER = 256
RECIPIENT = re.compile(r"\bto=([^\s<]+)")
CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")


def read_messages(calls: CallReader, *, separate: bool) -> Steps[None]:
    """Messages to the end; the analysis is reasoning, or content unless it is to be `separate`."""
    reader, writer = calls.reader, calls.writer
    markers = marker_set(*BEGINS, *ENDS)
    write = writer.content
    if (yield from reader.is_next(CALLED)):
        write = yield from read_begin(calls, "", separate=separate)
    while marker := (yield from reader.copy_until(markers, write)):
        write = writer.content
        if marker not in ENDS:
            write = yield from read_begin(calls, marker, separate=separate)


def read_analysis(calls: CallReader, end: str, *, separate: bool) -> Steps[None]:
    """That in front of an answer which obeys a constraint, up to what ends it for that, whatever
    else looks like the frame of a message; of the end stays what begins one that is not final."""
    reader, writer = calls.reader, calls.writer
    reader.record()
    yield from reader.skip_space()
    if not (yield from reader.skip(SHAPE.messages[0][0])):
        reader.give_back(reader.take_record())
        return
    reader.take_record()
    write = writer.reasoning if separate else writer.content
    if (yield from reader.copy_until(marker_set(end), write, end)):
        reader.unread("" if end.endswith(SHAPE.final) else end.removeprefix(ENDS[0]))
        writer.end_reasoning()


def read_begin(calls: CallReader, marker: str, *, separate: bool) -> Steps[Write]:
    """Where the text of the message goes that begins with `marker`; what begins none is text."""
    reader, writer = calls.reader, calls.writer
    reader.record(marker)
    try:
        header = marker + (yield from read_header(calls))
        return (yield from begin_message(calls, header, separate=separate))
    except NotACall:
        writer.content(reader.take_record())
        return writer.content


def read_header(calls: CallReader) -> Steps[str]:
    """What says whose a message is, up to its text. Raises NotACall where that does not come."""
    reader, parts = calls.reader, list[str]()
    while True:
        parts.append((yield from reader.run(WORDS, MAX_HEADER)))
        if (yield from reader.skip(MESSAGE)):
            return "".join(parts)
        for marker in (CHANNEL, CONSTRAIN):
            if (yield from reader.skip(marker)):
                parts.append(marker)
                break
        else:
            raise NotACall


def begin_message(calls: CallReader, header: str, *, separate: bool) -> Steps[Write]:
    """Where the text of a message goes. Raises NotACall for a call that is not to be made."""
    reader, writer = calls.reader, calls.writer
    if (recipient := RECIPIENT.search(header)) is not None:
        name = recipient[1].removeprefix("functions.")
        calls.begin(name)
        if (yield from calls.fenced(name)):
            yield from calls.copy_fenced(CALL)
            return writer.content
        said = yield from reader.run(NOTHING, MAX_HEADER)
        ended = (yield from reader.is_next("<|")) or not (yield from reader.more())
        writer.arguments("{}" if ended and said.strip() in ("", "null") else said)
        return writer.arguments
    reader.take_record()
    if separate and (channel := CHANNEL_NAME.search(header)) and channel[1] == "analysis":
        writer.begin_reasoning()
        return writer.reasoning
    return writer.content
