"""What a rule is: a function under a decorator, whose docstring says what must hold and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, wraps
from typing import Any, Literal

import msgspec

from vivace.deploy.case import Case
from vivace.deploy.catalogue.flags import tables
from vivace.deploy.locations import Location
from vivace.deploy.schema.deployment import Kind
from vivace.deploy.server_plan import ServerPlan, UnknownValue

ARGS = "SGLang's server_args.py"
GUIDE = "Ascend parameter guide"
PAGE = "the published configurations"
"""sources of several modules"""
Severity = Literal["error", "warning", "note", "doc"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note", "doc")
"""worst first; `doc`: the deployment is right and what is written about it is wrong"""


class Issue(msgspec.Struct, frozen=True):
    """What a rule reports: what it is about, what is wrong with it, how to fix it.

    `flag`: a flag with its dashes, a variable or a key of the file; in a rule about servers also
    the name of an option, `tp_size`, which findings call as it was typed."""

    flag: str
    text: str
    remedy: str = ""
    severity: Severity | None = None
    """where it is not the rule's own"""
    role: str = ""
    """for rules about the whole deployment; otherwise it is the server's"""
    place: Location = Location()
    """where it is not where the flag stands"""
    certain: bool = False  # whatever the rule assumes


ServerCheck = Callable[[ServerPlan, Case], Iterator[Issue | str]]
CaseCheck = Callable[[Case], Iterator[Issue]]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule is about, and for whom it holds.

    `source`: who says so; `platforms` and `engine`: where it holds, everywhere if empty; `since`
    and `until`: the releases of SGLang it was read in, all later and earlier ones if empty;
    `needs`: what must be known of the case: model, device, cards, load; `assumes`: what it takes
    for granted (names of `judge.ASSUMPTIONS`): an error becomes a warning until that is
    settled; `reason`: for a docstring without one; `once`: of issues that say the same of several
    roles, the first counts."""

    name: str
    severity: Severity
    source: str
    check: CaseCheck
    platforms: tuple[str, ...] = ()
    engine: str = ""
    since: str = ""
    until: str = ""
    needs: tuple[str, ...] = ()
    assumes: tuple[str, ...] = ()
    reason: str = ""
    once: bool = False

    @property
    def title(self) -> str:
        """What must hold."""
        return (self.check.__doc__ or "").partition("\n")[0].removesuffix(".")

    @property
    def explanation(self) -> str:
        return " ".join(f"{self.check.__doc__}\n{self.reason}".partition("\n")[2].split())

    @property
    def scope(self) -> str:
        """Platforms, engine and releases in words; empty where it holds for all."""
        releases = f" from {self.since}" if self.since else ""
        releases += f" up to {self.until}" if self.until else ""
        engine = {"sglang": "SGLang", "vivace": "Vivace", "": "SGLang" if releases else ""}
        return ", ".join(filter(None, (*self.platforms, engine[self.engine] + releases)))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """With those that follow from what it needs and from its releases."""
        model = ("model",) if "model" in self.needs else ()
        return (*self.assumes, *model, *(("release",) if self.until else ()))

    def holds_for(self, case: Case) -> bool:
        """Whether it is a rule of this platform, as far as that is known, engine and release."""
        target = case.target
        if self.platforms and case.platform and case.platform not in self.platforms:
            return False
        if self.engine not in ("", target.engine):
            return False
        too_old = bool(self.since) and target.before(self.since)
        too_new = bool(self.until) and target.since(self.until) and target.version != self.until
        return not (too_old or too_new)

    def issues(self, case: Case) -> Iterator[Issue]:
        """What it finds, until it needs a value that only the machine knows."""
        said: set[str] = set()
        with suppress(UnknownValue):
            for issue in self.check(case):
                if not (self.once and issue.text in said):
                    yield issue
                said.add(issue.text)


def case_rule(name: str, severity: Severity, **facts: Any) -> Callable[[CaseCheck], Rule]:
    """A rule about the deployment as a whole; `facts` are fields of Rule."""
    return lambda check: Rule(name=name, severity=severity, check=check, **facts)


def server_rule(
    name: str,
    severity: Severity,
    about: str = "",
    remedy: str = "",
    *,
    roles: tuple[Kind, ...] = ("mixed", "prefill", "decode", "encoder"),
    **facts: Any,
) -> Callable[[ServerCheck], Rule]:
    """A rule that runs once for each server of `roles`; `about` and `remedy`: the flag of what it
    yields as text alone, and how to fix it; `facts` are fields of Rule."""

    def decorate(function: ServerCheck) -> Rule:
        @wraps(function)
        def check(case: Case) -> Iterator[Issue]:
            for server in case.of(*roles):
                with suppress(UnknownValue):
                    for found in function(server, case):
                        issue = Issue(about, found, remedy) if isinstance(found, str) else found
                        flag = server.flag(issue.flag) if issue.flag in options() else issue.flag
                        yield msgspec.structs.replace(issue, role=server.name, flag=flag)

        return case_rule(name, severity, **facts)(check)

    return decorate


@cache
def options() -> frozenset[str]:
    """Their names, as `tp_size`."""
    return frozenset(option.name for option in tables().flags)
