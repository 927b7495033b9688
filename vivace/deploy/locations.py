"""Where in the files a role, a flag or a variable stands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property

import msgspec

COMMAND = "command line"
"""what findings call a command that was typed after `--`"""
NO_FILE = ("", COMMAND)


class Location(msgspec.Struct, frozen=True):
    """Lines of a file, from 1: of a command, of a container, of a role."""

    file: str = ""
    line: int = 0
    end: int = 0


class Sources(msgspec.Struct, frozen=True, dict=True):
    """What was read: `texts` by file, `roles`: the places of each role's servers, `keys`: of what
    else a deployment file says, as `hardware.cards`."""

    texts: Mapping[str, str] = {}
    roles: Mapping[str, tuple[Location, ...]] = {}
    keys: Mapping[str, Location] = {}

    @cached_property
    def lines(self) -> dict[str, list[str]]:
        return {file: content.splitlines() for file, content in self.texts.items()}

    def use_variable(self, name: str) -> bool:
        """Whether a script itself uses it."""
        used = re.compile(r"\$\{?" + re.escape(name) + r"\b")
        return any(used.search(content) for content in self.texts.values())

    def role_place(self, role: str) -> Location:
        """Of a role; without one, of the first; without roles, where the file begins."""
        found = self.roles.get(role) or next(iter(self.roles.values()), ())
        if found:
            return found[0]
        file = next(iter(self.texts), "")
        return Location(file, 1, 1) if file else Location()

    def find(self, role: str, name: str, place: Location | None = None) -> Location:
        """A flag or a variable of a role: in its own lines, else nearest above them, else in a file
        that was read for it. A key of the file, where it stands."""
        if place is None and name in self.keys:
            return self.keys[name]
        at = place or self.role_place(role)
        if not name or at.file not in self.texts:
            return at
        own = (at,) if place or role not in self.roles else self.roles[role]
        for each in own:
            found = self.first(name, each.file, range(max(0, each.line - 1), each.end or each.line))
            if found is not None:
                return found
        above = self.first(name, at.file, range(at.line - 2, -1, -1))
        return above or (self.elsewhere(name, at) if role else at)

    def first(self, name: str, file: str, indices: range) -> Location | None:
        """The first of these lines that has the word."""
        lines = self.lines.get(file, [])
        for index in indices:
            if index < len(lines) and holds(lines[index], name):
                return Location(file, index + 1, index + 1)
        return None

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
    at = line.find(bare)
    while at >= 0:
        before, end = line[:at], at + len(bare)
        if name.startswith("-"):
            before = before.removesuffix("-").removesuffix("-")
        if not in_word(before[-1:]) and not in_word(line[end : end + 1]):
            return True
        at = line.find(bare, at + 1)
    return False


def in_word(character: str) -> bool:
    return character.isalnum() or character in ("_", "-")
