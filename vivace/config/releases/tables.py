"""The flags and environment variables of SGLang, release by release, and the variables of the
libraries below it.

flags.json and variables.json have one row for each distinct definition; its last column is the
releases that have it, as [first, last, first, last ...] of `releases()`.
"""

from __future__ import annotations

import os
from bisect import bisect, bisect_left
from functools import cache
from itertools import takewhile
from typing import Any, Literal

import msgspec

FOLDER = os.path.dirname(os.path.abspath(__file__))
Status = Literal["known", "short", "ambiguous", "unknown"]
HELP = "--help"
LEGACY = "SGL_*"
"""the row of the releases that take SGL_X for SGLANG_X"""


class ReleasedFlag(msgspec.Struct, frozen=True, array_like=True):
    """A flag as argparse of these releases has it. `spellings`: with blanks between them; `name`:
    what the release calls it inside; `arity`: 0, 1, "?", "+", "*"; `shape`: bool, int, float, size
    (an int that may be written 4k), json, str; `listed`: which choices; `state`: deprecated, stops
    (it is there to be refused), or empty; `today`: what the release names instead."""

    spellings: str
    name: str
    arity: str
    shape: str
    default: Any
    listed: int | None
    state: str
    today: str
    held: tuple[int, ...]

    @property
    def flag(self) -> str:
        return self.spellings.partition(" ")[0]

    @property
    def choices(self) -> tuple[str, ...]:
        return () if self.listed is None else flag_table().choices[self.listed]


class ReleasedVariable(msgspec.Struct, frozen=True, array_like=True):
    """`kind`: switch, whole number, number, text, or empty where readers differ; `state`:
    deprecated, unread (declared, and nothing asks for it), or empty."""

    name: str
    kind: str
    default: Any
    state: str
    today: str
    held: tuple[int, ...]


class Library(msgspec.Struct, frozen=True):
    """`names` of variables, with blanks between them; `source`: who says so."""

    names: str
    source: str


class FlagTable(msgspec.Struct, frozen=True):
    releases: tuple[str, ...]
    choices: tuple[tuple[str, ...], ...]
    flags: tuple[ReleasedFlag, ...]


class VariableTable(msgspec.Struct, frozen=True):
    releases: tuple[str, ...]
    variables: tuple[ReleasedVariable, ...]


def content(name: str) -> bytes:
    with open(os.path.join(FOLDER, name), "rb") as file:
        return file.read()


@cache
def flag_table() -> FlagTable:
    return msgspec.json.decode(content("flags.json"), type=FlagTable)


@cache
def variable_table() -> VariableTable:
    return msgspec.json.decode(content("variables.json"), type=VariableTable)


@cache
def library_variables(*libraries: str) -> frozenset[str]:
    """That libraries or schedulers read or set (libraries.json); without arguments, all of them."""
    table = msgspec.json.decode(content("libraries.json"), type=dict[str, Library])
    return frozenset(
        name
        for library, row in table.items()
        if not libraries or library in libraries
        for name in row.names.split(" ")
    )


def releases() -> tuple[str, ...]:
    """Oldest first."""
    return flag_table().releases


def latest() -> str:
    return releases()[-1]


def holds(held: tuple[int, ...], at: int) -> bool:
    return at in held or bisect(held, at) % 2 == 1


def release_names(held: tuple[int, ...]) -> list[str]:
    return [release for at, release in enumerate(releases()) if holds(held, at)]


def span(names: list[str]) -> str:
    """`0.5.7 to 0.5.10`, with `and` between several runs of releases."""
    order, runs = list(releases()), list[list[str]]()
    for name in names:
        before = order.index(name) - 1
        if runs and before >= 0 and runs[-1][-1] == order[before]:
            runs[-1][1:] = [name]
        else:
            runs.append([name])
    return " and ".join(" to ".join(run) for run in runs)


@cache
def flags_at(release: str) -> dict[str, ReleasedFlag]:
    """Every spelling that a release takes."""
    at = releases().index(release)
    return {
        spelling: row
        for row in flag_table().flags
        if holds(row.held, at)
        for spelling in row.spellings.split(" ")
    }


@cache
def definitions() -> dict[str, list[ReleasedFlag]]:
    """Every spelling of any release -> its definitions, oldest first."""
    found: dict[str, list[ReleasedFlag]] = {}
    for row in sorted(flag_table().flags, key=lambda row: row.held):
        for spelling in row.spellings.split(" "):
            found.setdefault(spelling, []).append(row)
    return found


@cache
def spellings_at(release: str) -> list[str]:
    """Of every flag of the release, sorted."""
    return sorted((*flags_at(release), HELP))


@cache
def status(flag: str, release: str) -> tuple[Status, tuple[str, ...]]:
    """How argparse of that release reads a flag, and the spellings it may mean."""
    if flag == HELP or defined_in(flag, release) is not None:
        return "known", (flag,)
    if not flag.startswith("--"):
        return "unknown", ()
    known = spellings_at(release)
    begun = tuple(takewhile(lambda each: each.startswith(flag), known[bisect_left(known, flag) :]))
    if not begun:
        return "unknown", ()
    return ("short" if len(begun) == 1 else "ambiguous"), begun


def row_at(flag: str, release: str) -> ReleasedFlag | None:
    """The definition that a spelling or an abbreviation has in a release."""
    kind, spellings = status(flag, release)
    return defined_in(spellings[0], release) if kind in ("known", "short") else None


def defined_in(flag: str, release: str) -> ReleasedFlag | None:
    """By the whole spelling."""
    at = releases().index(release)
    return next((row for row in definitions().get(flag, ()) if holds(row.held, at)), None)


def takers(flag: str) -> list[str]:
    """The releases that take a flag as it is written, without abbreviation."""
    rows = definitions().get(flag, ())
    order = {at for row in rows for at in range(len(releases())) if holds(row.held, at)}
    return [releases()[at] for at in sorted(order)]


def is_taken(flag: str) -> bool:
    """Whether any release takes the flag, as it is written or as an abbreviation."""
    return flag in definitions() or flag == HELP or any(
        status(flag, release)[0] != "unknown" for release in releases()
    )  # fmt: skip


def successor(flag: str, release: str) -> str:
    """What stands for a flag in a release: what some release named instead, or a spelling that is
    the same thing there. Empty if nothing does."""
    known, rows = flags_at(release), definitions().get(flag, ())
    for row in reversed(rows):
        if any(each in known for each in flags_in(row.today)):
            return row.today
    names = {row.name for row in rows}
    return next((each.flag for each in known.values() if each.name in names), "")


def flags_in(today: str) -> list[str]:
    """The flags of `--size <n>`, `--mode=x`, `--backend-{decode,prefill}=off`."""
    word = today.partition("=")[0].partition(" ")[0]
    stem, brace, listed = word.partition("{")
    return [stem + each for each in listed.rstrip("}").split(",")] if brace else [word]


def variable_at(name: str, release: str) -> ReleasedVariable | None:
    at = variable_table().releases.index(release)
    return next((row for row in variable_rows().get(name, ()) if holds(row.held, at)), None)


@cache
def variable_rows() -> dict[str, list[ReleasedVariable]]:
    """Every name that any release reads -> its definitions, oldest first."""
    found: dict[str, list[ReleasedVariable]] = {}
    for row in sorted(variable_table().variables, key=lambda row: row.held):
        found.setdefault(row.name, []).append(row)
    return found


def readers(name: str) -> list[str]:
    """The releases in which something asks for a variable. SGL_X stands for SGLANG_X in those that
    say so."""
    rows = [row for row in variable_rows().get(name, ()) if row.state != "unread"]
    found = {release for row in rows for release in release_names(row.held)}
    if name.startswith("SGL_") and name != LEGACY:
        found |= set(readers("SGLANG_" + name[4:])) & set(readers(LEGACY))
    return [release for release in releases() if release in found]
