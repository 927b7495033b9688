"""What releases of SGLang take: what argparse would say, and what replaces a flag."""

from __future__ import annotations

import re

from vivace.config.errors import ConfigError
from vivace.config.releases.tables import (
    ReleasedFlag,
    definitions,
    latest,
    releases,
    row_at,
    span,
    successor,
)
from vivace.config.sglang import RETIRED
from vivace.config.values import parse_value
from vivace.deploy.catalogue.flags import ServerFlag
from vivace.deploy.schema.deployment import FlagValue
from vivace.errors import nearest

SIZE = re.compile(r"-?\d+|\d+(\.\d+)?[kMGT]|\d+[KMGT]i")
"""SGLang's human_readable_int"""


def why_refused(flag: str, value: FlagValue, version: str) -> str:
    """Why a version of SGLang refuses a value (without a version: each of them); empty if it
    takes it, or if the flag is unknown there."""
    if version:
        row = row_at(flag, version)
        if row is None or accepts(row, value):
            return ""
        others = releases_with(flag, value)
        return refusal(flag, row, value) + (f" (SGLang {span(others)} takes it)" if others else "")
    rows = definitions().get(flag) or list(find_rows(flag).values())
    if not rows or any(accepts(row, value) for row in rows):
        return ""
    return refusal(flag, rows[-1], value)


def find_rows(flag: str) -> dict[str, ReleasedFlag]:
    """What a flag, or an abbreviation of one, is in each release that takes it."""
    rows = {release: row_at(flag, release) for release in releases()}
    return {release: row for release, row in rows.items() if row is not None}


def releases_with(flag: str, value: FlagValue) -> list[str]:
    """The releases that take the flag with this value."""
    return [release for release, row in find_rows(flag).items() if accepts(row, value)]


def replacement(flag: str, version: str) -> str:
    """What to do about a flag that a version lacks."""
    where = version or latest()
    retired, today = RETIRED.get(flag), successor(flag, where)
    if retired is not None and all(row_at(word, where) for word in retired.today[:1]):
        return f"use {' '.join(retired.today)}" if retired.today else "remove it"
    return f"use {today}" if today else "remove it, or run a version that has it"


def accepts(row: ReleasedFlag, value: FlagValue) -> bool:
    if value is False:
        return True  # a flag that is left out
    if row.shape == "bool" or value is True:
        return value is True and (row.shape == "bool" or row.arity in ("?", "*"))
    return all(fits(row, each) for each in items(row, value))


def items(row: ReleasedFlag, value: FlagValue) -> list[object]:
    many = isinstance(value, list) and row.arity in ("+", "*")
    return list(value) if many and isinstance(value, list) else [value]


def fits(row: ReleasedFlag, item: object) -> bool:
    """Whether one word is of the type, and among the choices."""
    if row.shape == "size":
        return SIZE.fullmatch(str(item)) is not None
    try:
        found = parse_value(ServerFlag(row.name, (row.flag,), row.shape), item)
    except ConfigError:
        return False
    return not row.choices or str(found) in row.choices


def refusal(flag: str, row: ReleasedFlag, value: FlagValue) -> str:
    """What is wrong with a value that a definition does not accept."""
    if row.shape == "bool":
        return f"{flag} takes no value, got {value}"
    if value is True:
        return f"{flag} needs a value"
    wrong = next((each for each in items(row, value) if not fits(row, each)), value)
    if row.shape == "size":
        return f"{flag}: {wrong!r} is no whole number, nor one with k, M, G, Ki, Mi or Gi"
    try:
        parse_value(ServerFlag(row.name, (flag,), row.shape), wrong)
    except ConfigError as error:
        return str(error)
    listed = ", ".join(row.choices)
    return f"{flag}: {str(wrong)!r} is not one of {listed}{nearest(str(wrong), row.choices)}"
