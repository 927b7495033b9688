"""Which ranks of a role work together, as a table: one line for each kind of group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vivace.config.parallelism import Parallelism, ProcessGroups, Ranks, process_groups
from vivace.deploy.case import Case
from vivace.deploy.server_plan import ServerPlan, UnknownValue

SHOWN = 4
"""groups of a kind that are written out; of more only the first ones and the last"""
LARGEST_TABLE = 4096
"""ranks; nobody has more devices in one instance"""
TITLES = {
    "tp": "tp",
    "pp": "pp (stages)",
    "dp": "dp (replicas)",
    "attention_tp": "attention tp",
    "attention_cp": "attention cp",
    "attention_dp": "attention dp",
    "moe_ep": "moe ep",
    "moe_tp": "moe tp",
    "dense_tp": "dense tp",
    "lm_head": "lm head",
    "nodes": "node",
}


def group_tables(case: Case) -> Iterator[list[str]]:
    """For every layout of more than one rank a title and its lines; roles that have the same one
    share it."""
    tables: dict[tuple[str, ...], list[str]] = {}
    for server in case.servers:
        if lines := group_lines(server):
            tables.setdefault(tuple(lines), []).append(server.name)
    for (title, *rows), names in tables.items():
        yield [f"ranks of {', '.join(names)}: {title}", *rows]


def group_lines(server: ServerPlan) -> list[str]:
    """Empty for a layout of one rank, or one that is not known or not legal (rules say why)."""
    layout = server.parallelism
    try:
        if not 1 < layout.devices <= LARGEST_TABLE:
            return []
        groups = process_groups(layout)
    except (UnknownValue, ValueError):
        return []
    return [sizes_text(layout), *table(groups)]


def sizes_text(layout: Parallelism) -> str:
    sizes = {
        "tp": layout.tp,
        "pp": layout.pp,
        "dp attention" if layout.dp_attention else "dp": layout.dp,
        "cp": layout.cp,
        "ep": layout.ep,
        "nodes": layout.nodes,
    }
    known = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    return f"{layout.devices} devices, {', '.join(known)}"


def table(groups: ProcessGroups) -> Iterator[str]:
    """Kinds whose groups are the same ranks share a line; those of one rank each have none."""
    lines: dict[tuple[Ranks, ...], list[str]] = {}
    for kind, title in TITLES.items():
        found = getattr(groups, kind)
        if len(found[0]) > 1 and (kind != "nodes" or len(found) > 1):
            lines.setdefault(found, []).append(title)
    names = [", ".join(titles) for titles in lines.values()]
    width = max(map(len, names), default=0)
    for name, found in zip(names, lines, strict=True):
        count = f"{len(found)} of {len(found[0])}"
        yield f"  {name:{width}}  {count:>8}  {groups_text(found)}"


def groups_text(groups: Sequence[Ranks]) -> str:
    texts = [ranks_text(group) for group in groups]
    if len(texts) > SHOWN:
        texts = [*texts[: SHOWN - 1], "...", texts[-1]]
    return "  ".join(texts)


def ranks_text(ranks: Ranks) -> str:
    """`0-3`; `0,4,8` where they are apart, `0-60 by 4` where these are many."""
    step = ranks[1] - ranks[0]
    if step == 1:
        return f"{ranks[0]}-{ranks[-1]}"
    if len(ranks) <= SHOWN:
        return ",".join(map(str, ranks))
    return f"{ranks[0]}-{ranks[-1]} by {step}"
