"""Self-checks: silent on sound results, loud on corrupted ones."""

from __future__ import annotations

from typing import Any

import pytest
from bench_records import three_requests

from vivace.bench.checks import check_requests, check_result
from vivace.bench.metrics import calculate_metrics
from vivace.bench.record import metric_fields, request_details
from vivace.bench.transport import Record


def sound() -> tuple[dict[str, Any], list[Record]]:
    records = three_requests()
    result = metric_fields(calculate_metrics(records, 3.0)) | request_details(records)
    result |= {"requests_sent": 3, "max_concurrency": 2}
    return result, records


def broken(result: dict[str, Any], records: list[Record]) -> list[str]:
    checks = [*check_result(result), *check_requests(result, records)]
    return [check.name for check in checks if not check.holds]


def test_a_sound_result_passes() -> None:
    result, records = sound()
    assert broken(result, records) == []
    assert len(check_result(result)) > 10


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("total_input_tokens", 31),
        ("total_output_tokens", 9),
        ("completed", 3),
        ("failed", 0),
        ("duration", 2.5),
        ("concurrency", 1.1),
        ("total_throughput", 12.0),
        ("input_throughput", 10.1),
        ("output_throughput", 2.0),
        ("request_throughput", 0.7),
        ("mean_ttft_ms", 2000.0),
        ("mean_e2e_latency_ms", 1400.0),
        ("total_input_vision_tokens", 1),
        ("max_concurrency", 0.5),
        ("requests_sent", 4),
        ("input_lens", [10, 21, 30]),
        ("output_lens", [5, 4, 0]),
        ("ttfts", [0.2, 0.5, 0.0]),
        ("errors", ["", "", ""]),
    ],
)
def test_a_corrupted_figure_is_found(key: str, value: Any) -> None:
    result, _ = sound()
    assert result[key] != value
    result[key] = value
    assert [check.name for check in check_result(result) if not check.holds]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("output_len", 4),
        ("input_len", 11),
        ("prompt_tokens", 11),
        ("latency", 5.0),
        ("ttft", 1.5),
        ("itl", [0.3, 0.3, 0.3]),
        ("itl", [0.1] * 6),
        ("requested", 6),
        ("success", False),
    ],
)
def test_a_corrupted_request_is_found(field: str, value: Any) -> None:
    result, records = sound()
    setattr(records[0], field, value)
    names = [check.name for check in check_requests(result, records) if not check.holds]
    assert names


def test_a_template_of_the_server_is_no_fault() -> None:
    result, records = sound()
    records[0].prompt_tokens = 14
    checks = check_requests(result, records, plain_prompts=False)
    assert all(check.holds for check in checks)


def test_answers_may_end_early_when_eos_is_allowed() -> None:
    result, records = sound()
    records[0].requested = 50
    assert all(check.holds for check in check_requests(result, records, exact_lengths=False))
