"""What every format of the report begins with: a judged case, or why there is none."""

from __future__ import annotations

import msgspec

from vivace.deploy.case import Case
from vivace.deploy.rules.judge import CheckResult


class CaseResult(msgspec.Struct, frozen=True):
    case: Case
    result: CheckResult


class ReadFailure(msgspec.Struct, frozen=True):
    """Files that are no deployment, and why."""

    file: str
    text: str
