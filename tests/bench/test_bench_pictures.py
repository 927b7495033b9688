"""A run shows how far it is, and its picture keeps its scale when one request was slow."""

from __future__ import annotations

import asyncio
import io
import re

import pytest
from matplotlib.figure import Figure

from vivace.bench import progress
from vivace.bench.metrics import percentile
from vivace.bench.plot import panel_pair, throughput_panel
from vivace.bench.progress import Counter, show_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watched(file: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(progress.ProgressBar, "pause", 0.01)
    monkeypatch.setattr(progress.ProgressLines, "pause", 0.01)
    monkeypatch.setenv("COLUMNS", "100")

    async def run() -> None:
        counter = Counter(total=4)
        with show_progress(counter, True, file):
            for success in (True, True, False, True):
                counter.add(10, success)
                await asyncio.sleep(0.03)

    asyncio.run(run())
    return file.getvalue()


def test_a_terminal_sees_a_bar_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    said = watched(Terminal(), monkeypatch)
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said.split("\r")[-1])
    assert "4/4 requests" in last and "left" in last and "0:00:00" in last
    assert "tok/s, 1 failed" in last and "1/4" in re.sub(r"\x1b\[[0-9;]*m", "", said)


def test_a_file_gets_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = watched(io.StringIO(), monkeypatch).splitlines()
    assert lines[0].startswith("1/4 requests after 0 s, ") and "\x1b" not in "".join(lines)


def test_a_speed_is_told_when_there_is_one() -> None:
    counter = Counter(total=2)
    assert "0" not in counter.speed(30.0)
    counter.add(60, True)
    assert counter.speed(30.0) == "2 output tok/s"


def test_nothing_is_shown_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        with show_progress(Counter(total=1), False):
            await asyncio.sleep(0)

    asyncio.run(run())


def test_one_slow_request_does_not_flatten_the_others() -> None:
    left, right = Figure().subplots(1, 2)
    points = [(second / 10, 10.0 + second % 7) for second in range(300)] + [(30.0, 9_000.0)]
    panel_pair((left, right), points, "ITL (ms)", size=1.0)
    assert left.get_ylim()[1] < 30
    assert "1 of 301 are above, up to 9,000 ms" in left.get_title()
    labels = [text.get_text() for text in left.get_legend().get_texts()]
    assert labels == ["p50 13.0 ms", "p99 16.0 ms"]


@pytest.mark.parametrize("points", [[], [(0.0, 0.0)], [(0.0, 5.0)]])
def test_few_points_are_drawn(points: list[tuple[float, float]]) -> None:
    panel_pair(Figure().subplots(1, 2), points, "TTFT (ms)", size=1.0)
    throughput_panel(Figure().subplots(1, 2), [time for time, _ in points])


def test_percentiles() -> None:
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0
    assert percentile([1.0], 99) == 1.0
