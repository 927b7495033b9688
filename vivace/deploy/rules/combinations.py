"""Rules about settings that do not go together, each a row of combinations.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from vivace.deploy.case import Case
from vivace.deploy.files import packaged_path
from vivace.deploy.rules.rule import Issue, Rule, Severity, server_rule
from vivace.deploy.server_plan import ServerPlan
from vivace.files import read_file

LARGEST = 1 << 16
"""bytes of the file"""
PROPERTIES: dict[str, Callable[[ServerPlan, Case], Any]] = {
    "platform": lambda server, case: case.platform,
    "kind": lambda server, case: server.kind,
    "expert_mode": lambda server, case: server.expert_mode,
    "expert_ranks": lambda server, case: server.parallelism.ep,
    "caches_prefixes": lambda server, case: server.caches_prefixes,
    "external_draft": lambda server, case: server.external_draft,
}
"""what conditions may ask for beside options and variables"""
NAMED = re.compile(r"\{(\w+)\}")
Wanted = dict[str, bool | tuple[str, ...]]
"""name of an option, a variable or a property -> true: given or on; or its values"""


class Combination(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is said where all of `when` holds and nothing of `unless`; `{name}` in it is a value."""

    flag: str
    text: str
    remedy: str = ""
    severity: Severity | None = None
    when: Wanted = {}
    unless: Wanted = {}

    def issues(self, server: ServerPlan, case: Case) -> Iterator[Issue]:
        """Raises UnknownValue."""
        found = all(holds(server, case, *each) for each in self.when.items())
        if found and not any(holds(server, case, *each) for each in self.unless.items()):
            names = NAMED.findall(self.text + self.remedy)
            values = {name: find_value(server, case, name) for name in names}
            text, remedy = self.text.format_map(values), self.remedy.format_map(values)
            yield Issue(self.flag, text, remedy, self.severity)


class CombinationRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What it says; `facts` are fields of Rule, and the roles it is about."""

    name: str
    severity: Severity
    title: str
    combinations: tuple[Combination, ...]
    facts: dict[str, Any]


def find_value(server: ServerPlan, case: Case, name: str) -> Any:
    if name in PROPERTIES:
        return PROPERTIES[name](server, case)
    return server.variable(name) if name.isupper() else server.value(name)


def holds(server: ServerPlan, case: Case, name: str, wanted: bool | tuple[str, ...]) -> bool:
    if not isinstance(wanted, bool):
        return str(find_value(server, case, name)) in wanted
    if name in PROPERTIES:
        return bool(PROPERTIES[name](server, case))
    return server.enabled(name) if name.isupper() else server.has(name)


def combination_rule(row: CombinationRule) -> Rule:
    def check(server: ServerPlan, case: Case) -> Iterator[Issue]:
        for each in row.combinations:
            yield from each.issues(server, case)

    check.__doc__ = row.title
    return server_rule(row.name, row.severity, **row.facts)(check)


COMBINATION_ROWS = msgspec.json.decode(
    read_file(packaged_path("rules/combinations.json"), LARGEST), type=tuple[CombinationRule, ...]
)
COMBINATION_RULES = tuple(map(combination_rule, COMBINATION_ROWS))
