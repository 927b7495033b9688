"""The arithmetic of the figures, against values computed by hand."""

from __future__ import annotations

import statistics

import pytest
from bench_records import three_requests
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.bench.metrics import (
    calculate_metrics,
    latency_summary,
    percentile,
    split_chunk_gaps,
    tpot,
)
from vivace.bench.transport import Record

close = pytest.approx


def test_figures_of_three_requests() -> None:
    metrics = calculate_metrics(
        three_requests(), 3.0, retokenized=[5, 2, 9], goodput={"ttft": 300.0, "e2el": 1500.0}
    )
    assert (metrics.completed, metrics.failed) == (2, 1)
    assert (metrics.total_input, metrics.total_output) == (30, 8)
    assert metrics.total_output_retokenized == 7
    assert metrics.request_throughput == close(2 / 3)
    assert metrics.input_throughput == close(10.0)
    assert metrics.output_throughput == close(8 / 3)
    assert metrics.total_throughput == close(38 / 3)
    assert metrics.concurrency == close(1.0)
    assert metrics.request_goodput == close(1 / 3)
    assert metrics.cache is not None
    assert (metrics.cache.total_cached_tokens, metrics.cache.total_prompt_tokens) == (4, 30)
    assert (metrics.e2e.mean, metrics.e2e.median) == (close(1500.0), close(1500.0))
    assert metrics.e2e.p99 == close(1990.0)
    assert metrics.e2e.std == close(500.0)
    assert metrics.ttft.mean == close(300.0)
    assert metrics.tpot.mean == close((200.0 + 800.0) / 2)
    assert (metrics.itl.count, metrics.itl.max) == (6, close(1000.0))
    assert metrics.itl.mean == close(2400.0 / 6)


def test_peaks_use_token_times_and_seconds_touched() -> None:
    # Tokens at .2 .4 .6 .8 1.0 (first request) and .9 1.5 2.5 (second): 5 in the first second.
    metrics = calculate_metrics(three_requests(), 3.0)
    assert metrics.max_output_tokens_per_s == 5
    # The first touches seconds 0 and 1 (it ends at 1.0), the second 0, 1 and 2.
    assert metrics.max_concurrent_requests == 2


def test_without_a_stream_there_is_no_time_per_token() -> None:
    record = three_requests()[0]
    record.itl, record.ttft = [], record.latency
    metrics = calculate_metrics([record], 1.0, streamed=False)
    assert metrics.ttft.mean == metrics.e2e.mean == close(1000.0)
    assert (metrics.tpot.count, metrics.itl.count) == (0, 0)


def test_nothing_succeeded() -> None:
    metrics = calculate_metrics([three_requests()[2]], 1.0)
    assert (metrics.completed, metrics.failed) == (0, 1)
    assert metrics.e2e.mean == metrics.total_throughput == metrics.max_output_tokens_per_s == 0


def test_one_token_has_no_tpot() -> None:
    record = Record(query=0, input_len=1, requested=1, output_len=1, ttft=1.0, latency=1.0)
    assert tpot(record) is None


def test_a_chunk_gap_is_divided_among_its_tokens() -> None:
    record = Record(query=0, input_len=1, requested=6, itl=[0.6, 0.4])
    split_chunk_gaps([record], [[1, 3, 2]])
    assert record.itl == close([0.2, 0.2, 0.2, 0.2, 0.2])


@settings(deadline=None)
@given(st.lists(st.floats(0, 1000), min_size=1, max_size=60))
def test_distribution_agrees_with_the_statistics_module(values: list[float]) -> None:
    found = latency_summary(values)
    assert found.mean == close(statistics.fmean(values) * 1000, rel=1e-9, abs=1e-9)
    assert found.median == close(statistics.median(values) * 1000)
    assert found.std == close(statistics.pstdev(values) * 1000, rel=1e-6, abs=1e-6)
    assert found.median <= found.p90 <= found.p95 <= found.p99 <= found.max


def test_percentiles_interpolate() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 90) == close(3.7)
    assert percentile([5.0], 99) == 5.0
