"""Medians, spread and ratios of a comparison, as a table and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vivace.bench.peers.compare import Comparison, Run
from vivace.bench.peers.workloads import TITLES, is_latency


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Median and range of one figure over the repetitions."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.4g} ({self.low:.4g} - {self.high:.4g})"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure of one workload: the first server against another."""

    workload: str
    figure: str
    ours: Spread
    theirs: Spread
    their_name: str

    @property
    def ratio(self) -> float:
        """How much better ours is: above 1 is better, for latencies too. 0.0 = one side is zero."""
        if not self.ours.median or not self.theirs.median:
            return 0.0
        ratio = self.ours.median / self.theirs.median
        return 1.0 / ratio if is_latency(self.figure) else ratio

    @property
    def distinguishable(self) -> bool:
        """Whether the two ranges do not overlap; otherwise read the row as a tie."""
        return self.ours.low > self.theirs.high or self.theirs.low > self.ours.high


def build_rows(comparison: Comparison, ours: str) -> list[Row]:
    """Every figure of every workload, ours against each other server."""
    rows: list[Row] = []
    others = unique(run.server for run in comparison.runs if run.server != ours)
    for workload in unique(run.workload for run in comparison.runs):
        mine = spreads(comparison.runs, ours, workload)
        for other in others:
            theirs = spreads(comparison.runs, other, workload)
            rows += [
                Row(
                    workload=workload,
                    figure=figure,
                    ours=spread,
                    theirs=theirs[figure],
                    their_name=other,
                )
                for figure, spread in mine.items()
                if figure in theirs
            ]
    return rows


def spreads(runs: Sequence[Run], server: str, workload: str) -> dict[str, Spread]:
    chosen = [run.metrics for run in runs if (run.server, run.workload) == (server, workload)]
    return {
        name: Spread(median=statistics.median(values), low=min(values), high=max(values))
        for name in (chosen[0] if chosen else {})
        if (values := [metrics[name] for metrics in chosen if name in metrics])
    }


def unique(names: Any) -> list[str]:
    return list(dict.fromkeys(names))


def render(comparison: Comparison, ours: str) -> str:
    """The table, then what limits its worth."""
    lines: list[str] = []
    workload = ""
    for row in build_rows(comparison, ours):
        if row.workload != workload:
            workload = row.workload
            lines += ["", f"{workload}: {TITLES.get(workload, workload)}"]
        lines.append(format_row(row, ours))
    lines += ["", *remarks(comparison)]
    return "\n".join(lines)


def format_row(row: Row, ours: str) -> str:
    verdict = f"{row.ratio:5.2f}x" if row.ratio else "    -"
    verdict += "" if row.distinguishable else "  (ranges overlap)"
    sides = f"{ours} {row.ours!s:<30} {row.their_name} {row.theirs!s:<30}"
    return f"  {row.figure:<15} {sides} {verdict}"


def remarks(comparison: Comparison) -> list[str]:
    repeated = len(comparison.thrown_away)
    disturbed = sum(run.disturbed for run in comparison.runs)
    faulty = [run for run in comparison.runs if run.faults]
    lines = [
        "Ratios are of medians and above 1 where the first server is better. In brackets: range.",
        f"{repeated} disturbed runs were repeated; {disturbed} that count were still disturbed.",
    ]
    lines += [
        f"peak memory {name}: {size / 2**20:.0f} MiB" for name, size in comparison.memory.items()
    ]
    for run in faulty:
        where = f"{run.server} {run.workload}[{run.repetition}]"
        lines.append(f"!!! {where}: {len(run.faults)} faults, first: {run.faults[0]}")
    return lines


def as_dict(comparison: Comparison, ours: str) -> dict[str, Any]:
    """Everything, for the JSON file."""
    rows = [
        {
            "workload": row.workload,
            "figure": row.figure,
            "ours": [row.ours.median, row.ours.low, row.ours.high],
            "theirs": [row.theirs.median, row.theirs.low, row.theirs.high],
            "their_name": row.their_name,
            "ratio": row.ratio,
            "distinguishable": row.distinguishable,
        }
        for row in build_rows(comparison, ours)
    ]
    return {"rows": rows, **comparison.as_dict()}
