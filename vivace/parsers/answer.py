"""How an answer is read: thinking, then text with calls in it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from vivace.parsers.call_syntax import AnswerShape
from vivace.parsers.calls import CallBody, CallReader
from vivace.parsers.reader import MarkerSet, NotACall, Steps, marker_set

LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def new_call_id() -> str:
    """As OpenAI's clients know them."""
    return f"call_{secrets.token_hex(12)}"


def random_id(_name: str, _place: int) -> str:
    return new_call_id()


def short_id(_name: str, _place: int) -> str:
    """Mistral's templates take no other."""
    return "".join(secrets.choice(LETTERS) for _ in range(9))


def numbered_id(name: str, place: int) -> str:
    """Kimi K2 counts all calls of a conversation."""
    return f"functions.{name}:{place}"


class ThinkingState(Enum):
    """Where an answer begins: nothing was thought yet, in the middle of the thinking, behind it."""

    BEFORE = auto()
    INSIDE = auto()
    BEHIND = auto()


@dataclass(frozen=True)
class ThinkingFrame:
    """What text stands around the thinking in front of an answer. `interrupts`: what shows that the
    model forgot to end it. `final`: what comes then where the answer is no call."""

    begin: str
    end: str
    interrupts: tuple[str, ...] = ()
    final: str = ""


@dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """The text of a family's tool calls.

    `begin` and `end` frame a call, or are "", `section` frames all of them; a call without its
    section is one, too. An answer that begins with `bare` may be a call without `begin`. `shape`:
    what is demanded of answers where calls have to obey.
    """

    body: CallBody
    begin: str
    end: str = ""
    section: tuple[str, str] | None = None
    bare: str = ""
    shape: AnswerShape | None = None
    new_id: Callable[[str, int], str] = random_id


@dataclass(frozen=True, kw_only=True)
class ReasoningFormat:
    """The text of a family's thinking. `forced`: answers begin in the middle of it, whatever the
    prompt ends with. `interrupts`: what ends it, too, and is text itself. `kept`: nothing is split
    off, but `begin` is put before the answer, since it was part of the prompt."""

    begin: str
    end: str
    forced: bool = False
    interrupts: tuple[str, ...] = ()
    kept: bool = False

    def state(self, prompt: str, beginning: str) -> ThinkingState:
        """Where the answer to a prompt begins. `beginning`: what the prompt has of it already, as
        it was sent."""
        prompt = prompt.rstrip()
        if beginning:
            inside = beginning.rfind(self.begin) > beginning.rfind(self.end)
            return ThinkingState.INSIDE if inside else ThinkingState.BEHIND
        if prompt.endswith(self.end):
            return ThinkingState.BEHIND
        inside = self.forced or prompt.endswith(self.begin)
        return ThinkingState.INSIDE if inside else ThinkingState.BEFORE


def read_reasoning(
    calls: CallReader, form: ReasoningFormat, ends: Sequence[str], *, inside: bool, split: bool
) -> Steps[None]:
    """The thinking that an answer begins with, if it does: `split` off, or as text. `ends`: what
    ends it; others than its own end belong to what follows."""
    reader, writer = calls.reader, calls.writer
    reader.record()
    yield from reader.skip_space()
    begun = yield from reader.skip(form.begin)
    said = reader.take_record()
    if not begun and not inside:
        writer.content(said)
        return
    copy = writer.reasoning if split else writer.content
    copy("" if begun and split else said)
    marker = yield from reader.copy_until(marker_set(*ends), copy)
    if marker != form.end:
        reader.unread(marker)
    elif not split:
        copy(marker)
    if marker and split:
        writer.end_reasoning()


def read_text(calls: CallReader) -> Steps[None]:
    """Text to the end."""
    reader, writer = calls.reader, calls.writer
    while (yield from reader.more()):
        writer.content(reader.take(len(reader.text)))


def begins_call(calls: CallReader, form: ToolFormat) -> Steps[bool]:
    """Whether what comes next may be one; it stays."""
    reader, found = calls.reader, False
    reader.record()
    yield from reader.skip_space()
    for begin in filter(None, (*(form.section or ())[:1], form.begin, form.bare)):
        found = found or (yield from reader.is_next(begin))
    reader.give_back(reader.take_record())
    return found


def read_calls(calls: CallReader, form: ToolFormat) -> Steps[None]:
    """Text and calls to the end."""
    reader, writer = calls.reader, calls.writer
    outside, inside = call_markers(form)
    markers = outside
    if form.bare:
        yield from read_bare_call(calls, form)
    if not form.begin:
        yield from read_text(calls)
    while marker := (yield from reader.copy_until(markers, writer.content)):
        if form.section is not None and marker == form.section[1]:
            markers = outside
            continue
        reader.record(marker)
        if (yield from read_call(calls, form, marker)) and form.section is not None:
            yield from reader.skip_space()
            markers = outside if (yield from reader.skip(form.section[1])) else inside


def call_markers(form: ToolFormat) -> tuple[MarkerSet, MarkerSet]:
    """What is looked for outside of a section, and inside."""
    first, last = form.section or ("", "")
    return marker_set(first, form.begin), marker_set(first, form.begin, last)


def read_bare_call(calls: CallReader, form: ToolFormat) -> Steps[None]:
    """A call that the answer begins with, without what frames others."""
    reader = calls.reader
    reader.record()
    yield from reader.skip_space()
    if (yield from reader.is_next(form.bare)):
        yield from read_call(calls, form)
    else:
        calls.writer.content(reader.take_record())


def read_call(calls: CallReader, form: ToolFormat, marker: str = "") -> Steps[bool]:
    """What stands in one frame; as text, when it turns out to be none: then False."""
    reader, before = calls.reader, calls.writer.calls
    try:
        if form.section is not None and marker == form.section[0]:
            yield from reader.skip_space()
            yield from reader.expect(form.begin)
        yield from form.body.read(calls, form.end)
        reader.take_record()
    except NotACall:
        calls.writer.content(reader.take_record())
    if calls.writer.calls == before:
        return False
    yield from reader.skip_space()
    yield from reader.skip(form.end)
    return True
