"""A case -> a verdict: every rule is asked once, in order."""

from __future__ import annotations

from collections.abc import Sequence

from vivace.deploy.rules.all import RULES
from vivace.deploy.rules.case import Case
from vivace.deploy.rules.finding import SEVERITIES, Finding, Found, Rule, Verdict


def judge(case: Case, rules: Sequence[Rule] = RULES) -> Verdict:
    """Findings worst first, else in the order of the rules."""
    findings: list[Finding] = []
    skipped: dict[str, list[str]] = {}
    for rule in rules:
        lacking = next((need for need in rule.needs if case.lacks(need)), None)
        if lacking is not None:
            skipped.setdefault(lacking, []).append(rule.name)
            continue
        findings += (finding_of(rule, found, case) for found in rule.check(case))
    ordered = sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
    return Verdict(
        findings=tuple(ordered), skipped={need: tuple(names) for need, names in skipped.items()}
    )


def finding_of(rule: Rule, found: Found, case: Case) -> Finding:
    return Finding(
        rule=rule.name,
        severity=found.severity or rule.severity,
        file=case.file,
        role=found.role,
        flag=found.flag,
        line=found.line,
        text=found.text,
        remedy=found.remedy,
        source=rule.source,
    )
