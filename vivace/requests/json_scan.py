"""The structure of a large JSON body, before it is decoded: how many values, how deep, and where
the lists that stand directly in it can be cut into pieces; and its strings, where it is very large.

A strict decoder reads every byte later; here it is enough that no valid document is misread, and
that what is left in one piece is small. Strings are skipped, numbers are not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import Work
from vivace.requests.limits import DEPTH, PART_VALUES, PROMPTS, VALUES

WINDOW = 64 << 10
"""Bytes looked at without a pause."""
PIECE = 16 << 10
"""Bytes after which a list is cut at the next comma."""
PIECE_VALUES = 1024
PART_BYTES = 1 << 20
"""Bytes that are decoded without a pause, less than 3 ms whatever they hold. Strings are taken out
of a larger document, and what is left of it (of one entry of a list) may not be longer."""
SHORT = 64
"""Bytes of a string that is not taken out."""
TURNS = 32
"""Lists and strings looked at without a pause, if they are short."""

Data = bytes | bytearray

_PLAIN = re.compile(rb'[^"\[\]{}]*+')
_COLON = re.compile(rb"[ \t\n\r]*+:")
_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_QUOTE, _BACKSLASH = b'"\\'
_OPENING = frozenset(b"[{")
_LIST = ord("[")


@dataclass(frozen=True)
class ListField:
    """A field whose value may be a list: its longest, and whether it may hold token ids."""

    limit: int
    ids: bool


@dataclass
class ListSpan:
    """A list in the body: its field, where its content starts and ends, the commas to cut at."""

    name: str
    start: int
    end: int = 0
    commas: list[int] = field(default_factory=list)
    rows: dict[int, ListSpan] = field(default_factory=dict)
    """Entries that are long lists of ids themselves, by their places."""


def too_deep() -> BadRequest:
    return BadRequest("body", f"is nested too deeply; at most {DEPTH} levels are allowed")


class Scan:
    """One walk over a body. `fields` are the lists that can be cut, by name.

    Counted as values: entries and members (by their commas), lists and objects; of token ids only
    the lists they stand in.
    """

    def __init__(self, data: Data, fields: Mapping[str, ListField]) -> None:
        self.cuts: list[ListSpan] = []
        self.strings: list[tuple[int, int]] = []
        """Where those of a very large document begin and end, keys and short ones left out."""
        self._data = data
        self._large = len(data) > PART_BYTES
        self._fields = fields
        self._depth = 0
        self.values = 0
        """Counted so far."""
        self._strings = 0
        self._part = 0
        """Values of the field, or of the entry of its list, that is being read."""
        self._string = (0, 0)
        """The last string of the body's own level: its key, or a value."""
        self._name = ""
        self._list: ListSpan | None = None
        self._row_span: ListSpan | None = None
        self._known: ListField | None = None
        self._entries = 0
        self._prompts = 0
        self._row = 0
        self._since = 0
        """Values since the last cut."""

    def run(self) -> Work[None]:
        """Read the body; BadRequest as soon as it holds too much."""
        data, size = self._data, len(self._data)
        place = turns = 0
        while place < size:
            start = place
            match = _PLAIN.match(data, place, min(place + WINDOW, size))
            assert match is not None  # it may be empty
            end = match.end()
            if end > place:
                self._plain(place, end)
            if end == size:
                break
            byte = data[end]
            place = end + 1
            if byte == _QUOTE:
                place = yield from self._skip(place)
                self._quoted(end + 1, place - 1)
                if self._large and place - end > SHORT and not _COLON.match(data, place):
                    self.strings.append((end + 1, place - 1))
            elif byte in _OPENING:
                self._open(byte, place)
            elif byte in b"]}":
                self._close(end)
            else:
                place = end  # the window ends here
            turns += 1
            if not turns % TURNS or place - start > TURNS * TURNS:
                yield
        if self._depth:
            raise BadRequest("body", "is not valid JSON: a bracket is never closed")

    def _skip(self, place: int) -> Work[int]:
        """Where the string ends that begins at `place`, behind its quote."""
        data, size = self._data, len(self._data)
        while place < size:
            match = _STRING.match(data, place, min(place + WINDOW, size))
            assert match is not None  # it may be empty
            place = match.end()
            if place < size and data[place] == _QUOTE:
                return place + 1
            if place < size and data[place] == _BACKSLASH:
                place += 2  # the window ends inside of an escape
            yield
        raise BadRequest("body", "is not valid JSON: a string is never closed")

    def _quoted(self, start: int, end: int) -> None:
        if self._depth == 1:
            self._string = (start, end)
        elif self._known is not None and self._known.ids:
            self._prompt()
            return
        self._strings += 1
        if self._strings > 2 * self.values + 2:  # keys and values of the members so far
            raise BadRequest("body", "is not valid JSON: strings with no comma between them")

    def _plain(self, start: int, end: int) -> None:
        data, known = self._data, self._known
        commas = data.count(b",", start, end)
        if self._depth == 1:
            if b":" in data[start:end]:
                first, last = self._string
                self._name = data[first:last].decode("utf-8", "replace")[:100]
            if commas:
                self._part = 0
                self._count(commas)
        elif known is not None and self._depth == 2:
            if commas:
                self._enter(known, commas, start, end)
        elif known is not None and known.ids:
            self._row += commas
            if self._row >= known.limit:
                raise too_long(f"{self._name}[{self._entries}]", self._row + 1, known.limit)
            if commas and self._depth == 3:
                self._cut_row(start, end)
        elif commas:
            self._count(commas)

    def _enter(self, known: ListField, commas: int, start: int, end: int) -> None:
        """More entries of a list that can be cut."""
        self._entries += commas
        if self._entries >= known.limit:
            raise too_long(self._name, self._entries + 1, known.limit)
        self._part = 0
        if not known.ids:
            self._count(commas)
        self._since += commas
        cuts = self._list
        assert cuts is not None  # there is one where a field is known
        last = cuts.commas[-1] if cuts.commas else cuts.start
        if end - last > PIECE or self._since > PIECE_VALUES:
            cuts.commas.append(self._data.rfind(b",", start, end))
            self._since = 0

    def _cut_row(self, start: int, end: int) -> None:
        row = self._row_span
        if row is not None and end - (row.commas[-1] if row.commas else row.start) > PIECE:
            row.commas.append(self._data.rfind(b",", start, end))

    def _open(self, byte: int, place: int) -> None:
        self._depth += 1
        if self._depth > DEPTH:
            raise too_deep()
        self._count(1)
        self._since += 1
        self._row = 0
        if self._depth == 2 and byte == _LIST:
            self._known = self._fields.get(self._name)
            if self._known is not None:
                self._list = ListSpan(self._name, place)
                self._entries = self._since = self._prompts = 0
        elif self._known is not None and self._known.ids:
            self._prompt()
            if self._depth == 3 and byte == _LIST:
                self._row_span = ListSpan(self._name, place)

    def _prompt(self) -> None:
        """One more text, or list of ids, in a list that is otherwise one of ids."""
        self._prompts += 1
        if self._prompts > PROMPTS:
            raise too_long(self._name, self._prompts, PROMPTS)

    def _close(self, place: int) -> None:
        self._depth -= 1
        if self._depth < 0:
            raise BadRequest("body", "is not valid JSON: a bracket closes that never opened")
        if self._depth == 2 and self._list is not None and (row := self._row_span) is not None:
            if row.commas:
                row.end = place
                self._list.rows[self._entries] = row
            self._row_span = None
        if self._depth == 1 and self._list is not None:
            self._list.end = place
            self.cuts.append(self._list)
            self._list = self._known = None

    def _count(self, values: int) -> None:
        self.values += values
        self._part += values
        if self.values > VALUES:
            raise BadRequest("body", f"holds {self.values} values or more; at most {VALUES} fit")
        if self._part > PART_VALUES:
            raise BadRequest(
                self._name or "body",
                f"one part holds {self._part} values or more; at most {PART_VALUES} are allowed",
            )


def too_long(name: str, count: int, limit: int) -> BadRequest:
    return BadRequest(name, f"has {count} entries or more; at most {limit} are allowed")
