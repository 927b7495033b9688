"""Whether releases of SGLang take a value: what argparse would say, release by release."""

from __future__ import annotations

import re
from collections.abc import Iterable

from vivace.config.errors import ConfigError
from vivace.config.releases.tables import (
    ReleasedFlag,
    definitions,
    latest,
    names_of,
    row_at,
    span,
)
from vivace.config.values import parse_value
from vivace.deploy.catalogue.flags import ServerFlag
from vivace.deploy.schema.deployment import FlagValue

SIZE = re.compile(r"-?\d+|\d+(\.\d+)?[kMGT]|\d+[KMGT]i")
"""SGLang's human_readable_int"""


def why_refused(flag: str, value: FlagValue, version: str) -> str:
    """Why a version of SGLang refuses a value (without a version: each of them); empty if it
    takes it, or if the flag is unknown there."""
    if version:
        row = row_at(flag, version)
        reason = "" if row is None else refusal(flag, row, value)
        others = span(releases_with(flag, value)) if reason else ""
        return f"{reason} (SGLang {others} takes it)" if others else reason
    rows = definitions().get(flag) or [row for row in [row_at(flag, latest())] if row is not None]
    reasons = [refusal(flag, row, value) for row in reversed(rows)]
    return reasons[0] if all(reasons) and reasons else ""


def releases_with(flag: str, value: FlagValue) -> list[str]:
    """The releases that take the flag with this value."""
    rows = [row for row in definitions().get(flag, ()) if not refusal(flag, row, value)]
    found = {release for row in rows for release in names_of(row.held)}
    return [release for release in names_of((0, 10**6)) if release in found]


def refusal(flag: str, row: ReleasedFlag, value: FlagValue) -> str:
    """What is wrong with a value for one definition; empty if nothing is."""
    if value is False:
        return ""  # a flag that is left out
    if row.shape == "bool":
        return "" if isinstance(value, bool) else f"{flag} takes no value, got {value}"
    if value is True:
        return "" if row.arity in ("?", "*") else f"{flag} needs a value"
    if row.shape == "size":
        return "" if all(SIZE.fullmatch(text) for text in texts(value)) else not_a_size(flag, value)
    try:
        many = row.arity in ("+", "*")
        for each in value if many and isinstance(value, list) else [value]:
            parse_value(ServerFlag(row.name, (flag,), row.shape, None, row.choices), each)
    except ConfigError as error:
        return str(error)
    return ""


def texts(value: FlagValue) -> Iterable[str]:
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


def not_a_size(flag: str, value: FlagValue) -> str:
    return f"{flag}: {value!r} is not a whole number, nor one with k, M, G, Ki, Mi or Gi"
