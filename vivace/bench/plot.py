"""A run drawn: `--plot` as one picture (PNG: TTFT, ITL and throughput over time, with
distributions), `--plot-throughput` as bars of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vivace.bench.metrics import MS, percentile, token_times
from vivace.bench.record import why_not_writable
from vivace.bench.transport import Record

Points = Sequence[tuple[float, float]]

PERCENTILES = {50: "tab:green", 99: "tab:red"}
HEADROOM = 1.3
"""The axis ends so far above the 99th percentile; what is above is counted, not drawn."""
BINS = 60
WINDOWS = 60
"""points of the throughput line at most"""
BAR = 40
ROWS = 60
"""Longer runs put several seconds into a row."""


def why_not_drawable(file: Path) -> str:
    """What is wrong with a picture to be written; empty when nothing is."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        return "needs matplotlib: pip install matplotlib"
    kinds = sorted(FigureCanvasAgg.get_supported_filetypes())
    if file.suffix.lower().lstrip(".") not in kinds:
        return f"{file}: the name must end with one of .{', .'.join(kinds)}"
    return why_not_writable(file)


def draw(records: Sequence[Record], file: Path, title: str) -> str:
    """Write the picture; returns the sentence to print."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    good = [record for record in records if record.success]
    if not good:
        return "no successful request to draw"
    figure = Figure(figsize=(12, 10), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize="medium", wrap=True)
    panels = figure.subplots(3, 2, width_ratios=[3, 1])
    origin = min(record.start for record in good)
    times = [[moment - origin for moment in token_times(record)] for record in good]
    first = [(r.start - origin + r.ttft, r.ttft * MS) for r in good]
    gaps = [
        (moment, gap * MS)
        for record, moments in zip(good, times, strict=True)
        for moment, gap in zip(moments[1:], record.itl, strict=True)
    ]
    panel_pair(panels[0], first, "TTFT (ms)", size=12.0)
    panel_pair(panels[1], gaps, "ITL (ms)", size=2.0)
    throughput_panel(panels[2], [moment for moments in times for moment in moments])
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)
    return f"picture written to {file}"


def panel_pair(panels: Any, points: Points, label: str, *, size: float) -> None:
    """Values over time on the left, their distribution on the right, on one axis."""
    left, right = panels
    right.sharey(left)
    left.scatter(*zip(*points, strict=True) if points else ([], []), s=size, alpha=0.4, lw=0)
    left.set_xlabel("seconds after the first send")
    left.set_ylabel(label)
    right.set_xlabel("count")
    for panel in panels:
        panel.grid(alpha=0.3)
    if not points:
        return
    values = sorted(value for _, value in points)
    top = HEADROOM * percentile(values, 99) or 1.0
    left.set_ylim(0, top)
    right.hist([v for v in values if v <= top], bins=BINS, range=(0, top), orientation="horizontal")
    for percent, color in PERCENTILES.items():
        value = percentile(values, percent)
        for panel in panels:
            panel.axhline(value, color=color, lw=1, ls="--", label=f"p{percent} {value:.1f} ms")
    left.legend(loc="upper right", fontsize="small")
    above = sum(value > top for value in values)
    if above:
        left.set_title(
            f"{above} of {len(values)} are above, up to {values[-1]:,.0f} ms", fontsize="small"
        )


def throughput_panel(panels: Any, moments: Sequence[float]) -> None:
    """Output tokens per second over time, and how often each."""
    left, right = panels
    right.sharey(left)
    end = max(moments, default=0.0) or 1.0
    count = max(1, min(WINDOWS, int(end)))
    width = end / count
    seen = [0] * count
    for moment in moments:
        seen[min(int(moment / width), count - 1)] += 1
    rates = [tokens / width for tokens in seen]
    left.stairs(rates, [width * edge for edge in range(count + 1)], fill=True, alpha=0.5)
    mean = len(moments) / end
    left.axhline(mean, color="black", lw=1, ls="--", label=f"mean {mean:.1f} tok/s")
    left.set_xlabel("seconds after the first send")
    left.set_ylabel("output tok/s")
    left.set_ylim(bottom=0)
    left.legend(loc="upper right", fontsize="small")
    right.hist(rates, bins=20, orientation="horizontal")
    right.set_xlabel("count")
    for panel in panels:
        panel.grid(alpha=0.3)


def throughput_bars(records: Sequence[Record]) -> str:
    """One row per second (or per several): tokens per second as a bar, requests as a number."""
    good = [record for record in records if record.success]
    if not good:
        return "no successful request to draw"
    origin = min(record.start for record in good)
    end = max(record.start + record.latency for record in good)
    step = max(1, math.ceil((end - origin) / ROWS))
    count = int((end - origin) / step) + 1
    tokens = [0] * count
    open_requests = [0] * count
    for record in good:
        for moment in token_times(record):
            tokens[min(int((moment - origin) / step), count - 1)] += 1
        first = int((record.start - origin) / step)
        last = int((record.start + record.latency - origin) / step)
        for row in range(first, min(last, count - 1) + 1):
            open_requests[row] += 1
    most = max(tokens) or 1
    lines = ["second   tok/s  requests"]
    for row, (seen, requests) in enumerate(zip(tokens, open_requests, strict=True)):
        bar = "#" * round(BAR * seen / most)
        lines.append(f"{row * step:6d} {seen / step:7.0f} {requests:9d}  {bar}")
    return "\n".join(lines)
