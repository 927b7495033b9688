"""The printed block and the JSONL record, against golden files."""

from __future__ import annotations

import json
import time
from pathlib import Path

from bench_records import three_requests

from vivace.bench.block import Line, Setting, explain, render, rows_of
from vivace.bench.figures import figures_of
from vivace.bench.flags import parse
from vivace.bench.record import append_record, build_record, command_line, default_file

GOLDEN = Path(__file__).parent / "golden"
FLAGS = "--backend vivace --dataset-name random --num-prompts 3 --max-concurrency 2 --tag t"


def the_record() -> dict:
    args = parse([*FLAGS.split(), "--output-details", "--api-key", "hunter2"])
    records = three_requests()
    figures = figures_of(records, 3.0, retokenized=[5, 3, 0])
    server = {"version": "1.2", "api_key": "hunter2", "internal_states": [{"x": 1}]}
    return build_record(
        args, FLAGS.split(), figures, records, server, client_cpu=0.3, tokenizer="characters"
    )


def test_block_is_as_agreed() -> None:
    figures = figures_of(three_requests(), 3.0, retokenized=[5, 3, 0])
    setting = Setting(backend="vivace", request_rate="inf", max_concurrency=2)
    assert render(figures, setting) + "\n" == (GOLDEN / "block.txt").read_text()


def test_optional_lines_of_the_block() -> None:
    figures = figures_of(
        three_requests(), 3.0, accept_length=2.5, goodput={"tpot": 500.0}, retokenized=None
    )
    setting = Setting(
        backend="sglang", request_rate="trace", max_concurrency=None, cache_report=True
    )
    text = render(figures, setting)
    for line in (
        "Traffic request rate:                    trace     ",
        "Max request concurrency:                 not set   ",
        "Accept length:                           2.50      ",
        "Request goodput (req/s):                 0.33      ",
        "Cached input tokens:                     4         ",
        "Cached input tokens (%):                 13.33     ",
    ):
        assert line in text.splitlines()


def test_every_line_is_explained() -> None:
    figures = figures_of(three_requests(), 3.0)
    setting = Setting(backend="vivace", request_rate=2.0, max_concurrency=2)
    lines = [row for row in rows_of(figures, setting) if isinstance(row, Line)]
    text = explain(figures, setting)
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
