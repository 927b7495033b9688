"""Rules about what could not be read of a script, and what bash makes of its lines.

They report what reading has found, and differ only in words, which are data: remarks.json.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from vivace.deploy.case import Case
from vivace.deploy.files import packaged_path
from vivace.deploy.locations import Location
from vivace.deploy.rules.rule import Issue, Rule, Severity, case_rule
from vivace.files import read_file

LARGEST = 1 << 16
"""bytes of the file"""


class RemarkText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a rule says of the remarks that have its name; `dashes`: in front of their flags."""

    name: str
    severity: Severity
    source: str
    title: str
    reason: str
    remedy: str
    dashes: str = ""


def remark_rule(row: RemarkText) -> Rule:
    """A rule that reports the remarks, where they stand."""

    def report(case: Case) -> Iterator[Issue]:
        for remark in case.remarks:
            if remark.rule == row.name:
                flag = remark.flag and row.dashes + remark.flag
                at = case.sources.find("", flag, Location(remark.file, remark.line, remark.end))
                yield Issue(flag, remark.text, row.remedy, remark.severity, place=at)

    report.__doc__ = row.title
    return case_rule(row.name, row.severity, source=row.source, reason=row.reason)(report)


@case_rule("no-roles", "warning", source="Vivace")
def no_roles(case: Case) -> Iterator[Issue]:
    """A deployment has roles.
    Rules are about servers: of a file that names none, hardly anything can be wrong."""
    if not case.deployment.roles and not case.deployment.benchmarks:
        text = "the file has no roles: there is nothing to check"
        yield Issue("roles", text, "add roles, or check the files that include this one")


REMARK_TEXTS = msgspec.json.decode(
    read_file(packaged_path("rules/remarks.json"), LARGEST), type=tuple[RemarkText, ...]
)
REMARK_RULES = tuple(map(remark_rule, REMARK_TEXTS))
