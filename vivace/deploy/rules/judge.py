"""A case -> a verdict: every rule runs once; what it takes for granted weakens what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from types import ModuleType

import msgspec

from vivace.config.releases.tables import latest, releases
from vivace.deploy.case import Case
from vivace.deploy.from_script.programs import PARTS
from vivace.deploy.memory.weights import weight_precision
from vivace.deploy.rules.rule import SEVERITIES, Issue, Rule, Severity
from vivace.deploy.server_plan import UnknownValue
from vivace.terminal import shorten

MODULES = tuple(
    import_module(f"vivace.deploy.rules.{name}")
    for name in """flags refused combinations parallelism experts speculative
    disaggregation hosts load environment rewrites""".split()
)


def rules_in(module: ModuleType) -> Iterator[Rule]:
    """In the order of its definitions, also of those in a tuple."""
    for value in vars(module).values():
        for rule in value if isinstance(value, tuple) else (value,):
            if isinstance(rule, Rule) and rule.check.__module__ == module.__name__:
                yield rule


RULES: tuple[Rule, ...] = tuple(rule for module in MODULES for rule in rules_in(module))
WORDS = "vivace.deploy.rules.flags"
"""whose rules ask whether a flag exists at all; of one that the target lacks, others say nothing"""


class RuleAssumption(msgspec.Struct, frozen=True, kw_only=True):
    """`meaning`: for docs/rules.md; `text` and `remedy`: what a finding says;
    `is_open(case, role)`: nothing in the case settles it."""

    meaning: str
    text: Callable[[Rule, Case], str]
    remedy: str
    is_open: Callable[[Case, str], bool]


def precision_is_open(case: Case, role: str) -> bool:
    stated = case.deployment.model.quantization
    servers = [each for each in case.servers if each.name == role]
    with suppress(UnknownValue):
        return not all(weight_precision(each, stated, case.model)[1] for each in servers)
    return True


def program_is_open(case: Case, role: str) -> bool:
    benchmarks, roles = case.deployment.benchmarks, case.deployment.roles
    parts = benchmarks if role == "benchmark" else [roles[role]] if role in roles else []
    return any(each.program not in PARTS for each in parts)


KNOWN = f"SGLang {releases()[0]} to {latest()}"
ASSUMPTIONS = {
    "model": RuleAssumption(
        meaning="the model is the one whose name its path resembles",
        text=lambda rule, case: f"the model is {case.model.title if case.model else 'known'}",
        remedy="--model NAME, or model.config with its config.json",
        is_open=lambda case, role: case.model is not None and case.model_guessed,
    ),
    "precision": RuleAssumption(
        meaning="the weights have 16 bits, or 8 with --quantization modelslim",
        text=lambda rule, case: "the weights have the precision that the flags suggest",
        remedy="--quantization bf16, fp8, w8a8 .. (model.quantization)",
        is_open=precision_is_open,
    ),
    "blocks": RuleAssumption(
        meaning="weights in FP8 have the blocks of the release that the path resembles",
        text=lambda rule, case: "the weights have the blocks of the model's own release in FP8",
        remedy="--model DIR, or model.config with its config.json",
        is_open=lambda case, role: case.model is not None and not case.model.blocks.certain,
    ),
    "gpu": RuleAssumption(
        meaning="the device is a GPU of NVIDIA before Blackwell: others may pad weights",
        text=lambda rule, case: "the device pads no weights",
        remedy="--hardware NAME",
        is_open=lambda case, role: case.device is None or case.platform == "hip",
    ),
    "scripts": RuleAssumption(
        meaning="no other script belongs to the deployment",
        text=lambda rule, case: "no other script belongs to the deployment",
        remedy="check all scripts together",
        is_open=lambda case, role: bool(case.launches),
    ),
    "program": RuleAssumption(
        meaning="the program takes the flags of SGLang's or Vivace's own",
        text=lambda rule, case: "its program takes the flags of SGLang's own",
        remedy="`program: sglang.launch_server`, or another that is known",
        is_open=program_is_open,
    ),
    "release": RuleAssumption(
        meaning="the engine is of the releases that the rule holds for, or that are known",
        text=lambda rule, case: f"the engine is {rule.scope.rpartition(', ')[2] or KNOWN}",
        remedy="--target sglang==VERSION",
        is_open=lambda case, role: case.target.engine == "sglang" and not case.target.version,
    ),
}
"""name in a rule's decorator -> what it means"""


def weakened(rule: Rule, issue: Issue, case: Case) -> Issue:
    """An error that rests on open assumptions becomes a warning that names them."""
    severity = issue.severity or rule.severity
    names = [name for name in rule.assumptions if ASSUMPTIONS[name].is_open(case, issue.role)]
    if severity != "error" or issue.certain or not names:
        return issue
    found = [ASSUMPTIONS[name] for name in names]
    text = f"{issue.text} (if {' and '.join(each.text(rule, case) for each in found)})"
    settled = [f"to be sure: {each.remedy}" for each in found]
    remedy = "; ".join(filter(None, (issue.remedy, *settled)))
    return msgspec.structs.replace(issue, severity="warning", text=text, remedy=remedy)


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


class CaseResult(msgspec.Struct, frozen=True):
    """A judged case, which every format of the report begins with."""

    case: Case
    result: CheckResult


class ReadFailure(msgspec.Struct, frozen=True):
    """Files that are no deployment, and why."""

    file: str
    text: str


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
            if rule.check.__module__ == WORDS or not case.target.lacks(issue.flag)
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
