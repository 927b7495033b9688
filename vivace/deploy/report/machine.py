"""The report as JSON, and its schema: docs/check.schema.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from vivace.config.json_schema import clean_descriptions
from vivace.deploy.difference import Change, Kind
from vivace.deploy.memory.plan import MemoryPart, MemoryPlan, plans
from vivace.deploy.rules.judge import CaseResult, Finding, ReadFailure
from vivace.version import __version__

SCHEMA: Literal[1] = 1
"""rises when a field goes or changes its meaning; new ones may come at any time"""


class RoleMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a role, sizes in bytes. `binding`: what limits the load."""

    role: str
    device: str
    mem_fraction_static: float
    precision: str
    usable_bytes: float
    parts: tuple[MemoryPart, ...]
    kv_bytes_per_token: float
    kv_tokens: int
    kv_tokens_needed: int | None
    requests_held: int | None
    binding: str


class CheckedDeployment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`file`: what was read; `skipped`: rules that were not applied, by what they lack; `memory`:
    with --memory."""

    file: str
    name: str
    target: str
    errors: int
    skipped: dict[str, tuple[str, ...]]
    memory: tuple[RoleMemory, ...] | None = None


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """`findings` of all deployments, worst first in each; `version` of Vivace. A finding's line
    counts from 1; 0: it stands nowhere."""

    schema: Literal[1]
    version: str
    errors: int
    deployments: tuple[CheckedDeployment, ...]
    findings: tuple[Finding, ...]
    failures: tuple[ReadFailure, ...]


class ReportedChange(msgspec.Struct, frozen=True, kw_only=True):
    """`breaks`: the new release does not start with it."""

    kind: Kind
    flag: str
    text: str
    remedy: str
    roles: tuple[str, ...]
    breaks: bool


class DifferenceReport(
    msgspec.Struct, frozen=True, kw_only=True, rename={"old": "from", "new": "to"}
):
    """What --diff says of two releases."""

    schema: Literal[1]
    version: str
    old: str
    new: str
    changes: tuple[ReportedChange, ...]
    unknown: tuple[str, ...]
    """given flags that start-up may change, which the model, the machine or a choice decides"""


def json_report(checked: Sequence[CaseResult | ReadFailure], *, memory: bool = False) -> str:
    judged = [each for each in checked if isinstance(each, CaseResult)]
    report = CheckReport(
        schema=SCHEMA,
        version=__version__,
        errors=sum(each.result.errors for each in judged),
        deployments=tuple(describe_deployment(each, memory) for each in judged),
        findings=tuple(finding for each in judged for finding in each.result.findings),
        failures=tuple(each for each in checked if isinstance(each, ReadFailure)),
    )
    return as_json(report)


def difference_report(
    found: Sequence[Change], old: str, new: str, unknown: Sequence[str]
) -> DifferenceReport:
    changes = (ReportedChange(**msgspec.structs.asdict(each), breaks=each.breaks) for each in found)
    return DifferenceReport(
        schema=SCHEMA,
        version=__version__,
        old=old,
        new=new,
        changes=tuple(changes),
        unknown=tuple(unknown),
    )


def as_json(report: CheckReport | DifferenceReport) -> str:
    # As ASCII: names of files and words of a command may be no UTF-8.
    return json.dumps(msgspec.to_builtins(report), indent=2)


def describe_deployment(checked: CaseResult, memory: bool) -> CheckedDeployment:
    case = checked.case
    return CheckedDeployment(
        file=case.file,
        name=case.deployment.name,
        target=case.target.text,
        errors=checked.result.errors,
        skipped=checked.result.skipped,
        memory=tuple(describe_memory(plan) for _, plan in plans(case)) if memory else None,
    )


def describe_memory(plan: MemoryPlan) -> RoleMemory:
    return RoleMemory(
        role=plan.role,
        device=plan.device.name,
        mem_fraction_static=plan.fraction,
        precision=plan.precision,
        usable_bytes=plan.usable,
        parts=tuple(plan.parts),
        kv_bytes_per_token=plan.token_bytes,
        kv_tokens=plan.capacity,
        kv_tokens_needed=plan.needed,
        requests_held=plan.held,
        binding=plan.binding,
    )


def report_schema() -> dict[str, Any]:
    """The JSON Schema of what --format json prints, draft 2020-12."""
    references, definitions = msgspec.json.schema_components(
        [CheckReport, DifferenceReport], ref_template="#/$defs/{name}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Report of vivace check",
        "anyOf": list(references),
        "$defs": clean_descriptions(definitions),
    }
