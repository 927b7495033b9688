"""Text that comes in pieces, read as if it were there: who needs more of it waits with `yield`.

What is read never depends on how the text was cut. Only what may be the beginning of a marker stays
in the buffer, so each character is looked at a bounded number of times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Reads, and yields where it needs text that has not come."""

Write = Callable[[str], None]

SPACE = re.compile(r"\s*")


class NotACall(Exception):
    """What looked like a call is none: it is text."""


class MarkerSet:
    """Literals that end a text. The first character of one occurs inside none, so two never
    overlap."""

    def __init__(self, markers: Iterable[str]) -> None:
        self.markers = tuple(dict.fromkeys(marker for marker in markers if marker))
        self.pattern = re.compile("|".join(map(re.escape, self.markers)))
        self._firsts = frozenset(marker[0] for marker in self.markers)
        self._longest = max(map(len, self.markers), default=0)

    def partial(self, text: str, start: int) -> int:
        """Where the beginning of a marker begins at the end of the text, not before `start`."""
        for place in range(max(start, len(text) - self._longest + 1), len(text)):
            if text[place] in self._firsts:
                tail = text[place:]
                if any(marker.startswith(tail) for marker in self.markers):
                    return place
        return len(text)


@lru_cache(maxsize=256)
def marker_set(*markers: str) -> MarkerSet:
    return MarkerSet(markers)


class TextReader:
    """`text[at:]` has come and is not read yet."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self.cut = False
        """where it ended, it would have gone on"""
        self._record: list[str] | None = None

    def feed(self, text: str) -> None:
        """The next piece."""
        self.text = self.text[self.at :] + text
        self.at = 0

    # -- a record of what is read, for what turns out to be something else ------------------------

    def record(self, begin: str = "") -> None:
        """Keep what is read from here on; `begin` was read before."""
        self._record = [begin]

    def take_record(self) -> str:
        """What was read since then; nothing when it was not to be kept."""
        record, self._record = self._record, None
        return "".join(record or ())

    # -- what is next ----------------------------------------------------------------------------

    def take(self, end: int) -> str:
        """Read up to a place of `text`."""
        text = self.text[self.at : end]
        self.at = end
        if self._record is not None:
            self._record.append(text)
        return text

    def unread(self, marker: str) -> None:
        """Give back what was just read."""
        self.at -= len(marker)

    def give_back(self, text: str) -> None:
        """Have it read again."""
        self.text = text + self.text[self.at :]
        self.at = 0

    def more(self) -> Steps[bool]:
        """Wait for a character; False when none comes any more."""
        while self.at == len(self.text):
            if self.ended:
                return False
            yield
        return True

    def peek(self) -> Steps[str]:
        """The next character, which stays; "" at the end."""
        return self.text[self.at] if (yield from self.more()) else ""

    def is_next(self, literal: str) -> Steps[bool]:
        """Whether it comes next; it stays."""
        while not self.text.startswith(literal, self.at):
            rest = self.text[self.at : self.at + len(literal)]  # no more: a long text may follow
            if self.ended or not literal.startswith(rest):
                return False
            yield
        return True

    def skip(self, literal: str) -> Steps[bool]:
        """Read it if it comes next, or what is left of it where the text was cut."""
        found = yield from self.is_next(literal)
        if found:
            self.take(self.at + len(literal))
        elif self.is_cut(literal):
            self.take(len(self.text))
        return found

    def is_cut(self, literal: str) -> bool:
        """Whether its beginning is what is left of a text that was cut."""
        if not (self.cut and 0 < len(self.text) - self.at < len(literal)):
            return False
        return literal.startswith(self.text[self.at :])

    def expect(self, literal: str) -> Steps[None]:
        """Read it. Raises NotACall when something else comes."""
        if not (yield from self.skip(literal)):
            raise NotACall

    def run(self, pattern: re.Pattern[str], limit: int = 1 << 30) -> Steps[str]:
        """As many characters as `pattern` (of one repeated class) matches, at most `limit`."""
        parts: list[str] = []
        while limit and (yield from self.more()):
            found = pattern.match(self.text, self.at, min(self.at + limit, len(self.text)))
            end = found.end() if found is not None else self.at
            limit -= end - self.at
            parts.append(self.take(end))
            if end < len(self.text):
                break
        return "".join(parts)

    def skip_space(self) -> Steps[None]:
        yield from self.run(SPACE)

    def copy_until(self, markers: MarkerSet, write: Write, end: str = "") -> Steps[str]:
        """Hand on the text before the first marker and read that; "" when the text ends first. Of
        a text that was cut what is left of `end` is read, too."""
        while self.at < len(self.text) or (yield from self.more()):  # mostly it is there
            found = markers.pattern.search(self.text, self.at)
            if found is not None:
                write(self.take(found.start()))
                return self.take(found.end())
            safe = self._end(end) if self.ended else markers.partial(self.text, self.at)
            if safe > self.at:
                write(self.take(safe))
            elif self.ended:
                self.take(len(self.text))
            else:
                yield
        return ""

    def _end(self, marker: str) -> int:
        """Where a text that has ended does: before what is left of the marker if it was cut there,
        unless that is one character, which mostly is text."""
        if self.cut and marker:
            place = marker_set(marker).partial(self.text, self.at)
            if len(self.text) - place > 1:
                return place
        return len(self.text)
