"""`vivace bench sse`: a small run, and how its figures are read."""

from __future__ import annotations

import pytest

from vivace.bench.sse import lines, main


def test_the_ratio_pairs_what_was_measured_in_one_run() -> None:
    runs = [
        {"us_per_chunk": 20.0, "floor_us_per_chunk": 10.0},
        {"us_per_chunk": 60.0, "floor_us_per_chunk": 20.0},
        {"us_per_chunk": 21.0, "floor_us_per_chunk": 14.0},
    ]
    cost, bare = lines("chat", runs).splitlines()
    assert "21.0 (median of 3, 20.0 to 60.0) us" in cost
    assert "14.0 (median of 3, 10.0 to 20.0) us" in bare
    assert bare.endswith("ratio 2.00")


def test_a_run_shows_cost_and_floor(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--api", "native", "--streams", "2", "--steps", "3", "--repeat", "1"]
    assert main(words) == 0
    cost, bare = capsys.readouterr().out.splitlines()
    assert cost.startswith("native")
    assert "bare writes" in bare
    assert float(bare.rpartition("ratio ")[2]) > 0
