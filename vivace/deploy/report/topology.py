"""What runs where, as a picture: router, instances, nodes, cards and their dies, links."""

from __future__ import annotations

from html import escape

from vivace.deploy.case import Case
from vivace.deploy.from_script.programs import default_port
from vivace.deploy.server_plan import ServerPlan, UnknownValue

WIDTH = 960
DIE, GAP, NODE_GAP, TITLE, ROW = 15, 3, 14, 22, 46
MAX_DIES = 16
"""drawn per node; the rest is only counted"""
MAX_INSTANCES = 12
COLORS = {"prefill": "#f28e2b", "decode": "#4e79a7", "mixed": "#59a14f", "encoder": "#b07aa1"}


def topology(case: Case) -> str:
    """SVG: a column of roles, one row for each instance."""
    shapes: list[str] = []
    y = 10
    for router in case.of("router"):
        port = router.role.flags.get("port", default_port(router.role.program))
        shapes.append(box(10, y, 220, 30, "#888", f"router :{port}"))
        y += 50
    entry = y - 20
    for server in case.servers:
        shown = min(server.role.instances, MAX_INSTANCES)
        for instance in range(shown):
            if case.of("router"):
                shapes.append(line(20, entry, 20, y + 20) + line(20, y + 20, 40, y + 20))
            try:
                shapes.append(draw_instance(case, server, instance, y))
            except UnknownValue as unknown:
                shapes.append(text(44, y + 12, f"{server.name} {instance}: {unknown} is not known"))
            y += ROW + TITLE
        hidden = server.role.instances - shown
        if hidden:
            shapes.append(text(44, y, f"and {hidden} more instances of {server.name}"))
            y += TITLE
    legend = links(case)
    if legend:
        shapes.append(text(10, y + 8, legend))
        y += TITLE
    return f'<svg viewBox="0 0 {WIDTH} {y + 10}" role="img">{"".join(shapes)}</svg>'


def draw_instance(case: Case, server: ServerPlan, instance: int, y: int) -> str:
    """One instance: its nodes side by side, each with its devices, cards apart."""
    layout, nodes = server.parallelism, server.role.nodes
    each = -(-layout.devices // nodes)
    title = f"{server.name} {instance}: tp {layout.tp}, dp {layout.dp}, ep {layout.ep}"
    if layout.pp > 1:
        title += f", pp {layout.pp}"
    shapes, x = [text(44, y + 12, title)], 44
    per_card = case.device.devices_per_card if case.device else 1
    color = COLORS.get(server.kind, "#999")
    for rank in range(nodes):
        start = x
        for index in range(min(each, MAX_DIES)):
            x += GAP * 2 if index and index % per_card == 0 else 0
            shapes.append(rect(x, y + 20, DIE, DIE, color))
            x += DIE + 1
        if each > MAX_DIES:
            shapes.append(text(x + 2, y + 32, f"+{each - MAX_DIES}"))
            x += 34
        shapes.append(text(start, y + 20 + DIE + 13, host_name(server, instance, rank)))
        if rank + 1 < nodes:
            shapes.append(line(x, y + 27, x + NODE_GAP, y + 27))
        x += NODE_GAP
    return "".join(shapes)


def host_name(server: ServerPlan, instance: int, rank: int) -> str:
    index = instance * server.role.nodes + rank
    return server.nodes[index].host or f"node {rank}"


def links(case: Case) -> str:
    device = case.device
    if device is None:
        return ""
    kind = "die" if device.devices_per_card > 1 else "device"
    parts = [f"a square is one {kind}"]
    if device.pair_gbs:
        parts.append(f"the two of a card {device.pair_gbs:g} GB/s")
    if device.scale_up:
        parts.append(
            f"{device.scale_up} {device.scale_up_gbs:g} GB/s within a {device.scale_up_reach}"
        )
    if device.scale_out:
        parts.append(f"{device.scale_out} {device.scale_out_gbs:g} GB/s beyond")
    return "; ".join(parts)


def box(x: int, y: int, width: int, height: int, color: str, label: str) -> str:
    return rect(x, y, width, height, color) + text(x + 10, y + height // 2 + 4, label)


def rect(x: int, y: int, width: int, height: int, color: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="2" fill="{color}" '
        'fill-opacity="0.75"/>'
    )


def line(x1: int, y1: int, x2: int, y2: int) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#888"/>'


def text(x: int, y: int, content: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(content)}</text>'
