"""The printed block and the JSONL record, against golden files."""

from __future__ import annotations

import json
import time
from pathlib import Path

from bench_records import three_requests

from vivace.bench.flags import parse
from vivace.bench.metrics import calculate_metrics
from vivace.bench.record import append_record, build_record, command_line, default_file
from vivace.bench.report import Line, Setting, explain, render, report_rows

GOLDEN = Path(__file__).parent / "golden"
FLAGS = "--backend vivace --dataset-name random --num-prompts 3 --max-concurrency 2 --tag t"


def the_record() -> dict:
    args = parse([*FLAGS.split(), "--output-details", "--api-key", "hunter2"])
    records = three_requests()
    metrics = calculate_metrics(records, 3.0, retokenized=[5, 3, 0])
    server = {"version": "1.2", "api_key": "hunter2", "internal_states": [{"x": 1}]}
    return build_record(
        args, FLAGS.split(), metrics, records, server, client_cpu=0.3, tokenizer="characters"
    )


def test_block_is_as_agreed() -> None:
    metrics = calculate_metrics(three_requests(), 3.0, retokenized=[5, 3, 0])
    setting = Setting(backend="vivace", request_rate="inf", max_concurrency=2)
    assert render(metrics, setting) + "\n" == (GOLDEN / "block.txt").read_text()


def test_optional_lines_of_the_block() -> None:
    metrics = calculate_metrics(
        three_requests(), 3.0, accept_length=2.5, goodput={"tpot": 500.0}, retokenized=None
    )
    setting = Setting(
        backend="sglang", request_rate="trace", max_concurrency=None, cache_report=True
    )
    text = render(metrics, setting)
    for line in (
        "Traffic request rate:                    trace     ",
        "Max request concurrency:                 not set   ",
        "Accept length:                           2.50      ",
        "Request goodput (req/s):                 0.33      ",
        "--------------------Cache Hits--------------------",
        "Total prompt tokens:                     30        ",
        "Total cached tokens:                     4         ",
        "Cache hit rate (%):                      13.33     ",
        "Device cached tokens:                    4         ",
        "Host cached tokens:                      0         ",
        "Storage cached tokens:                   0         ",
    ):
        assert line in text.splitlines()


def test_every_line_is_explained() -> None:
    metrics = calculate_metrics(three_requests(), 3.0)
    setting = Setting(backend="vivace", request_rate=2.0, max_concurrency=2)
    lines = [row for row in report_rows(metrics, setting) if isinstance(row, Line)]
    text = explain(metrics, setting)
    assert all(len(line.definition) > 10 for line in lines)
    assert all(f"{line.label}\n    {line.definition}" in text for line in lines)


def test_record_is_as_agreed() -> None:
    record = the_record()
    for name in ("time", "host", "versions"):
        assert record.pop(name)
    golden = json.loads((GOLDEN / "record.json").read_text())
    assert json.loads(json.dumps(record)) == golden


def test_record_is_trusted_and_names_failures() -> None:
    record = the_record()
    assert record["trusted"] is True
    assert record["failures"] == [{"request": 2, "turn": 0, "error": "HTTP 500: broken"}]
    assert record["versions"]["server"] == "1.2"
    assert record["host"]["cores"] >= 1


def test_records_are_appended_as_lines(tmp_path: Path) -> None:
    file = tmp_path / "new" / "result.jsonl"
    append_record(file, {"a": 1})
    append_record(file, {"b": [2]})
    assert [json.loads(line) for line in file.read_text().splitlines()] == [{"a": 1}, {"b": [2]}]


def test_secrets_are_not_stored() -> None:
    assert "hunter2" not in json.dumps(the_record())
    words = ["--api-key", "hunter2", "--header", "A=hunter2", "B=hunter2", "--api-key=hunter2"]
    assert "hunter2" not in command_line([*words, "--port", "1"])
    assert command_line([*words, "--port", "1"]).endswith("--port 1")


def test_default_file_names() -> None:
    day = time.strptime("2026-02-03", "%Y-%m-%d")
    args = parse("--dataset-name random --num-prompts 8 --random-output-len 4".split())
    assert str(default_file(args, day)) == "sglang_0203_8_1024_4.jsonl"
    args = parse("--dataset-name generated-shared-prefix --backend vllm".split())
    assert str(default_file(args, day)) == "vllm_0203_1000_generated-shared-prefix.jsonl"


SPREAD = ("Mean", "Median", "P90", "P95", "P99")
LATENCIES = {"E2E Latency": "e2e_latency", "TTFT": "ttft", "TPOT": "tpot", "ITL": "itl"}
LINES = {
    "Backend": "backend",
    "Traffic request rate": "request_rate",
    "Max request concurrency": "max_concurrency",
    "Successful requests": "completed",
    "Benchmark duration (s)": "duration",
    "Total input tokens": "total_input_tokens",
    "Total input text tokens": "total_input_text_tokens",
    "Total input vision tokens": "total_input_vision_tokens",
    "Total generated tokens": "total_output_tokens",
    "Total generated tokens (retokenized)": "total_output_tokens_retokenized",
    "Request throughput (req/s)": "request_throughput",
    "Input token throughput (tok/s)": "input_throughput",
    "Output token throughput (tok/s)": "output_throughput",
    "Peak output token throughput (tok/s)": "max_output_tokens_per_s",
    "Peak concurrent requests": "max_concurrent_requests",
    "Total token throughput (tok/s)": "total_throughput",
    "Concurrency": "concurrency",
    "Accept length": "accept_length",
    "Request goodput (req/s)": "request_goodput",
    "Total prompt tokens": "cache_report.total_prompt_tokens",
    "Total cached tokens": "cache_report.total_cached_tokens",
    "Cache hit rate (%)": "cache_report.cache_hit_rate_pct",
    "Device cached tokens": "cache_report.device_cached_tokens",
    "Host cached tokens": "cache_report.host_cached_tokens",
    "Storage cached tokens": "cache_report.storage_cached_tokens",
    **{
        f"{part} {name} (ms)": f"{part.lower()}_{key}_ms"
        for name, key in LATENCIES.items()
        for part in SPREAD
    },
    "Max ITL (ms)": "max_itl_ms",
}
"""What SGLang 0.5.23 prints, and where the same number is in its record."""
KEYS = {
    *("tag", "backend", "dataset_name", "request_rate", "max_concurrency", "sharegpt_output_len"),
    *("random_input_len", "random_output_len", "random_range_ratio", "server_info", "duration"),
    *("std_e2e_latency_ms", "std_ttft_ms", "std_tpot_ms", "std_itl_ms", "accept_length"),
    *("output_throughput_retokenized", "total_throughput_retokenized"),
    *("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors"),
    *("cached_tokens", "cached_tokens_details"),
}


def test_every_line_of_sglang_is_printed_and_stored() -> None:
    metrics = calculate_metrics(
        three_requests(), 3.0, retokenized=[5, 3, 0], accept_length=2.0, goodput={"tpot": 500.0}
    )
    setting = Setting(backend="vivace", request_rate="inf", max_concurrency=2, cache_report=True)
    printed = {
        row.label: row.value for row in report_rows(metrics, setting) if isinstance(row, Line)
    }
    assert set(printed) == set(LINES)
    args = parse([*FLAGS.split(), "--output-details"])
    record = build_record(
        args, [], metrics, three_requests(), {}, client_cpu=0.0, tokenizer="characters"
    )
    assert record.keys() >= KEYS
    for label, key in LINES.items():
        value = record
        for part in key.split("."):
            value = value[part]
        shown = f"{value:.2f}" if isinstance(value, float) else str(value)
        assert shown == printed[label], label


def test_the_tiers_of_the_cache_are_told_apart() -> None:
    first, second, _ = records = three_requests()
    first.cached_tiers = {"device": 1, "host": 2, "storage": 1}
    report = calculate_metrics(records, 3.0).cache
    assert report is not None
    found = (report.device_cached_tokens, report.host_cached_tokens, report.storage_cached_tokens)
    assert found == (1, 2, 1)
    second.prompt_tokens = 45  # with a chat template that the client does not count
    report = calculate_metrics(records, 3.0).cache
    assert report is not None
    assert report.total_prompt_tokens == 55
    first.cached_tokens = second.cached_tokens = None
    assert calculate_metrics(records, 3.0).cache is None
