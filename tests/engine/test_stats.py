"""Log lines in SGLang's form, metrics by SGLang's names."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter

import pytest
from engine_rig import EOS, Rig
from hypothesis import given
from hypothesis import strategies as st

from vivace.engine.settings import EngineSettings
from vivace.engine.stats import Distribution
from vivace.launch.engine import StageTimes
from vivace.protocol.metrics import Histogram

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


def test_probes_and_the_warm_up_are_no_traffic(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "vivace.engine")
    rig = rig_with(rows=2)
    rig.send(1, [1, 2, 3], 2, ignore_eos=True, log_metrics=False)
    rig.run()
    assert not caplog.records
    rig.send(2, [1, 2, 3], 2, ignore_eos=True)
    rig.run()
    assert PREFILL.match(caplog.records[0].message)


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
    rig.step(3)
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
        "num_retractions": 3,
        "inter_token_latency_seconds": 15,
    }
    assert histograms.keys() == observed.keys()
    for name, times in observed.items():
        histogram = histograms[name]
        assert histogram.counts[-1] == times, name
        assert histogram.counts == sorted(histogram.counts)
        assert histogram.bounds[-1] == math.inf
    assert histograms["generation_tokens_histogram"].total == 18


def test_a_request_without_log_metrics_is_in_no_metric_of_requests() -> None:
    """A mixed batch counts like a batch of the others alone; only the load shows all of it."""
    alone, mixed = rig_with(), rig_with()
    for key in range(4):
        counted = key % 2 == 0
        for rig in [alone, mixed] if counted else [mixed]:
            rig.send(key, [key, 1, 2], 6, ignore_eos=True, log_metrics=counted)
    mixed.step(3)
    assert mixed.scheduler.state().metrics.gauges["num_running_reqs"] == 4
    mixed.send(9, [9, 9], 50, ignore_eos=True, log_metrics=False)
    mixed.cancel(9)
    alone.run()
    mixed.run()
    assert all(len(answer.tokens) == 6 for key, answer in mixed.answers.items() if key < 4)
    wanted, found = (rig.scheduler.state().metrics for rig in (alone, mixed))
    for name in REQUEST_COUNTERS:
        assert found.counters[name] == wanted.counters[name], name
    for name, histogram in wanted.histograms.items():
        assert found.histograms[name].counts[-1] == histogram.counts[-1], name


REQUEST_COUNTERS = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "cached_tokens_total",
    "num_requests_total",
    "num_aborted_requests_total",
)


def metric_series(rig: Rig, name: str) -> dict[str, float | Histogram]:
    """Values by their only label."""
    found = rig.scheduler.state().metrics.series
    return {value: one.value for one in found if one.name == name for value in one.labels.values()}


def test_tokens_are_counted_when_they_are_computed() -> None:
    rig = rig_with()
    for _ in range(2):
        rig.send(10 + len(rig.answers), [1, 2, 3, 4, 5], 6, ignore_eos=True)
        rig.run()
    assert metric_series(rig, "realtime_tokens_total") == {
        "prefill_compute": 6.0,
        "prefill_cache": 4.0,
        "decode": 12.0,
    }


def test_the_stages_of_a_request_add_up_to_its_latency() -> None:
    rig = rig_with(rows=1)
    for key in range(3):
        rig.send(key, [key, 1, 2], 6, ignore_eos=True)
    rig.run()
    stages = metric_series(rig, "per_stage_req_latency_seconds")
    assert list(stages) == ["prefill_waiting", "prefill_forward", "decode_forward"]
    found = [stage for stage in stages.values() if isinstance(stage, Histogram)]
    whole = rig.scheduler.state().metrics.histograms["e2e_request_latency_seconds"]
    assert [stage.counts[-1] for stage in found] == [3, 3, 3]
    assert sum(stage.total for stage in found) == pytest.approx(whole.total)
    assert found[0].total > 0


def test_the_length_of_what_decodes() -> None:
    rig = rig_with()
    rig.send(1, [1, 2, 3], 50, ignore_eos=True)
    rig.step(4)
    length = 3 + len(rig.answers[1].tokens)
    assert rig.scheduler.state().metrics.gauges["decode_sum_seq_lens"] == length
    rig.cancel(1)
    rig.run()
    assert rig.scheduler.state().metrics.gauges["decode_sum_seq_lens"] == 0


def test_the_stages_of_the_start_add_up() -> None:
    now = [0.0]
    told: list[tuple[str, float]] = []
    stages = StageTimes(lambda stage, fraction: told.append((stage, fraction)), lambda: now[0])
    for moment, stage, fraction in (
        (1.0, "Loading PyTorch", 0.0),
        (3.0, "Loading weights", 0.5),
        (4.0, "Loading weights", 1.0),
        (5.0, "Sizing the KV pool", 0.0),
        (7.0, "Sizing the KV pool", 1.0),
    ):
        now[0] = moment
        stages(stage, fraction)
    now[0] = 7.5
    seconds = stages.seconds()
    assert seconds == {"beginning": 1.0, "loading_weights": 4.0, "sizing_the_kv_pool": 2.5}
    assert len(told) == 5


def test_bucket_bounds_can_be_chosen() -> None:
    rig = rig_with(time_to_first_token_buckets=(0.5, 0.25))
    bounds = rig.scheduler.state().metrics.histograms["time_to_first_token_seconds"].bounds
    assert bounds == [0.25, 0.5, math.inf]


@given(st.lists(st.floats(0, 20), max_size=50))
def test_distribution_equals_counting(values: list[float]) -> None:
    distribution = Distribution((1, 2.5, 10))
    for value in values[::2]:
        distribution.observe(value)
    for value, times in Counter(values[1::2]).items():
        distribution.observe(value, times)
    snapshot = distribution.snapshot()
    for bound, count in zip(snapshot.bounds, snapshot.counts, strict=True):
        assert count == sum(value <= bound for value in values)
    assert snapshot.total == pytest.approx(sum(values))
