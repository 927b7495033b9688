"""What a rule may take for granted, and how the user settles it. Until that is settled, what it
finds is no more than a warning."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec

from vivace.config.releases.tables import latest, releases
from vivace.deploy.case import Case
from vivace.deploy.from_script.programs import PARTS
from vivace.deploy.memory.weights import weight_precision
from vivace.deploy.rules.rule import Issue, Rule
from vivace.deploy.server_plan import UnknownValue


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
