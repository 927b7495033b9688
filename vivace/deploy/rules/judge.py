"""A case -> a verdict: every rule runs once, in the order of docs/rules.md."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import msgspec

from vivace.config.releases.tables import status, takers
from vivace.deploy.case import Case
from vivace.deploy.locations import Location
from vivace.deploy.rules.assumptions import weakened
from vivace.deploy.rules.rule import SEVERITIES, Issue, Rule, Severity
from vivace.deploy.target import Target

MODULES = tuple(
    import_module(f"vivace.deploy.rules.{name}")
    for name in """reading flags platform_flags refused parallelism experts speculative
    disaggregation hosts load goals memory environment network rewrites""".split()
)
RULES: tuple[Rule, ...] = tuple(
    rule
    for module in MODULES
    for rule in vars(module).values()
    if isinstance(rule, Rule) and rule.module == module.__name__
)
"""in the order of the modules above and of the definitions in each"""
WORDS = tuple(f"vivace.deploy.rules.{name}" for name in ("reading", "flags", "platform_flags"))
"""modules whose rules ask whether a flag exists at all"""


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
            finding_from(rule, role, weakened(rule, role, issue, case), case)
            for role, issue in rule.check(case)
            if rule.module in WORDS or not is_lacking(issue.flag, case.target)
        )
    ordered = sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
    return CheckResult(
        findings=tuple(ordered), skipped={need: tuple(names) for need, names in skipped.items()}
    )


def is_lacking(flag: str, target: Target) -> bool:
    """Whether the target is a release that does not have the flag: what it would do there is
    nothing to report, beside that."""
    older = bool(target.version) and flag.startswith("--")
    return older and status(flag, target.version)[0] == "unknown" and bool(takers(flag))


def finding_from(rule: Rule, role: str, issue: Issue, case: Case) -> Finding:
    place = Location(issue.file, issue.line) if issue.line else case.sources.find(role, issue.flag)
    return Finding(
        rule=rule.name,
        severity=issue.severity or rule.severity,
        file=place.file or case.file,
        role=role,
        flag=issue.flag,
        line=place.line,
        text=issue.text,
        remedy=issue.remedy,
        source=rule.source,
    )
