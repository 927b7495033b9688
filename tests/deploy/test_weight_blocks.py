"""Ranks share the blocks of FP8 weights: what SGLang's fp8.py refuses when it makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vivace.deploy.load_case import Overrides, build_case, open_command
from vivace.deploy.rules.judge import Finding, judge

SERVER = "python -m sglang.launch_server --model-path"
NODES = "--tp 16 --nnodes 2 --dist-init-addr a:5000"
MANY = "--tp 32 --nnodes 4 --dist-init-addr a:5000"
SHAPES = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 4,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 1024,
}


def blocks(line: str, hardware: str | None = "h200", **overrides: Any) -> list[Finding]:
    case = build_case(
        open_command(f"{SERVER} {line}".split()), Overrides(hardware=hardware, **overrides)
    )
    return [each for each in judge(case).findings if each.rule == "weight-blocks"]


@pytest.mark.parametrize(
    ("line", "remedies"),
    [
        ("Qwen/Qwen3-235B-A22B-FP8 --tp 8", ["--ep-size 2"]),
        ("Qwen/Qwen3-235B-A22B-FP8 --tp 8 --ep-size 4", []),
        ("Qwen/Qwen3-235B-A22B-FP8 --tp 4", []),
        ("Qwen/Qwen3-235B-A22B-FP8 --tp 8 --moe-a2a-backend deepep", []),
        ("Qwen/Qwen3-235B-A22B-FP8 --tp 8 --moe-runner-backend flashinfer_trtllm", []),
        ("MiniMaxAI/MiniMax-M2.5 --tp 8", ["--ep-size 2"]),
        ("Qwen/Qwen3-30B-A3B-FP8 --tp 4", ["--ep-size 2"]),
        (f"Qwen/Qwen3-0.6B-FP8 {NODES}", ["--tp-size 8"]),
        (f"Qwen/Qwen3-0.6B-FP8 --tp {1 << 60}", ["--tp-size 8"]),
        (f"deepseek-ai/DeepSeek-V3 {NODES}", []),
        (f"deepseek-ai/DeepSeek-V3 {MANY}", ["--tp-size 16", "--ep-size 2"]),
        (f"deepseek-ai/DeepSeek-V3 {MANY} --moe-dense-tp-size 1 --ep-size 32", []),
        # Other weights, or weights that SGLang makes itself, have no such blocks.
        ("Qwen/Qwen3-235B-A22B --quantization fp8 --tp 8", []),
        ("RedHatAI/Qwen3-235B-A22B-FP8-dynamic --tp 8", []),
        (f"cognitivecomputations/DeepSeek-V3-AWQ {MANY}", []),
        (f"neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8 {NODES}", []),
    ],
)
def test_each_rank_has_whole_blocks(line: str, remedies: list[str]) -> None:
    found = blocks(line)
    assert [(each.severity, each.remedy) for each in found] == [("error", _) for _ in remedies]


@pytest.mark.parametrize(
    ("path", "hardware", "severities"),
    [
        ("Qwen/Qwen3-235B-A22B-FP8", None, ["warning"]),  # a CPU would pad
        ("Qwen/Qwen3-235B-A22B-FP8", "mi300x", ["warning"]),
        ("Qwen/Qwen3-235B-A22B-FP8", "b200", []),  # flashinfer_trtllm is the default there
        ("/models/Qwen/Qwen3-235B-A22B-FP8", "h100", ["error"]),
        ("/models/Qwen3-235B-A22B-FP8", "h100", ["warning"]),
    ],
)
def test_what_is_only_assumed_makes_a_warning(
    path: str, hardware: str | None, severities: list[str]
) -> None:
    found = blocks(f"{path} --tp 8", hardware)
    assert [each.severity for each in found] == severities
    assert all("--hardware" in each.remedy for each in found if hardware is None)
    assert all("--model" in each.remedy for each in found if path.startswith("/models/Qwen3"))


@pytest.mark.parametrize(
    ("stored", "count"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, 0),
        ({"quant_method": "fp8", "weight_block_size": [128, 128],
          "modules_to_not_convert": ["model.layers.0.mlp.gate", "lm_head"]}, 1),
        ({"quant_method": "fp8", "weight_block_size": [128, 128],
          "modules_to_not_convert": ["model.layers.0.mlp.experts"]}, 0),
        ({"quant_method": "fp8"}, 0),
        ({"quant_method": "fp8", "weight_block_size": "128"}, 0),
        (None, 0),
    ],
)  # fmt: skip
def test_a_config_says_which_blocks_there_are(tmp_path: Path, stored: Any, count: int) -> None:
    config = {**SHAPES, **({"quantization_config": stored} if stored else {})}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = blocks("m --tp 4", model=str(tmp_path))
    assert [each.severity for each in found] == ["error"] * count
