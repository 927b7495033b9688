"""A case -> a verdict: every rule runs once, in the order of docs/rules.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from types import ModuleType

import msgspec

from vivace.deploy.case import Case
from vivace.deploy.rules.assumptions import weakened
from vivace.deploy.rules.rule import SEVERITIES, Issue, Rule, Severity
from vivace.terminal import shorten

MODULES = tuple(
    import_module(f"vivace.deploy.rules.{name}")
    for name in """reading flags refused parallelism experts speculative
    disaggregation hosts load memory environment rewrites""".split()
)


def rules_in(module: ModuleType) -> Iterator[Rule]:
    """In the order of its definitions, also of those in a tuple."""
    for value in vars(module).values():
        for rule in value if isinstance(value, tuple) else (value,):
            if isinstance(rule, Rule) and rule.check.__module__ == module.__name__:
                yield rule


RULES: tuple[Rule, ...] = tuple(rule for module in MODULES for rule in rules_in(module))
WORDS = tuple(f"vivace.deploy.rules.{name}" for name in ("reading", "flags"))
"""modules whose rules ask whether a flag exists at all; of one that the target lacks, others say
nothing"""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report, `line` counted from 1; 0: it stands nowhere."""

    rule: str
    severity: Severity
    file: str
    role: str
    flag: str
    line: int
    text: str
    remedy: str
    source: str


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """All findings, worst first, and the rules that were skipped, by what is not known."""

    findings: tuple[Finding, ...]
    skipped: dict[str, tuple[str, ...]]

    @property
    def errors(self) -> int:
        return sum(finding.severity == "error" for finding in self.findings)


def find_rule(name: str) -> Rule | None:
    """Three names are British; the American spelling finds them too."""
    british = name.replace("quantiz", "quantis")
    return next((rule for rule in RULES if rule.name in (name, british)), None)


def judge(case: Case, rules: Sequence[Rule] = RULES) -> CheckResult:
    """Findings worst first, else in the order of the rules."""
    findings: list[Finding] = []
    skipped: dict[str, list[str]] = {}
    for rule in rules:
        if not rule.holds_for(case):
            continue
        lacking = next((need for need in rule.needs if case.lacks(need)), None)
        if rule.platforms and not case.platform:
            lacking = "device"
        if lacking is not None:
            skipped.setdefault(lacking, []).append(rule.name)
            continue
        findings += (
            finding_from(rule, weakened(rule, issue, case), case)
            for issue in rule.issues(case)
            if rule.check.__module__ in WORDS or not case.target.lacks(issue.flag)
        )
    ordered = sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
    return CheckResult(
        findings=tuple(ordered), skipped={need: tuple(names) for need, names in skipped.items()}
    )


def finding_from(rule: Rule, issue: Issue, case: Case) -> Finding:
    place = issue.place if issue.place.line else case.sources.find(issue.role, issue.flag)
    return Finding(
        rule=rule.name,
        severity=issue.severity or rule.severity,
        file=place.file or case.file,
        role=issue.role,
        flag=shorten(issue.flag),
        line=place.line,
        text=shorten(issue.text),
        remedy=shorten(issue.remedy),
        source=rule.source,
    )
