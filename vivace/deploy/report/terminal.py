"""The report in a terminal: short, in color, worst first."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from vivace.deploy.case import Case
from vivace.deploy.catalogue.hardware import GIB
from vivace.deploy.locations import COMMAND
from vivace.deploy.memory.plan import MemoryPlan, fraction_for, plans
from vivace.deploy.report.groups import group_tables
from vivace.deploy.rules.judge import CheckResult, Finding
from vivace.deploy.rules.rule import Severity
from vivace.terminal import shorten, shown

if TYPE_CHECKING:
    from vivace.deploy.suggest import Suggestion


STYLES: dict[Severity, str] = {
    "error": "bold red",
    "warning": "yellow",
    "note": "cyan",
    "doc": "magenta",
}
KINDS = {"context": "before the engine", "static": "static", "outside": "outside of it (estimate)"}
NEEDS = {
    "model": "the model is not known (--model NAME or config.json)",
    "device": "the hardware is not known (--hardware NAME)",
    "cards": "the number of cards is not known (--hardware NAME --cards N)",
    "load": "the lengths are not known (workload, or --input and --output)",
}
INDENT = " " * 8
HANGING = "hanging"
"""the style of a last column, whose text stays in it when it is folded"""
Line = list[tuple[str, str]]
"""pieces of a line as (text, style); "" is no style"""


def writer() -> Callable[[Line], None]:
    """Colors and folded lines for a person; for a pipe each line as it is, without loading what
    draws."""
    if not sys.stdout.isatty():
        return lambda line: print("".join(shown(text) for text, _ in line))
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)

    def write(line: Line) -> None:
        if line[-1][1] == HANGING:
            columns = Table.grid(padding=(0, 2))
            columns.add_column(no_wrap=True)
            columns.add_row(line[0][0], Text(line[-1][0].strip()))
            console.print(columns)
            return
        text = Text.assemble(*((shown(text), style) for text, style in line))
        depth = len(text.plain) - len(text.plain.lstrip(" "))
        console.print(Padding(text[depth:], (0, 0, 0, depth)) if depth else text)

    return write


def show(case: Case, result: CheckResult, *, notes: bool, memory: bool) -> None:
    write = writer()
    for line in report(case, result, notes=notes, memory=memory):
        write(line)


def report(case: Case, result: CheckResult, *, notes: bool, memory: bool) -> Iterator[Line]:
    yield [("  ".join(headline(case)), "bold")]
    shown = [f for f in result.findings if notes or f.severity in ("error", "warning")]
    for finding in shown:
        yield from format_finding(finding)
    for title, *rows in group_tables(case):
        yield [(title, "bold")]
        yield from ([(row, "")] for row in rows)
    if memory:
        for _, plan in plans(case):
            yield from format_plan(plan)
        if case.lacks("model") or case.lacks("device"):
            yield [("no memory table: set --model and --hardware", "")]
    yield from ([(line, "dim")] for line in skipped_lines(result))
    yield [(summary(result, hidden=len(result.findings) - len(shown)), "")]


def headline(case: Case) -> list[str]:
    """Name, model, devices, roles and target, as far as they are known."""
    parts = [shorten(case.deployment.name or case.file)]
    if case.model is not None:
        parts.append(case.model.title)
    if case.device is not None:
        cards = f"{case.cards} x " if case.cards else ""
        parts.append(cards + case.device.title)
    roles = [
        f"{server.role.instances} {server.name}"
        + (f" of {server.role.nodes} nodes" if server.role.nodes > 1 else "")
        for server in case.all
    ]
    return [*parts, ", ".join(roles) or "no roles", f"for {case.target.text}"]


def format_finding(finding: Finding) -> Iterator[Line]:
    """Severity, rule, place; then why, and what to do."""
    place = " ".join(
        part for part in (finding.role, finding.flag, format_location(finding)) if part
    )
    yield [
        (f"{finding.severity:8}", STYLES[finding.severity]),
        (finding.rule, "bold"),
        (f"  {place}" if place else "", "dim"),
    ]
    yield [(f"{INDENT}{finding.text}", "")]
    if finding.remedy:
        yield [(f"{INDENT}-> {finding.remedy}", "green")]


def format_location(finding: Finding) -> str:
    """File and line; nothing for a command that was typed."""
    return f"{finding.file}:{finding.line}" if finding.line and finding.file != COMMAND else ""


def skipped_lines(result: CheckResult) -> list[str]:
    return [
        f"{len(names)} rule{'s' if len(names) != 1 else ''} skipped: {NEEDS[need]}"
        for need, names in result.skipped.items()
    ]


def summary(result: CheckResult, hidden: int) -> str:
    counts = [
        f"{count} {name}{'s' if count != 1 and name != 'doc' else ''}"
        for name in STYLES
        if (count := sum(finding.severity == name for finding in result.findings))
    ]
    tail = f" ({hidden} not shown: --notes)" if hidden else ""
    return (", ".join(counts) or "nothing found") + tail


def format_plan(plan: MemoryPlan) -> Iterator[Line]:
    yield [("", "")]
    yield [(f"memory of one device of {plan.place}: {plan.device.title}", "bold")]
    for kind, title in KINDS.items():
        for part in plan.parts:
            if part.kind == kind and part.size:
                row = (f"  {part.name:20}{part.size / GIB:7.2f} GiB  {title}", "")
                yield [row, ("  " + part.why, HANGING)] if part.why else [row]
    chosen = "" if plan.chosen else " (SGLang computes it)"
    static, outside = plan.usable * plan.fraction / GIB, plan.outside_limit / GIB
    shares = f"static {static:.2f}, outside {outside:.2f} GiB"
    yield [(f"  --mem-fraction-static {plan.fraction}{chosen}: {shares}", "")]
    yield [(f"  {held_text(plan)}", "")]
    yield [("  limited by: ", ""), (f"{plan.binding}{advice(plan)}", "bold")]


def held_text(plan: MemoryPlan) -> str:
    text = f"{plan.capacity:,} tokens of KV in a group ({plan.token_bytes:,} bytes each)"
    if plan.held is not None:
        text += f": {plan.held} requests of {plan.tokens_each:,} tokens in an instance"
    if plan.needed is not None:
        text += f"; {plan.running} at once in a group need {plan.needed:,}"
    return text + ("; an external draft model is not counted" if plan.external_draft else "")


def advice(plan: MemoryPlan) -> str:
    if plan.pool <= 0:
        return ": a larger --tp-size, fewer bits, or a larger --mem-fraction-static"
    if plan.total("outside") > plan.outside_limit:
        return f": --mem-fraction-static {fraction_for(plan)}"
    if plan.needed is not None and plan.needed > plan.capacity:
        return ": fewer requests at once, or a larger --mem-fraction-static"
    return ""


def show_suggestions(found: Sequence[Suggestion], unresolved: Sequence[Finding]) -> None:
    write = writer()
    if not found:
        write([("nothing to suggest: what can be derived is given, or its load is not known", "")])
    for each in found:
        name = ("--" if each.place == "flags" else "") + each.name
        value = f"{name} {display_value(each.value)}"
        write([(f"{each.role} ", "dim"), (value, "bold green"), (f"  {each.why}", "")])
    for finding in unresolved:
        place = " ".join(part for part in (finding.role, finding.flag) if part)
        remedy = f" -> {finding.remedy}" if finding.remedy else ""
        rule = (f"{finding.severity} {finding.rule}", STYLES[finding.severity])
        write([("left: ", "dim"), rule, (f"  {place}: {finding.text}{remedy}", "")])


def display_value(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
