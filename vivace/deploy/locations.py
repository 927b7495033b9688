"""Where in the files a role, a flag or a variable stands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property

import msgspec

COMMAND = "command line"
"""what findings call a command that was typed after `--`"""


class Location(msgspec.Struct, frozen=True):
    """Lines of a file, from 1: of a command, of a container, of a role."""

    file: str = ""
    line: int = 0
    end: int = 0


class Sources(msgspec.Struct, frozen=True, dict=True):
    """What was read: `texts` by file, `roles`: the places of each role's servers."""

    texts: Mapping[str, str] = {}
    roles: Mapping[str, tuple[Location, ...]] = {}

    @cached_property
    def lines(self) -> dict[str, list[str]]:
        return {file: content.splitlines() for file, content in self.texts.items()}

    def place_of(self, role: str) -> Location:
        """Of a role; without one, of the first."""
        found = self.roles.get(role) or next(iter(self.roles.values()), ())
        return found[0] if found else Location()

    def find(self, role: str, name: str, place: Location | None = None) -> Location:
        """A flag or a variable of a role: in its own lines, else nearest above them, else in a file
        that was read for it."""
        at = place or self.place_of(role)
        if not name or at.file not in self.texts:
            return at
        lines = self.lines[at.file]
        start, end = max(0, at.line - 1), max(at.line, at.end)
        for index in [*range(start, min(end, len(lines))), *range(start - 1, -1, -1)]:
            if holds(lines[index], name):
                return Location(at.file, index + 1, index + 1)
        return self.elsewhere(name, at) if role else at

    def elsewhere(self, name: str, at: Location) -> Location:
        places = {place.file for each in self.roles.values() for place in each}
        for file, lines in self.lines.items():
            if file in places:
                continue
            for index, line in enumerate(lines, 1):
                if holds(line, name):
                    return Location(file, index, index)
        return at


def holds(line: str, name: str) -> bool:
    """Whether a line, comments left out, has the word."""
    if line.lstrip().startswith("#"):
        return False
    bare = name.lstrip("-")
    if bare not in line:
        return False
    dashes = r"-{1,2}" if name.startswith("-") else ""
    return re.search(rf"(?<![\w-])(?:{dashes})?{re.escape(bare)}(?![\w-])", line) is not None
