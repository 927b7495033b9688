"""The report in a terminal: short, coloured, worst first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from vivace.deploy.catalogue.hardware import GIB
from vivace.deploy.memory.plan import MemoryPlan
from vivace.deploy.rules.case import Case
from vivace.deploy.rules.finding import Finding, Severity, Verdict
from vivace.deploy.rules.memory import fraction_for, plans
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
WIDTH = 110
"""columns where the output is no terminal"""


def console() -> Console:
    found = Console(highlight=False, soft_wrap=False)
    return found if found.is_terminal else Console(highlight=False, width=WIDTH)


def show(case: Case, verdict: Verdict, *, notes: bool, memory: bool) -> None:
    out = console()
    out.print(Text(headline(case), style="bold"))
    shown = [f for f in verdict.findings if notes or f.severity in ("error", "warning")]
    for finding in shown:
        out.print(line_of(finding))
    if memory:
        for _, plan in plans(case):
            show_plan(out, plan)
        if case.lacks("model") or case.lacks("device"):
            out.print("no memory table: it needs --model and --hardware")
    for need, names in verdict.skipped.items():
        out.print(Text(f"{len(names)} rules not asked: {NEEDS[need]}", style="dim"))
    out.print(Text(summary(verdict, hidden=len(verdict.findings) - len(shown))))


def headline(case: Case) -> str:
    parts = [case.deployment.name or case.file]
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
    return "  ".join([*parts, ", ".join(roles) or "no roles", f"for {case.target.text}"])


def line_of(finding: Finding) -> Text:
    """Severity, rule, place; then why, and what to do."""
    text = Text()
    text.append(f"{finding.severity:8}", style=STYLES[finding.severity])
    text.append(f"{finding.rule}", style="bold")
    place = " ".join(
        part
        for part in (finding.role, finding.flag, f"line {finding.line}" if finding.line else "")
        if part
    )
    text.append(f"  {place}\n" if place else "\n", style="dim")
    text.append(f"        {finding.text}")
    if finding.remedy:
        text.append(f"\n        -> {finding.remedy}", style="green")
    return text


def summary(verdict: Verdict, hidden: int) -> str:
    counts = [
        f"{count} {name}{'s' if count != 1 and name != 'doc' else ''}"
        for name in STYLES
        if (count := sum(finding.severity == name for finding in verdict.findings))
    ]
    tail = f" ({hidden} not shown: --notes)" if hidden else ""
    return (", ".join(counts) or "nothing found") + tail


def show_plan(out: Console, plan: MemoryPlan) -> None:
    out.print(Text(f"\nmemory of one device of {plan.role}: {plan.device.title}", style="bold"))
    for kind, title in KINDS.items():
        for part in plan.parts:
            if part.kind == kind and part.size:
                why = f"  {part.why}" if part.why else ""
                out.print(f"  {part.name:20}{part.size / GIB:7.2f} GiB  {title}{why}")
    out.print(
        f"  --mem-fraction-static {plan.fraction}{'' if plan.chosen else ' (SGLang computes it)'}: "
        f"static {plan.usable * plan.fraction / GIB:.2f}, outside {plan.outside_limit / GIB:.2f} "
        "GiB"
    )
    out.print(f"  {held_text(plan)}")
    out.print(f"  what is used up first: {plan.binding}{advice(plan)}")


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


def show_suggestions(found: Sequence[Suggestion]) -> None:
    out = console()
    if not found:
        out.print("nothing to suggest: what follows from the rest is as it should be")
    for each in found:
        text = Text(f"{each.role} ", style="dim")
        name = ("--" if each.place == "flags" else "") + each.name
        text.append(f"{name} {shown_value(each.value)}", style="bold green")
        before = "was not set" if each.before is None else f"was {shown_value(each.before)}"
        text.append(f"  ({before}): {each.why}", style="default")
        out.print(text)


def shown_value(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
