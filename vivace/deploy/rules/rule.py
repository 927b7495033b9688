"""What a rule is: a function under a decorator, whose docstring says what must hold and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Literal

import msgspec

from vivace.deploy.case import Case
from vivace.deploy.schema.deployment import Kind
from vivace.deploy.server_plan import ServerPlan, UnknownValue

Severity = Literal["error", "warning", "note", "doc"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note", "doc")
"""worst first; `doc`: the deployment is right and what is written about it is wrong"""


class Issue(msgspec.Struct, frozen=True):
    """What a rule reports: which flag or variable, what is wrong with it, how to fix it."""

    flag: str
    text: str
    remedy: str = ""
    severity: Severity | None = None
    """where it is not the rule's own"""
    role: str = ""
    """for rules about the whole deployment; otherwise it is the server's"""
    line: int = 0
    file: str = ""
    """with `line`, where it is not where the flag stands"""


ServerCheck = Callable[[ServerPlan, Case], Iterator[Issue]]
CaseCheck = Callable[[Case], Iterator[Issue]]


class Rule(msgspec.Struct, frozen=True):
    """`source`: who says so; `needs`: what must be known of the case: model, device, cards, load;
    `check` yields (role, issue); `module`: where it is defined."""

    name: str
    severity: Severity
    source: str
    needs: tuple[str, ...]
    check: Callable[[Case], Iterator[tuple[str, Issue]]]
    docstring: str
    module: str

    @property
    def title(self) -> str:
        """What must hold."""
        return self.docstring.partition("\n")[0].removesuffix(".")

    @property
    def explanation(self) -> str:
        return " ".join(self.docstring.partition("\n")[2].split())


def case_rule(
    name: str, severity: Severity, *, source: str, needs: tuple[str, ...] = ()
) -> Callable[[CaseCheck], Rule]:
    """A rule about the deployment as a whole."""

    def decorate(function: CaseCheck) -> Rule:
        def check(case: Case) -> Iterator[tuple[str, Issue]]:
            with suppress(UnknownValue):
                for issue in function(case):
                    yield issue.role, issue

        docstring = function.__doc__ or ""
        return Rule(name, severity, source, needs, check, docstring, function.__module__)

    return decorate


def server_rule(
    name: str,
    severity: Severity,
    *,
    source: str,
    needs: tuple[str, ...] = (),
    roles: tuple[Kind, ...] = ("mixed", "prefill", "decode", "encoder"),
    platforms: tuple[str, ...] = (),
    engine: str = "",
    reason: str = "",
) -> Callable[[ServerCheck], Rule]:
    """A rule that runs once for each server of `roles`, only on `platforms` and for `engine` where
    they are given; `reason`: for a docstring that has none."""

    def decorate(function: ServerCheck) -> Rule:
        def check(case: Case) -> Iterator[tuple[str, Issue]]:
            if platforms and case.platform not in platforms:
                return
            if engine not in ("", case.target.engine):
                return
            for server in case.of(*roles):
                with suppress(UnknownValue):
                    for issue in function(server, case):
                        yield server.name, issue

        docstring = f"{function.__doc__ or ''}\n{reason}"
        return Rule(name, severity, source, needs, check, docstring, function.__module__)

    return decorate
