"""`vivace serve --help`: what works on this device; `--help-all`: every flag with its state."""

from __future__ import annotations

import shutil
import textwrap

from vivace.config.option import Support
from vivace.config.table import FlagRow, flag_table

WIDEST = 100
"""columns; longer lines are hard to read"""
INDENT, BELOW = 26, 6
"""columns: where texts begin, beside their flags and below them"""
SECTIONS = {
    "model": "Model",
    "http": "Server",
    "memory": "Memory",
    "schedule": "Scheduling",
    "runtime": "Execution",
    "quantization": "Quantization",
    "logging": "Logs and metrics",
}
"""subsystems in the order a newcomer needs them; the others follow"""
INTRODUCTION = """\
Serve a model over HTTP (OpenAI's and SGLang's APIs). Every flag has a default: without any the \
embedded model is served on http://127.0.0.1:30000."""
EXAMPLES = """\
  vivace serve --model-path /models/Qwen3-0.6B
  vivace serve --model-path org/name --download"""
REST = """\
These flags work on this device ({platform}). `{program} --help-all` shows every flag of SGLang \
and what it does here; `vivace flags TEXT` finds one."""
OWN = (
    ("--config FILE", "YAML file with flag names as keys; typed flags win."),
    ("-h, --help", "The flags that work on this device."),
    ("--help-all", "Every flag of SGLang, and what it does here."),
)


def help_text(program: str, platform: str, *, everything: bool, width: int | None = None) -> str:
    """At most `width` columns wide, default: the terminal's."""
    columns = max(40, min(width or shutil.get_terminal_size().columns, WIDEST))
    rows = list(flag_table(platform, works=None if everything else platform))
    lines = [f"usage: {program} [FLAGS]", "", *textwrap.wrap(INTRODUCTION, columns), "", EXAMPLES]
    for section in sorted({row.option.slice_name: None for row in rows}, key=place):
        lines += ["", SECTIONS.get(section, section.capitalize()) + ":"]
        for row in rows:
            if row.option.slice_name == section:
                lines += entry(names(row, platform), meaning(row, platform), columns)
    lines += ["", "Help:"]
    for flags, text in OWN:
        lines += entry(flags, text, columns)
    if not everything:
        rest = REST.format(platform=platform, program=program)
        lines += ["", *textwrap.wrap(rest, columns)]
    return "\n".join(lines) + "\n"


def works(row: FlagRow, platform: str) -> bool:
    return row.option.states[platform].kind is Support.WORKS


def place(section: str) -> int:
    order = list(SECTIONS)
    return order.index(section) if section in order else len(order)


def entry(flags: str, text: str, columns: int) -> list[str]:
    """The flags on the left, the text on the right, or below flags that are too long for that."""
    head = textwrap.wrap(
        flags, columns, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
    )
    fits = len(head[0]) <= INDENT - 2
    margin = " " * (INDENT if fits else BELOW)
    lines = textwrap.wrap(
        text, columns, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )
    if fits:
        return [head[0].ljust(INDENT) + lines[0][INDENT:], *lines[1:]]
    return [*head, *lines]


def names(row: FlagRow, platform: str) -> str:
    """All names, and once what stands for the value: the choices that work when they are few."""
    option = row.option
    barred = {name for name, state in option.values.items() if state.kind is not Support.WORKS}
    choices = ",".join(choice for choice in option.choices if choice not in barred)
    kind = {"bool": "", "int": " N", "float": " X", "json": " JSON"}.get(option.shape, " VALUE")
    if choices and len(choices) <= WIDEST // 2:
        kind = f" {{{choices}}}"
    return ", ".join(option.flags) + kind


def meaning(row: FlagRow, platform: str) -> str:
    """What it does, its default and, unless it simply works, its state."""
    default = f" [{row.default}]" if row.default not in ("", "False") else ""
    state = "" if works(row, platform) else f" ({row.states[platform]})"
    return row.option.help + default + state
