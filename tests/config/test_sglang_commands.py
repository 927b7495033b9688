"""Commands written for SGLang, old and new: understood, explained, never guessed."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_kit import resolved

from vivace.config.command_line import build_parser
from vivace.config.config import all_options
from vivace.config.errors import ConfigError
from vivace.config.parsing import parse
from vivace.config.releases.tables import definitions, flags_at, latest, successor
from vivace.config.sglang import RETIRED

FLAGS = {flag for option in all_options() for flag in option.flags}
DROPPED = sorted((FLAGS & set(definitions())) - set(flags_at(latest())))
TWINS = {"--cuda-graph-bs", "--nsa-prefill-backend", "--stream-output", "--nsa-prefill-cp-mode"}
"""of those, some that have a successor here too"""
DECODE_SERVER = """
--model-path /models/DeepSeek-V3.2 --disaggregation-mode decode --host 127.0.0.1 --port 8001
--trust-remote-code --nnodes 2 --node-rank 0 --tp-size 32 --dp-size 8 --ep-size 32
--mem-fraction-static 0.79 --max-running-requests 32 --attention-backend ascend --device npu
--quantization modelslim --moe-a2a-backend deepep --enable-dp-attention --deepep-mode low_latency
--enable-dp-lm-head --moe-dense-tp 1 --cuda-graph-bs 8 10 12 14 --cuda-graph-max-bs 14
--disaggregation-transfer-backend ascend --watchdog-timeout 9000 --context-length 68000
--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1
--speculative-num-draft-tokens 4 --disable-shared-experts-fusion --dtype bfloat16
--tokenizer-worker-num 4 --prefill-round-robin-balance --load-balance-method round_robin
--load-balance-method decode_round_robin --chunked-prefill-size -1
""".split()


def test_a_documented_command_is_understood() -> None:
    options = parse(DECODE_SERVER, {})
    assert (options.parallel.tp_size, options.experts.ep_size) == (32, 32)
    assert options.runtime.cuda_graph_bs == (8, 10, 12, 14)
    assert options.schedule.chunked_prefill_size == -1
    assert options.experts.moe_dense_tp_size == 1
    assert options.parallel.load_balance_method == "auto"
    (told,) = options.rewrites
    assert (told.field, told.before, told.after) == (
        "load_balance_method",
        "decode_round_robin",
        "auto",
    )
    assert any("--load-balance-method is given 2 times" in n for n in options.notices)
    assert any("--prefill-round-robin-balance" in n and "0.5.23" in n for n in options.notices)


@pytest.mark.parametrize(
    ("typed", "today"),
    [
        (["--enable-ep-moe", "--tp", "4"], ["--ep", "4", "--tp-size=4"]),
        (["--enable-ep-moe"], ["--ep-size", "1"]),
        (["--enable-deepep-moe"], ["--moe-a2a-backend", "deepep"]),
        (["--enable-flashinfer-mla"], ["--attention-backend", "flashinfer"]),
        (["--disable-mla"], []),
        (["--hybrid-kvcache-ratio", "0.5", "--pp", "1"], []),
        (["--oltp-traces-endpoint=h:1"], ["--otlp-traces-endpoint", "h:1"]),
        (["--oltp-traces-endpoint", "h:1"], ["--otlp-traces-endpoint", "h:1"]),
        (["--disable-tokenizer-batch-encode"], ["--disable-tokenizer-batch-decode"]),
        (["--load-balance-method", "shortest_queue"], ["--load-balance-method", "total_requests"]),
        (["--cp-strategy", "interleave"], ["--nsa-prefill-cp-mode", "round-robin-split"]),
        (["--incremental-streaming-output"], ["--stream-output"]),
    ],
)
def test_old_and_new_spellings_mean_the_same(typed: list[str], today: list[str]) -> None:
    old, new = parse(typed, {}), parse(today, {})
    for option in all_options():
        part = option.slice_name
        assert getattr(old, part) == getattr(new, part), option.flag


@pytest.mark.parametrize("flag", DROPPED)
def test_documented_flags_that_sglang_dropped_are_explained(flag: str) -> None:
    assert flag not in TWINS or successor(flag, latest()) in FLAGS
    option = next(o for o in all_options() if flag in o.flags)
    value = {"bool": "true", "json": "{}", "int": "1", "float": "1"}
    word = option.choices[0] if option.choices else value.get(option.shape.split()[-1], "1")
    assert any(flag in notice for notice in parse([f"{flag}={word}"], {}).notices)


def test_retired_flags_are_no_options_and_lead_to_some() -> None:
    for flag, retired in RETIRED.items():
        assert flag not in FLAGS and retired.why
        assert not retired.today or retired.today[0] in FLAGS


def test_retirements_are_shown_among_the_rewrites() -> None:
    rewrites = resolved("--disable-mla").rewrites
    assert [(r.field, r.after) for r in rewrites if r.rule == "retired spelling"] == [
        ("disable_mla", "left out")
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-max-concurrency", "4"], ["-max-concurrency"]),
        (["-host", "0.0.0.0"], ["-host", "--host"]),
        (["--dtype", "bfloat1"], ["did you mean bfloat16"]),
        (["--grpc-port", "4"], ["--grpc-port is a flag of SGLang 0.5.23"]),
        (["--prot", "1", "--hsot", "h"], ["did you mean --port", "did you mean --host"]),
        (["--enable-metrics=perhaps"], ["--enable-metrics", "neither true nor false"]),
        (["--max-total-tokens", "1.5"], ["--max-total-tokens", "whole number"]),
        (["--config"], ["--config needs a file"]),
    ],
)
def test_mistakes_are_explained(words: list[str], expected: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(words, {})
    assert all(part in str(caught.value) for part in expected), str(caught.value)


def test_switches_take_a_value_so_that_typing_can_undo_a_file(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("enable_metrics: true\nlog-requests: true\nforward-hooks: [{a: [1]}]\n")
    options = parse(["--config", str(file), "--enable-metrics=false", "--log-requests"], {})
    assert (options.logging.enable_metrics, options.logging.log_requests) == (False, True)
    assert options.debug.forward_hooks == [{"a": [1]}]
    assert options.notices == ()


def test_file_errors_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    for text in ("port: many\n", "port: [1]\n", "disable-mla: 3\ngrpc-port: 1\n"):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"s\.yaml: --"):
            parse(["--config", str(file)], {})


def test_help_names_every_flag() -> None:
    text = build_parser("vivace serve").format_help()
    assert [flag for flag in FLAGS if flag not in text] == []
