"""What a release of SGLang makes of a server's arguments at start-up (releases/rewrites.json).

Only what certainly happens is told: conditions about arguments that were given, about the
platform, and about defaults that nothing else changes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec

from vivace.config.releases.tables import FOLDER, flags_at, holds, releases, row_at
from vivace.deploy.schema.deployment import Flags

UNKNOWN = object()
TOLD = frozenset(
    """ep_size enable_dp_attention chunked_prefill_size schedule_conservativeness page_size
    attention_backend speculative_algorithm speculative_draft_model_path max_running_requests
    enable_mixed_chunk disable_overlap_schedule disable_radix_cache disable_cuda_graph
    ep_dispatch_algorithm disable_shared_experts_fusion schedule_policy tokenizer_worker_num
    enable_symm_mem sampling_backend hicache_mem_layout""".split()
)
"""arguments that rules of their own are about (rules/rewrites.py)"""
PLATFORMS = ("npu", "cuda", "cpu", "hip", "xpu", "hpu")
Condition = list[Any]


class ReleasedRewrite(msgspec.Struct, frozen=True, array_like=True):
    """`name` becomes `value`, or what `formula` computes, if all `conditions` hold."""

    name: str
    value: Any
    formula: str
    conditions: list[Condition]
    held: tuple[int, ...]


class RewriteTable(msgspec.Struct, frozen=True):
    releases: tuple[str, ...]
    rewrites: tuple[ReleasedRewrite, ...]


@cache
def rewrites_at(release: str) -> tuple[ReleasedRewrite, ...]:
    with open(os.path.join(FOLDER, "rewrites.json"), "rb") as file:
        table = msgspec.json.decode(file.read(), type=RewriteTable)
    at = releases().index(release)
    return tuple(row for row in table.rewrites if holds(row.held, at))


class Arguments:
    """A server's arguments as a release knows them, by the names it has for them inside."""

    def __init__(self, flags: Flags, release: str, platform: str) -> None:
        self.release, self.platform = release, platform
        self.given: dict[str, Any] = {}
        for flag, value in flags.items():
            row = row_at("--" + flag, release)
            if row is not None and value is not None and value is not False:
                self.given[row.name] = value
        self.defaults = {
            row.name: row.default for row in reversed(flags_at(release).values()) if not row.state
        }
        self.changed = {row.name for row in rewrites_at(release)}

    def rewrites(self) -> Iterator[ReleasedRewrite]:
        """Those that certainly apply and change something. Values that are only another name for
        one come first: the other conditions ask for the new name."""
        rows = rewrites_at(self.release)
        aliases = [row for row in rows if is_alias(row) and self.applies(row)]
        yield from aliases
        renamed = {row.name: row.value for row in aliases}
        self.given |= renamed
        for row in rows:
            changes = row.formula not in ("", "?") or self.own(row.name) != row.value
            if row not in aliases and row.formula != "?" and changes and self.applies(row):
                yield row

    def undecided(self) -> set[str]:
        """Names of given arguments that may change: a condition, or the new value, asks for the
        model, the machine or what else start-up has chosen."""
        return {
            row.name
            for row in rewrites_at(self.release)
            if row.name in self.given and self.may_change(row)
        }

    def may_change(self, row: ReleasedRewrite) -> bool:
        found = [self.holds(each, row.name) for each in row.conditions]
        return False not in found and (None in found or row.formula == "?")

    def applies(self, row: ReleasedRewrite) -> bool:
        return all(self.holds(each, row.name) is True for each in row.conditions)

    def own(self, name: str) -> Any:
        return self.given.get(name, self.defaults.get(name))

    def value(self, name: str, target: str) -> Any:
        if name in self.given:
            return self.given[name]
        if name == "device" and self.platform:
            return self.platform
        known = name in self.defaults and (name == target or name not in self.changed)
        return self.defaults[name] if known else UNKNOWN

    def holds(self, condition: Condition, target: str) -> bool | None:
        """Whether a condition holds; None if that is not known."""
        word, *parts = condition
        if word in ("and", "or"):
            found = [self.holds(each, target) for each in parts]
            decisive = word == "or"
            if decisive in found:
                return decisive
            return None if None in found else not decisive
        if word == "not":
            found = self.holds(parts[0], target)
            return None if found is None else not found
        if word == "platform":
            return parts[0] == self.platform if self.platform in PLATFORMS else None
        value = UNKNOWN if word == "?" else self.value(parts[0], target)
        return None if value is UNKNOWN else compare(word, value, parts[1:])


def compare(word: str, value: Any, others: list[Any]) -> bool | None:
    if word == "true":
        return bool(value)
    if word == "none":
        return value is None
    if word == "in":
        return value in others[0]
    if word == "=":
        return value == others[0]
    if not isinstance(value, int | float) or not isinstance(others[0], int | float):
        return None
    return {
        ">": value > others[0],
        "<": value < others[0],
        ">=": value >= others[0],
        "<=": value <= others[0],
    }[word]


def is_alias(row: ReleasedRewrite) -> bool:
    return not row.formula and all(
        each[:2] == ["=", row.name] for each in row.conditions
    ) and bool(row.conditions)  # fmt: skip


def rewritten(
    flags: Flags, release: str, platform: str
) -> Mapping[tuple[str, str], ReleasedRewrite]:
    """(argument, what it becomes) -> the rewrite, for everything that certainly changes."""
    found = Arguments(flags, release, platform).rewrites()
    return {(row.name, row.formula or str(row.value)): row for row in found}


def undecided(flags: Flags, release: str, platform: str) -> set[str]:
    """The given flags, with their dashes, of which nothing here can tell whether they change."""
    names = Arguments(flags, release, platform).undecided()
    rows = (("--" + flag, row_at("--" + flag, release)) for flag in flags)
    return {flag for flag, row in rows if row is not None and row.name in names}
