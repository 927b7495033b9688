"""`vivace check --diff OLD NEW`: what changes for a deployment between two releases of SGLang."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from vivace.config.releases.tables import (
    ReleasedFlag,
    flags_at,
    readers,
    row_at,
    status,
    successor,
    variable_at,
)
from vivace.deploy.case import Case
from vivace.deploy.condition_text import count, reason
from vivace.deploy.released import accepts, refusal
from vivace.deploy.schema.deployment import FlagValue
from vivace.deploy.server_plan import ServerPlan
from vivace.deploy.startup import Possible, StartFacts, possible, rewritten
from vivace.terminal import shown

Kind = Literal[
    "removed", "renamed", "ambiguous", "value", "deprecated", "variable", "default", "rewritten",
    "perhaps", "new",
]  # fmt: skip
KINDS: dict[Kind, str] = {
    "removed": "removed",
    "renamed": "renamed",
    "ambiguous": "ambiguous abbreviations",
    "value": "values no longer taken",
    "deprecated": "newly deprecated",
    "variable": "environment variables",
    "default": "new defaults of what is not set",
    "rewritten": "changed at start-up",
    "perhaps": "may be changed at start-up",
    "new": "not taken by the old version",
}
"""in the order of the report, with their headings"""
BREAKING: tuple[Kind, ...] = ("removed", "renamed", "ambiguous", "value")
"""the new version does not start"""


REASONS = 2
"""that are told of one change; those with the fewest conditions"""
COMPUTED, NUMBERS = "computed at start", ("int", "float", "size")


class Change(msgspec.Struct, frozen=True):
    """`roles`: those it concerns; `flag`: or the variable."""

    kind: Kind
    flag: str
    text: str
    remedy: str = ""
    roles: tuple[str, ...] = ()

    @property
    def breaks(self) -> bool:
        return self.kind in BREAKING


def changes(case: Case, old: str, new: str) -> list[Change]:
    """In the order of `KINDS`; what concerns several roles once."""
    found: dict[Change, list[str]] = {}
    for server in case.servers:
        for change in server_changes(server, old, new, case.start_facts):
            found.setdefault(change, []).append(server.name)
    order = list(KINDS)
    merged = [
        msgspec.structs.replace(change, roles=tuple(dict.fromkeys(roles)))
        for change, roles in found.items()
    ]
    return sorted(merged, key=lambda change: order.index(change.kind))


def server_changes(server: ServerPlan, old: str, new: str, facts: StartFacts) -> Iterator[Change]:
    for flag, value in server.role.flags.items():
        if not flag.startswith("-") and value is not None and value is not False:
            yield from flag_changes("--" + flag, value, old, new)
    for name in server.environment:
        yield from variable_changes(name, old, new)
    yield from default_changes(server, old, new)
    yield from start_changes(server, old, new, facts)
    yield from possible_changes(server, old, new, facts)


def flag_changes(flag: str, value: FlagValue, old: str, new: str) -> Iterator[Change]:
    before, after = row_at(flag, old), row_at(flag, new)
    if after is None and before is not None:
        yield lost(flag, new)
    elif before is None and after is not None:
        yield Change("new", flag, f"SGLang {old} does not take {flag}")
    elif before is not None and after is not None:
        yield from definition_changes(flag, value, before, after, new)


def lost(flag: str, new: str) -> Change:
    kind, names = status(flag, new)
    if kind == "ambiguous":
        options = ", ".join(names)
        whole = successor(flag, new) or names[0]
        return Change("ambiguous", flag, f"{flag} could be {options}", f"write {whole}")
    today = successor(flag, new)
    if today:
        return Change("renamed", flag, f"{flag} is called {today}", f"write {today}")
    return Change("removed", flag, f"{flag} is gone", "remove it")


def definition_changes(
    flag: str, value: FlagValue, before: ReleasedFlag, after: ReleasedFlag, new: str
) -> Iterator[Change]:
    today = f"use {after.today}" if after.today else ""
    if after.state == "stops" and before.state != "stops":
        yield Change("removed", flag, f"{flag} is refused", today or "remove it")
    elif after.state == "deprecated" and before.state != "deprecated":
        yield Change("deprecated", flag, f"{flag} is deprecated", today)
    if accepts(before, value) and not accepts(after, value):
        yield Change("value", flag, refusal(flag, after, value), "use a value that it takes")


def variable_changes(name: str, old: str, new: str) -> Iterator[Change]:
    known = readers(name)
    before, after = variable_at(name, old), variable_at(name, new)
    deprecated = after is not None and after.state == "deprecated"
    if deprecated and (before is None or before.state != "deprecated"):
        remedy = f"use {after.today}" if after is not None and after.today else ""
        yield Change("variable", name, f"{name} is deprecated", remedy)
    elif name.startswith(("SGLANG_", "SGL_")) and (old in known) != (new in known):
        text = f"{name} is no longer read" if old in known else f"{name} is read from now on"
        yield Change("variable", name, text, "remove it" if old in known else "")


def default_changes(server: ServerPlan, old: str, new: str) -> Iterator[Change]:
    given = {row.name for flag in server.role.flags if (row := row_at("--" + flag, new))}
    before = {row.name: row for row in flags_at(old).values() if not row.state}
    seen: set[str] = set()
    for after in flags_at(new).values():
        known = before.get(after.name)
        if known is None or after.state or after.name in given or after.name in seen:
            continue
        seen.add(after.name)
        nothing = not known.default and not after.default and after.shape == "bool"
        if known.default != after.default and not nothing:
            old_default, new_default = default_text(known), default_text(after)
            keep = "" if old_default == COMPUTED else f"set it to keep {old_default}"
            text = f"{after.flag}: {old_default} before, {new_default} now"
            yield Change("default", after.flag, text, keep)


def default_text(row: ReleasedFlag) -> str:
    """A number that has no default is one that the start-up chooses."""
    return COMPUTED if row.default is None and row.shape in NUMBERS else display(row.default)


def start_changes(server: ServerPlan, old: str, new: str, facts: StartFacts) -> Iterator[Change]:
    """What the new version certainly changes at start-up, and the old one is not known to."""
    flags = server.role.flags
    before = rewritten(flags, old, facts)
    names = argument_flags(new)
    given = {row.name: flag for flag in flags if (row := row_at("--" + flag, new))}
    for key, row in rewritten(flags, new, facts).items():
        flag = names.get(row.name)
        if key in before or (flag is None and row.name not in given):
            continue
        typed = "--" + given[row.name] if row.name in given else str(flag)
        value = f" {display(flags[given[row.name]])}" if row.name in given else ""
        becomes = in_flags(row.formula, names) or display(row.value)
        yield Change("rewritten", typed, f"{typed}{value} becomes {becomes}")


def possible_changes(server: ServerPlan, old: str, new: str, facts: StartFacts) -> Iterator[Change]:
    """What the new version may make of given flags, and the old one does not, with what decides on
    it; where the model does, and is not known, `open_flags` names the flags instead."""
    names = argument_flags(new)
    for flag, becomes, found in unknown_changes(server, old, new, facts):
        known = [each for each in found if facts.model is not None or not each.by_model]
        known.sort(key=lambda each: (len(each.undecided), len(str(each.undecided))))
        given = f"{flag} {display(server.role.flags[flag[2:]])}"
        if known and not known[0].undecided:
            yield Change("rewritten", flag, f"{given} becomes {becomes}")
            continue
        reasons = list(dict.fromkeys(reason(each.undecided, names) for each in known))
        if not reasons:
            continue
        left = count(len(reasons) - REASONS, "other reason")
        why = ", or ".join([*reasons[:REASONS], *([left] if len(reasons) > REASONS else [])])
        yield Change("perhaps", flag, f"{given} may become {becomes}, because {why}")


def unknown_changes(
    server: ServerPlan, old: str, new: str, facts: StartFacts
) -> Iterator[tuple[str, str, list[Possible]]]:
    """(given flag, what it may become, why) of what the old version does not do as well."""
    flags = server.role.flags
    before = {*rewritten(flags, old, facts), *possible(flags, old, facts)}
    given = {row.name: "--" + flag for flag in flags if (row := row_at("--" + flag, new))}
    names = argument_flags(new)
    for key, found in possible(flags, new, facts).items():
        row = found[0].row
        if key not in before and row.name in given:  # start-up may set others
            formula = f"`{row.formula[2:]}`" if not row.computed else in_flags(row.formula, names)
            yield given[row.name], formula if row.formula else display(row.value), found


def argument_flags(release: str) -> dict[str, str]:
    """What a release calls its arguments inside -> their flags."""
    return {row.name: row.flag for row in reversed(flags_at(release).values()) if not row.state}


def open_flags(case: Case, old: str, new: str) -> list[str]:
    """Given flags that the new version may change by the model, which is not known."""
    if case.model is not None:
        return []
    return sorted(
        {
            flag
            for server in case.servers
            for flag, _, found in unknown_changes(server, old, new, case.start_facts)
            if any(each.by_model for each in found)
        }
    )


def not_known(case: Case, old: str, new: str) -> str:
    """What nothing here tells, for the last lines of the report; empty if the model is known."""
    if case.model is not None:
        taken = f"the model is taken for {case.model.title}, by its path: --model says which it is"
        return taken if case.model_guessed else ""
    flags = open_flags(case, old, new)
    given = f", perhaps {', '.join(flags)}" if flags else ""
    return f"not known: what {new} changes by the model (--model says which it is){given}"


def in_flags(formula: str, names: dict[str, str]) -> str:
    """A formula with flags where it has the names of arguments."""
    return re.sub(r"[a-z_]+", lambda found: names.get(found[0], found[0]), formula)


def display(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "unset"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def as_text(found: list[Change], old: str, new: str, unknown: str) -> str:
    """The report: a heading for each kind, one line for each change; `unknown`: `not_known`."""
    lines: list[str] = []
    for kind, heading in KINDS.items():
        of_kind = [change for change in found if change.kind == kind]
        lines += [f"{heading}:"] if of_kind else []
        for change in of_kind:
            remedy = f" -> {change.remedy}" if change.remedy else ""
            lines.append(shown(f"  {', '.join(change.roles)}: {change.text}{remedy}"))
    lines += [shown(unknown)] if unknown else []
    broken = sum(change.breaks for change in found)
    lines.append(f"SGLang {old} -> {new}: {len(found)} changes, {broken} that stop the start")
    return "\n".join(lines)
