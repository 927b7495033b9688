"""One batch on the oracle worker, which refuses any plan that loses or doubles a token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vivace.bench.errors import BenchError
from vivace.bench.one_batch import (
    Batches,
    BatchShape,
    group_spans,
    measure,
    parse,
    resolved_config,
)
from vivace.config.errors import ConfigError
from vivace.engine.executor import InProcessExecutor
from vivace.engine.oracle import OracleWorker
from vivace.protocol.messages import Capacity

KEYS = {
    "run_name",
    "batch_size",
    "input_len",
    "output_len",
    "prefill_latency",
    "prefill_throughput",
    "median_decode_latency",
    "median_decode_throughput",
    "total_latency",
    "overall_throughput",
}


def executor(rows: int = 8, page_size: int = 4) -> InProcessExecutor:
    capacity = Capacity(pages=200, page_size=page_size, rows=rows, context=128, vocabulary=300)
    return InProcessExecutor(OracleWorker(capacity, 300))


def test_the_grid_is_measured_and_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.jsonl"
    flags = "--batch-size 1 4 --input-len 10 33 --output-len 1 5 --run-name x --log-decode-step 2"
    args, words = parse([*flags.split(), "--result-filename", str(file), "--model-path", "m"])
    assert words == ["--model-path", "m"]
    assert measure(args, executor(), limit=16) == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    shapes = [(r["batch_size"], r["input_len"], r["output_len"]) for r in lines]
    assert shapes == [(b, i, o) for b in (1, 4) for i in (10, 33) for o in (1, 5)]
    for line in lines:
        assert set(line) >= KEYS
        tokens = line["batch_size"] * (line["input_len"] + line["output_len"])
        assert line["overall_throughput"] == pytest.approx(tokens / line["total_latency"])
    assert "Decode 2." in capsys.readouterr().out


def test_engines_that_would_not_be_started_are_refused() -> None:
    assert resolved_config(["--tp-size", "3"], "bench").parallel.tp_size == 3
    with pytest.raises(ConfigError, match="--data-parallel-size"):
        resolved_config(["--dp-size", "3"], "bench")


@pytest.mark.parametrize("limit", [1, 7, 1000])
@pytest.mark.parametrize("cut", [0, 4])
def test_tokens_do_not_depend_on_how_the_prompt_is_cut(limit: int, cut: int) -> None:
    shape = BatchShape(batch=2, input_len=9, output_len=6)
    prompts = [list(range(9)), list(range(50, 59))]
    whole = Batches(executor(), 1000).generate(prompts, shape).tokens
    assert Batches(executor(), limit).generate(prompts, shape, cut).tokens == whole
    assert [len(row) for row in whole] == [6, 6]


def test_correctness_test_passes_on_the_oracle(capsys: pytest.CaptureFixture[str]) -> None:
    args, _ = parse(["--correctness-test"])
    assert measure(args, executor(page_size=1), limit=64) == 0
    assert capsys.readouterr().out.count(": equal") == 3


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (BatchShape(batch=9, input_len=1, output_len=1), "rows"),
        (BatchShape(batch=1, input_len=127, output_len=2), "context"),
        (BatchShape(batch=8, input_len=100, output_len=20), "pages"),
    ],
)
def test_what_does_not_fit_is_refused(shape: BatchShape, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        Batches(executor(), 64).check_fits(shape)


def test_groups_keep_order_and_limits() -> None:
    groups = group_spans([(0, 4), (0, 4), (1, 2), (1, 2), (2, 1)], 6)
    assert groups == [[(0, 4)], [(0, 4), (1, 2)], [(1, 2), (2, 1)]]
