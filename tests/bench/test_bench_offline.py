"""The offline benchmark with an engine that makes tokens up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vivace.bench.offline import engine_arguments, measure, parse
from vivace.bench.tokenizer import SplitCodec, TokenCodec

FLAGS = "--num-prompts 5 --random-input-len 9 --random-output-len 4 --random-range-ratio 1"


class InventingEngine:
    """Answers with the asked number of tokens, or `short` fewer."""

    def __init__(self, short: int = 0) -> None:
        self.calls: list[dict[str, Any]] = []
        self.ended = False
        self._short = short

    def generate(self, **kwargs: Any) -> list[dict[str, Any]]:
        self.calls.append(kwargs)
        return [
            {"text": "", "meta_info": {"completion_tokens": s["max_new_tokens"] - self._short}}
            for s in kwargs["sampling_params"]
        ]

    def get_server_info(self) -> dict[str, Any]:
        state = {"last_gen_throughput": 12.5, "instructions": "native kernels, avx2"}
        return {"internal_states": [state]}

    def shutdown(self) -> None:
        self.ended = True


def codec(path: str | None) -> TokenCodec:
    return SplitCodec()


def test_figures_and_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine, file = InventingEngine(), tmp_path / "o.jsonl"
    args, _ = parse([*FLAGS.split(), "--tokenize-prompt", "--result-filename", str(file)])
    assert measure(args, {}, lambda arguments: engine, codec) == 0
    result = json.loads(file.read_text())
    assert result["successful_requests"] == 5
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (45, 20)
    total = result["total_throughput"] * result["total_latency"]
    assert total == pytest.approx(65)
    assert result["last_gen_throughput"] == 12.5
    assert result["instructions"] == "native kernels, avx2"
    shown = capsys.readouterr().out
    assert "computed by: native kernels, avx2" in shown
    assert engine.ended
    warmup, run = engine.calls
    assert [len(ids) for ids in run["input_ids"]] == [9] * 5
    assert run["sampling_params"][0] == {
        "temperature": 0,
        "max_new_tokens": 4,
        "ignore_eos": True,
    }
    assert len(warmup["input_ids"]) == 5
    assert "Offline Throughput Benchmark Result" in shown


def test_wrong_lengths_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    args, _ = parse([*FLAGS.split(), "--skip-warmup"])
    engine = InventingEngine(short=1)
    assert measure(args, {}, lambda arguments: engine, codec) == 1
    assert "5 requests asked 20 tokens; 5 answers had 15" in capsys.readouterr().err


@pytest.mark.parametrize("flags", ["--use-trace-timestamps", "--gsp-num-turns 2", "--profile"])
def test_what_needs_a_server_is_refused(flags: str) -> None:
    with pytest.raises(SystemExit):
        parse(flags.split())


def test_server_flags_become_engine_arguments() -> None:
    words = "--max-running-requests 7 --dtype float32 --disable-radix-cache".split()
    arguments = engine_arguments(words, "test")
    assert arguments["max_running_requests"] == 7
    assert arguments["dtype"] == "float32"
    assert arguments["disable_radix_cache"] is True
    assert "page_size" not in arguments
    with pytest.raises(ValueError, match="max-running-request"):
        engine_arguments(["--max-running-requestz", "7"], "test")
