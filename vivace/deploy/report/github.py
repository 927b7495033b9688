"""The report as workflow commands of GitHub: annotations at the lines of a change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vivace.deploy.files import relative_to
from vivace.deploy.locations import NO_FILE
from vivace.deploy.report.terminal import headline, skipped_lines, summary
from vivace.deploy.rules.judge import CaseResult, Finding, ReadFailure
from vivace.deploy.rules.rule import Severity
from vivace.terminal import printable

COMMANDS: dict[Severity, str] = {
    "error": "error",
    "warning": "warning",
    "note": "notice",
    "doc": "notice",
}
IN_MESSAGES = {"%": "%25", "\r": "%0D", "\n": "%0A"}
IN_PROPERTIES = {**IN_MESSAGES, ":": "%3A", ",": "%2C"}


def github_lines(
    checked: Sequence[CaseResult | ReadFailure], root: str, *, notes: bool
) -> Iterator[str]:
    """An annotation for each finding (GitHub shows ten of a kind for a step, so the worst come
    first), then what the log says of each deployment."""
    for each in checked:
        if isinstance(each, ReadFailure):
            yield command("error", "not readable", each.text, annotation_path(each.file, root), 0)
            continue
        findings = each.result.findings
        shown = [one for one in findings if notes or one.severity in ("error", "warning")]
        yield from (annotation(finding, root) for finding in shown)
        yield f"::group::{escape('  '.join(headline(each.case)), IN_MESSAGES)}"
        yield from skipped_lines(each.result)
        yield "::endgroup::"
        yield summary(each.result, hidden=len(findings) - len(shown))


def annotation(finding: Finding, root: str) -> str:
    place = " ".join(part for part in (finding.role, finding.flag) if part)
    title = f"{finding.rule} ({place})" if place else finding.rule
    text = finding.text + (f"\n-> {finding.remedy}" if finding.remedy else "")
    file = annotation_path(finding.file, root)
    return command(COMMANDS[finding.severity], title, text, file, finding.line)


def annotation_path(file: str, root: str) -> str:
    return "" if file in NO_FILE else relative_to(root, file)


def command(kind: str, title: str, text: str, file: str, line: int) -> str:
    found = {"file": file, "line": str(line) if file and line else "", "title": title}
    properties = ",".join(
        f"{name}={escape(value, IN_PROPERTIES)}" for name, value in found.items() if value
    )
    return f"::{kind} {properties}::{escape(text, IN_MESSAGES)}"


def escape(text: str, replacements: dict[str, str]) -> str:
    return "".join(replacements.get(letter) or printable(letter) for letter in text)
