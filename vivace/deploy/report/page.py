"""A page of one file: topology, memory of each role's devices, findings. No scripts, no network."""

from __future__ import annotations

from html import escape

from vivace.deploy.case import Case
from vivace.deploy.catalogue.hardware import GIB
from vivace.deploy.memory.plan import MemoryPlan, plans
from vivace.deploy.report.terminal import format_location, headline, held_text, skipped_lines
from vivace.deploy.report.topology import topology
from vivace.deploy.rules.judge import CheckResult, Finding

COLORS = ("#4e79a7", "#59a14f", "#9c755f", "#f28e2b", "#edc948", "#b07aa1", "#76b7b2", "#e15759",
           "#ff9da7", "#bab0ac", "#86bcb6", "#d37295", "#a0cbe8")  # fmt: skip
BAR = 900
"""width of a memory bar, in pixels"""
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em;
  color: #222; background: #fff }
h1 { font-size: 1.4em } h2 { font-size: 1.15em; margin-top: 2em }
.finding { border-left: 4px solid #bbb; padding: .2em .8em; margin: .7em 0 }
.error { border-color: #c0392b } .warning { border-color: #e69f00 } .note { border-color: #3498db }
.doc { border-color: #8e44ad } .place, .why { color: #666 } .remedy { color: #1e7b34 }
table { border-collapse: collapse } td { padding: .1em .8em .1em 0 } td.n { text-align: right }
.key { display: inline-block; width: .8em; height: .8em; margin-right: .4em }
svg { max-width: 100% } svg text { font: 12px system-ui, sans-serif }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818 }
  svg text { fill: #ddd } .place, .why { color: #999 } .remedy { color: #6fcf97 } }
"""


def page(case: Case, result: CheckResult) -> str:
    """A self-contained HTML page."""
    name, *known = headline(case)
    title = escape(name)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{STYLE}</style></head><body>",
        f"<h1>{title}</h1><p>{escape(' · '.join(known))}</p>",
        "<h2>What runs where</h2>",
        topology(case),
    ]
    parts += [memory(plan) for _, plan in plans(case)]
    parts.append(f"<h2>Findings ({len(result.findings)})</h2>")
    parts += [finding(each) for each in result.findings] or ["<p>Nothing was found.</p>"]
    parts += [f'<p class="why">{escape(line)}</p>' for line in skipped_lines(result)]
    parts.append("</body></html>")
    return "\n".join(parts) + "\n"


def finding(each: Finding) -> str:
    place = " ".join(part for part in (each.role, each.flag, format_location(each)) if part)
    remedy = f'<br><span class="remedy">{escape(each.remedy)}</span>' if each.remedy else ""
    return (
        f'<div class="finding {each.severity}"><b>{each.severity}: {escape(each.rule)}</b> '
        f'<span class="place">{escape(place)}</span><br>{escape(each.text)}{remedy}'
        f'<br><span class="why">{escape(each.source)}</span></div>'
    )


def memory(plan: MemoryPlan) -> str:
    """A bar of one device, the parts as a table, and what the pool holds."""
    heading = f"Memory of one device of {plan.place}: {plan.device.title}"
    return "\n".join(
        [f"<h2>{escape(heading)}</h2>", bar(plan), table(plan), f"<p>{escape(held_text(plan))}. "
         f"Limited by: {escape(plan.binding)}.</p>"]
    )  # fmt: skip


def bar(plan: MemoryPlan) -> str:
    total = plan.device.memory_gib * GIB
    used = sum(part.size for part in plan.parts)
    scale = BAR / max(total, used)
    shapes, x = list[str](), 0.0
    for part, color in zip(plan.parts, part_colors(plan), strict=True):
        width = part.size * scale
        label = f"{part.name}: {part.size / GIB:.2f} GiB"
        shapes.append(
            f'<rect x="{x:.1f}" y="0" width="{width:.1f}" height="34" fill="{color}">'
            f"<title>{escape(label)}</title></rect>"
        )
        x += width
    end = total * scale
    static = (plan.device.context_gib * GIB + plan.usable * plan.fraction) * scale
    shapes.append(f'<line x1="{end:.1f}" x2="{end:.1f}" y1="0" y2="44" stroke="#c0392b"/>')
    shapes.append(f'<line x1="{static:.1f}" x2="{static:.1f}" y1="0" y2="44" stroke="#888"/>')
    shapes.append(f'<text x="{max(0.0, static - 90):.1f}" y="56">static part</text>')
    shapes += axis(max(total, used), scale)
    return f'<svg viewBox="0 0 {BAR + 2} 86" role="img">{"".join(shapes)}</svg>'


def axis(total: float, scale: float) -> list[str]:
    """A tick each quarter, in GiB."""
    shapes = [f'<line x1="0" x2="{total * scale:.1f}" y1="62" y2="62" stroke="#888"/>']
    for quarter in range(5):
        x, size = quarter * total * scale / 4, quarter * total / 4 / GIB
        anchor = "start" if quarter == 0 else "end" if quarter == 4 else "middle"
        shapes.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="62" y2="67" stroke="#888"/>')
        shapes.append(f'<text x="{x:.1f}" y="80" text-anchor="{anchor}">{size:g} GiB</text>')
    return shapes


def part_colors(plan: MemoryPlan) -> list[str]:
    return [COLORS[index % len(COLORS)] for index in range(len(plan.parts))]


def table(plan: MemoryPlan) -> str:
    rows = [
        f'<tr><td><span class="key" style="background:{color}"></span>{escape(part.name)}</td>'
        f'<td class="n">{part.size / GIB:.2f} GiB</td><td>{part.kind}</td>'
        f'<td class="why">{escape(part.why)}</td></tr>'
        for part, color in zip(plan.parts, part_colors(plan), strict=True)
    ]
    used = sum(part.size for part in plan.parts) / GIB
    rows.append(
        f'<tr><td><b>total</b></td><td class="n"><b>{used:.2f} GiB</b></td><td></td>'
        f'<td class="why">of {plan.device.memory_gib:g} GiB</td></tr>'
    )
    return f"<table>{''.join(rows)}</table>"
