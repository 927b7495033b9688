"""Rules about settings that do not go together, each a row of combinations.json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from vivace.deploy.case import Case
from vivace.deploy.files import packaged_path
from vivace.deploy.rules.rule import Issue, Rule, Severity, server_rule
from vivace.deploy.server_plan import ServerPlan
from vivace.files import read_file

LARGEST = 1 << 16
"""bytes of the file"""
PROPERTIES = ("kind", "expert_mode", "caches_prefixes")
"""of ServerPlan, which conditions may ask for beside options and variables"""
Wanted = dict[str, bool | tuple[str, ...]]
"""name of an option, a variable or a property -> true: given or on; or its values"""


class Combination(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is said where all of `when` holds and nothing of `unless`; `{}` in the text is the value
    of the flag."""

    flag: str
    text: str
    remedy: str = ""
    when: Wanted = {}
    unless: Wanted = {}

    def issues(self, server: ServerPlan) -> Iterator[Issue]:
        """Raises UnknownValue."""
        found = all(holds(server, *each) for each in self.when.items())
        if found and not any(holds(server, *each) for each in self.unless.items()):
            value = find_value(server, self.flag) if "{" in self.text else None
            yield Issue(self.flag, self.text.format(value), self.remedy)


class CombinationRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What it says; `facts` are fields of Rule, and the roles it is about."""

    name: str
    severity: Severity
    title: str
    combinations: tuple[Combination, ...]
    facts: dict[str, Any]


def find_value(server: ServerPlan, name: str) -> Any:
    if name in PROPERTIES:
        return getattr(server, name)
    return server.variable(name) if name.isupper() else server.value(name)


def holds(server: ServerPlan, name: str, wanted: bool | tuple[str, ...]) -> bool:
    if not isinstance(wanted, bool):
        return str(find_value(server, name)) in wanted
    if name in PROPERTIES:
        return bool(getattr(server, name))
    return server.enabled(name) if name.isupper() else server.has(name)


def combination_rule(row: CombinationRule) -> Rule:
    def check(server: ServerPlan, case: Case) -> Iterator[Issue]:
        for each in row.combinations:
            yield from each.issues(server)

    check.__doc__ = row.title
    return server_rule(row.name, row.severity, **row.facts)(check)


COMBINATION_ROWS = msgspec.json.decode(
    read_file(packaged_path("rules/combinations.json"), LARGEST), type=tuple[CombinationRule, ...]
)
COMBINATION_RULES = tuple(map(combination_rule, COMBINATION_ROWS))
