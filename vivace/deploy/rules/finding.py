"""What a rule is and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from vivace.deploy.rules.case import Case

Severity = Literal["error", "warning", "note", "doc"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note", "doc")
"""worst first; `doc`: the deployment is right and what is written about it is wrong"""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule saw: where (role, flag or variable, line), why with its numbers, what to do."""

    text: str
    remedy: str = ""
    role: str = ""
    flag: str = ""
    line: int = 0
    severity: Severity | None = None
    """where it is not the rule's own"""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """`title` says what must hold, `explanation` why, `source` who says so; `needs`: what the case
    must know for it, of model, device, cards, load, memory."""

    name: str
    severity: Severity
    title: str
    explanation: str
    source: str
    check: Callable[[Case], Iterable[Found]]
    needs: tuple[str, ...] = ()


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report."""

    rule: str
    severity: Severity
    file: str
    role: str
    flag: str
    line: int
    text: str
    remedy: str
    source: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """All findings, worst first, and the rules that could not be asked, by what they lack."""

    findings: tuple[Finding, ...]
    skipped: dict[str, tuple[str, ...]]

    @property
    def errors(self) -> int:
        return sum(finding.severity == "error" for finding in self.findings)
