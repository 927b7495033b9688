"""The report as SARIF 2.1.0, which code scanners collect."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from vivace.deploy.files import relative_to
from vivace.deploy.locations import NO_FILE
from vivace.deploy.report.terminal import skipped_lines
from vivace.deploy.rules.judge import RULES, CaseResult, Finding, ReadFailure
from vivace.deploy.rules.rule import Rule, Severity
from vivace.version import __version__

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
ROOT = "%SRCROOT%"
"""what paths are relative to: the root of what was checked out"""
LEVELS: dict[Severity, str] = {
    "error": "error",
    "warning": "warning",
    "note": "note",
    "doc": "note",
}


def sarif_log(checked: Sequence[CaseResult | ReadFailure], root: str) -> str:
    judged = [each for each in checked if isinstance(each, CaseResult)]
    findings = [finding for each in judged for finding in each.result.findings]
    indices = {rule.name: at for at, rule in enumerate(RULES)}
    run = {
        "tool": {
            "driver": {
                "name": "vivace check",
                "version": __version__,
                "rules": [rule_data(rule) for rule in RULES],
            }
        },
        "automationDetails": {"id": "vivace-check/"},
        "originalUriBaseIds": {ROOT: {"description": {"text": "the root of the repository"}}},
        "invocations": [invocation(checked, root)],
        "results": [result(finding, indices[finding.rule], root) for finding in findings],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def rule_data(rule: Rule) -> dict[str, Any]:
    why = rule.explanation or rule.title
    help_text = f"{rule.title}. {why} Source: {rule.source}."
    return {
        "id": rule.name,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": why},
        "help": {
            "text": help_text,
            "markdown": f"**{rule.title}.** {why}\n\nSource: {rule.source}.",
        },
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
        "properties": {"needs": list(rule.needs)},
    }


def invocation(checked: Sequence[CaseResult | ReadFailure], root: str) -> dict[str, Any]:
    """What could not be read, and which rules were skipped."""
    notifications = list[dict[str, Any]]()
    for each in checked:
        if isinstance(each, ReadFailure):
            where = locations(each.file, 0, "", root)
            notifications.append({"level": "error", "message": {"text": each.text}, **where})
        else:
            notifications += [
                {"level": "note", "message": {"text": f"{each.case.file}: {line}"}}
                for line in skipped_lines(each.result)
            ]
    failed = any(isinstance(each, ReadFailure) for each in checked)
    return {"executionSuccessful": not failed, "toolExecutionNotifications": notifications}


def result(finding: Finding, index: int, root: str) -> dict[str, Any]:
    name = " ".join(part for part in (finding.role, finding.flag) if part)
    text = finding.text + (f"\n-> {finding.remedy}" if finding.remedy else "")
    parts = "\0".join((finding.rule, name, finding.text))
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": LEVELS[finding.severity],
        "message": {"text": text},
        **locations(finding.file, finding.line, name, root),
        "partialFingerprints": {
            "place/v1": hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        },
    }


def locations(file: str, line: int, name: str, root: str) -> dict[str, Any]:
    """Nothing for what stands nowhere; a command that was typed has no file."""
    found = dict[str, Any]()
    if file not in NO_FILE:
        region = {"region": {"startLine": line}} if line else {}
        at = {"artifactLocation": artifact(relative_to(root, file)), **region}
        found["physicalLocation"] = at
    if name:
        found["logicalLocations"] = [{"fullyQualifiedName": name}]
    return {"locations": [found]} if found else {}


def artifact(path: str) -> dict[str, str]:
    if path.startswith("/"):
        return {"uri": "file://" + quote(os.fsencode(path))}
    return {"uri": quote(os.fsencode(path)), "uriBaseId": ROOT}
