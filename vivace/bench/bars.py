"""`--plot-throughput`: output tokens and open requests of every second, as bars of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vivace.bench.metrics import token_times
from vivace.bench.transport import Record

BAR = 40
ROWS = 60
"""Longer runs put several seconds into a row."""


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
