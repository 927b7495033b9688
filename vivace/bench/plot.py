"""`--plot`: TTFT and ITL of a run over time and as distributions, in a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vivace.bench.figures import MS, token_times
from vivace.bench.transport import Record


def draw(records: Sequence[Record], file: str) -> str:
    """Write the picture; returns the sentence to print, also when matplotlib is missing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return "--plot needs matplotlib: pip install matplotlib"
    good = [record for record in records if record.success]
    if not good:
        return "no successful request to draw"
    figure = Figure(figsize=(12, 8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2, width_ratios=[3, 1])
    origin = min(record.start for record in good)
    first = [(r.start - origin + r.ttft, r.ttft * MS) for r in good]
    gaps = [
        (moment - origin, gap * MS)
        for record in good
        for moment, gap in zip(token_times(record)[1:], record.itl, strict=True)
    ]
    _panel_pair(panels[0], first, "TTFT (ms)", size=12.0)
    _panel_pair(panels[1], gaps, "ITL (ms)", size=2.0)
    figure.savefig(file, dpi=120)
    return f"picture written to {file}"


def _panel_pair(
    panels: Any, points: Sequence[tuple[float, float]], label: str, *, size: float
) -> None:
    """Values over time on the left, their distribution on the right, on one axis."""
    times = [time for time, _ in points]
    values = [value for _, value in points]
    left, right = panels
    left.scatter(times, values, s=size, alpha=0.4, linewidths=0)
    left.set_xlabel("seconds after the first send")
    left.set_ylabel(label)
    left.set_ylim(bottom=0)
    left.grid(alpha=0.3)
    if values:
        right.hist(values, bins=60, orientation="horizontal")
    right.sharey(left)
    right.set_xlabel("count")
    right.grid(alpha=0.3)
