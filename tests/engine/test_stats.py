"""Log lines in SGLang's form, metrics by SGLang's names."""

from __future__ import annotations

import logging
import math
import re

import pytest
from engine_rig import EOS, Rig
from hypothesis import given
from hypothesis import strategies as st

from vivace.engine.metrics import Distribution
from vivace.engine.settings import EngineSettings

PREFILL = re.compile(
    r"Prefill batch, #new-seq: (\d+), #new-token: (\d+), #cached-token: (\d+), "
    r"token usage: (\d\.\d\d), #running-req: (\d+), #queue-req: (\d+), "
    r"input throughput \(token/s\): (\d+\.\d\d)$"
)
DECODE = re.compile(
    r"Decode batch, #running-req: (\d+), #token: (\d+), token usage: (\d\.\d\d), "
    r"cuda graph: (True|False), gen throughput \(token/s\): (\d+\.\d\d), #queue-req: (\d+)$"
)


def rig_with(**options: object) -> Rig:
    return Rig(EngineSettings(eos_ids=(EOS,), depth=1, **options), page_size=2)  # type: ignore[arg-type]


def test_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "vivace.engine")
    rig = rig_with(decode_log_interval=4, rows=2)
    for key in range(3):
        rig.send(key, [1, 2, 3, 4, 5, 6], 9, ignore_eos=True)
    rig.run()
    prefills = [PREFILL.match(record.message) for record in caplog.records]
    decodes = [DECODE.match(record.message) for record in caplog.records]
    prefill = [match.groups() for match in prefills if match]
    decode = [match.groups() for match in decodes if match]
    assert len(prefill) + len(decode) == len(caplog.records)
    assert prefill[0][:3] == ("2", "12", "0") and prefill[0][4:6] == ("0", "1")
    assert prefill[1][:3] == ("1", "2", "4")
    assert len(decode) == 4
    assert decode[0][0] == "2" and decode[0][3] == "False" and decode[0][5] == "1"
    assert float(decode[1][4]) > 0


def test_idle_time_is_no_part_of_the_throughput() -> None:
    rig = rig_with(decode_log_interval=5)
    throughputs = []
    for key in range(2):
        rig.clock.now += 3600
        rig.send(key, [key, 1], 6, ignore_eos=True)
        rig.run()
        throughputs.append(rig.scheduler.state().last_gen_throughput)
    assert throughputs[0] == pytest.approx(throughputs[1], rel=0.2)
    assert throughputs[0] > 10


def test_metrics_count_requests_and_tokens() -> None:
    rig = rig_with()
    for _ in range(2):
        for key in (1, 2):
            key += 10 * len(rig.answers)
            rig.send(key, [1, 2, 3, 4, 5], 6, ignore_eos=True)
        rig.run()
    rig.send(99, [1], 50, ignore_eos=True)
    rig.turn(3)
    metrics = rig.scheduler.state().metrics
    assert metrics.gauges["num_running_reqs"] == 1
    assert metrics.gauges["max_total_num_tokens"] == rig.capacity.tokens
    assert 0 < metrics.gauges["token_usage"] < 1
    rig.cancel(99)
    rig.run()
    counters = rig.scheduler.state().metrics.counters
    assert counters["num_requests_total"] == 5
    assert counters["num_aborted_requests_total"] == 1
    assert counters["prompt_tokens_total"] == 4 * 5 + 1
    drawn = sum(len(answer.tokens) for answer in rig.answers.values())
    assert counters["generation_tokens_total"] == drawn
    assert counters["cached_tokens_total"] > 0


def test_latency_histograms_are_cumulative_and_complete() -> None:
    rig = rig_with()
    for key in range(3):
        rig.send(key, [key, 1], 6, ignore_eos=True)
    rig.run()
    histograms = rig.scheduler.state().metrics.histograms
    observed = {
        "time_to_first_token_seconds": 3,
        "queue_time_seconds": 3,
        "e2e_request_latency_seconds": 3,
        "prompt_tokens_histogram": 3,
        "generation_tokens_histogram": 3,
        "inter_token_latency_seconds": 15,
    }
    assert histograms.keys() == observed.keys()
    for name, times in observed.items():
        histogram = histograms[name]
        assert histogram.counts[-1] == times, name
        assert histogram.counts == sorted(histogram.counts)
        assert histogram.bounds[-1] == math.inf
    assert histograms["generation_tokens_histogram"].total == 18


def test_bucket_bounds_can_be_chosen() -> None:
    rig = rig_with(time_to_first_token_buckets=(0.5, 0.25))
    bounds = rig.scheduler.state().metrics.histograms["time_to_first_token_seconds"].bounds
    assert bounds == [0.25, 0.5, math.inf]


@given(st.lists(st.floats(0, 20), max_size=50))
def test_distribution_equals_counting(values: list[float]) -> None:
    distribution = Distribution((1, 2.5, 10))
    for value in values[::2]:
        distribution.observe(value)
    distribution.observe_since([-value for value in values[1::2]], 0.0)
    snapshot = distribution.snapshot()
    for bound, count in zip(snapshot.bounds, snapshot.counts, strict=True):
        assert count == sum(value <= bound for value in values)
    assert snapshot.total == pytest.approx(sum(values))
