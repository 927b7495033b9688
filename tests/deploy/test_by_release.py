"""Rules that say something else of one release than of another."""

from __future__ import annotations

import pytest
from deployments import found, mixed, separated

from vivace.deploy.case import Case
from vivace.deploy.load_case import Overrides, build_case, open_command
from vivace.deploy.memory.defaults import graph_default
from vivace.deploy.rules.judge import judge

NEXT = "--model-path Qwen/Qwen3-Next-80B-A3B-Instruct --tp 4"
DRAFTED = (
    f"{NEXT} --speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1"
)


def read(line: str, target: str, hardware: str | None = None) -> Case:
    words = ["python", "-m", "sglang.launch_server", *line.split()]
    return build_case(open_command(words), Overrides(target=target, hardware=hardware))


def severities(line: str, rule: str, target: str, hardware: str | None = None) -> list[str]:
    made = read(line, target, hardware)
    return [each.severity for each in judge(made).findings if each.rule == rule]


@pytest.mark.parametrize(
    ("more", "release", "hardware", "expected"),
    [
        ("", "0.5.8", "h200", []),
        ("", "0.5.9", "h200", []),
        ("", "0.5.10", "h200", ["error"]),
        ("", "0.5.13.post1", "h200", ["error"]),
        ("", "0.5.13", "mi300x", []),
        ("", "0.5.14", "h200", []),
        ("", "0.5.23", "h200", []),
        ("--mamba-scheduler-strategy extra_buffer", "0.5.10", "h200", []),
        ("--mamba-radix-cache-strategy no_buffer", "0.5.23", "h200", ["error"]),
        (
            "--mamba-radix-cache-strategy no_buffer --disable-overlap-schedule",
            "0.5.23",
            "h200",
            [],
        ),
        ("--disable-radix-cache", "0.5.10", "h200", []),
        ("", "", "h200", ["warning"]),
    ],
)
def test_drafts_of_models_with_recurrent_layers(
    more: str, release: str, hardware: str, expected: list[str]
) -> None:
    target = f"sglang=={release}" if release else "sglang"
    assert severities(f"{DRAFTED} {more}", "hybrid-cache", target, hardware) == expected


@pytest.mark.parametrize(
    ("device", "release", "few", "many"),
    [
        ("h100", "0.4.6", 160, 160),
        ("h200", "0.4.6", 256, 256),
        ("b200", "0.4.6.post2", 256, 256),
        ("b200", "0.4.7", 512, 512),
        ("h100", "0.5.2", 160, 160),
        ("h100", "0.5.3", 256, 512),
        ("rtx-4090", "0.5.3", 16, 80),
        ("rtx-4090", "0.5.7", 24, 80),
        ("rtx-4090", "0.5.23", 48, 160),
        ("l40s", "0.5.23", 32, 160),
        ("mi300x", "0.5.23", 512, 512),
        ("atlas-800i-a3", "0.5.6.post2", 64, 128),
        ("atlas-800i-a3", "0.5.7", 64, 256),
    ],
)
def test_default_graphs_are_those_of_the_release(
    device: str, release: str, few: int, many: int
) -> None:
    for tp, expected in ((2, few), (4, many)):
        made = read(f"--model-path m --tp {tp}", f"sglang=={release}", device)
        assert made.device is not None
        assert graph_default(made.servers[0], made, made.device) == expected


@pytest.mark.parametrize(
    ("line", "release", "expected"),
    [
        ("--attention-backend cutlass_mla", "", ["warning"]),
        ("--attention-backend cutlass_mla", "0.5.10", []),
        ("--attention-backend cutlass_mla", "0.5.23", ["error"]),
        ("--attention-back cutlass_mla", "", ["warning"]),
        ("--attention-backend cutlas_mla", "", ["error"]),
        ("--attention-backend fa3", "", []),
    ],
)
def test_values_that_some_releases_take(line: str, release: str, expected: list[str]) -> None:
    target = f"sglang=={release}" if release else "sglang"
    assert severities(f"--model-path m {line}", "flag-value", target) == expected


CHUNK = "--model-path m --device npu --tp 16 --chunked-prefill-size"
FUSED = "--model-path m --device npu --tp 16 --moe-a2a-backend ascend_fuseep"
LORA = "--model-path m --enable-lora --speculative-algorithm"
PRIORITY = "--model-path m --enable-priority-scheduling --schedule-policy"
DENSE = "--model-path m --tp 4 --moe-dense-tp-size"
RECURRENT = f"{NEXT} --mamba-radix-cache-strategy no_buffer --disable-overlap-schedule"


@pytest.mark.parametrize(
    ("line", "rule", "release", "expected"),
    [
        (f"{CHUNK} 1000", "chunk-pages", "0.5.10", ["error"]),
        (f"{CHUNK} 1000 --disaggregation-mode decode", "chunk-pages", "0.5.10", []),
        (f"{CHUNK} 1000 --disaggregation-mode decode", "chunk-pages", "0.5.2", ["error"]),
        (f"{CHUNK} 1024 --dp 16 --enable-dp-attention", "chunk-pages", "0.5.10", ["error"]),
        (f"{CHUNK} 1024 --dp 16 --enable-dp-attention", "chunk-pages", "0.4.9.post3", []),
        (f"{CHUNK} 1024 --dp 8 --enable-dp-attention", "chunk-pages", "0.5.10", []),
        (FUSED, "fused-mode", "0.5.10", ["error"]),
        (FUSED, "fused-mode", "0.5.10.post1", ["error"]),
        (FUSED, "fused-mode", "0.5.9", []),
        (FUSED, "fused-mode", "0.5.11", []),
        (FUSED, "fused-mode", "0.5.23", []),
        (f"{LORA} EAGLE", "adapter-drafts", "0.5.5.post2", ["warning"]),
        (f"{LORA} EAGLE", "adapter-drafts", "0.5.7", ["error"]),
        (f"{LORA} NEXTN", "adapter-drafts", "0.5.18", ["error"]),
        (f"{LORA} NEXTN", "adapter-drafts", "0.5.19", ["warning"]),
        (f"{LORA} STANDALONE", "adapter-drafts", "0.5.23", ["error"]),
        (f"{LORA} NGRAM", "adapter-drafts", "0.5.10", []),
        (f"{LORA} EAGLE --speculative-adaptive", "adapter-drafts", "0.5.18", ["error"]),
        (f"{LORA} EAGLE --speculative-adaptive", "adapter-drafts", "0.5.19", ["error"]),
        (f"{LORA} EAGLE --speculative-adaptive", "adapter-drafts", "0.5.23", ["error"]),
        (
            f"{LORA} EAGLE3 --moe-runner-backend experimental_sgl_trtllm",
            "adapter-drafts",
            "0.5.23",
            ["error"],
        ),
        (
            f"{LORA} EAGLE --moe-runner-backend <$X> --speculative-adaptive",
            "adapter-drafts",
            "0.5.20",
            ["error"],
        ),
        (f"{PRIORITY} priority", "priority-policy", "0.5.10", ["error"]),
        (f"{PRIORITY} lof", "priority-policy", "0.5.23", []),
        (f"{DENSE} 4", "dense-tp", "0.5.12.post1", ["error"]),
        (f"{DENSE} 4", "dense-tp", "0.5.13", []),
        (f"{DENSE} 2", "dense-tp", "0.5.23", ["error"]),
        (f"{RECURRENT}", "hybrid-cache", "0.5.14", []),
        (f"{RECURRENT} --page-size 64", "hybrid-cache", "0.5.14", ["error"]),
        (f"{RECURRENT} --page-size 64 --disable-radix-cache", "hybrid-cache", "0.5.14", []),
        (f"{RECURRENT} --attention-backend trtllm_mha", "hybrid-cache", "0.5.23", ["error"]),
        (f"{RECURRENT} --page-size 64", "hybrid-cache", "0.5.13", []),
    ],
)
def test_what_stops_a_release_is_an_error_of_that_release(
    line: str, rule: str, release: str, expected: list[str]
) -> None:
    assert severities(line, rule, f"sglang=={release}") == expected


@pytest.mark.parametrize(
    ("line", "rule", "expected"),
    [
        ("--schedule-conservativeness 0", "becomes-conservativeness", []),
        ("--schedule-conservativeness 0.5", "becomes-conservativeness", ["note"]),
        ("--hicache-storage-backend mooncake", "becomes-hicache-layout", []),
        (
            "--hicache-storage-backend mooncake --hicache-mem-layout layer_first",
            "becomes-hicache-layout",
            ["note"],
        ),
    ],
)
def test_what_becomes_of_a_value_is_said_where_it_changes(
    line: str, rule: str, expected: list[str]
) -> None:
    dp = "--model-path m --tp 4 --dp 4 --enable-dp-attention --enable-hierarchical-cache"
    assert severities(f"{dp} {line}", rule, "sglang==0.5.10") == expected


@pytest.mark.parametrize(("running", "each"), [(256, 16), (250, 15), (8, 1)])
def test_a_rank_admits_what_the_division_by_dp_leaves(running: int, each: int) -> None:
    line = f"--model-path m --tp 16 --dp 16 --enable-dp-attention --max-running-requests {running}"
    (server,) = read(line, "sglang==0.5.10").servers
    assert server.running_per_rank == each


@pytest.mark.parametrize(
    ("variables", "algorithm", "severity"),
    [
        ({}, "DSPARK", "warning"),
        ({"SGLANG_RAGGED_VERIFY_MODE": "static"}, "DSPARK", "warning"),
        ({"SGLANG_RAGGED_VERIFY_MODE": "dynamic"}, "DSPARK", "error"),
        ({"SGLANG_RAGGED_VERIFY_MODE": "dynamic"}, "EAGLE", "warning"),
        ({"SGLANG_ENABLE_OVERLAP_PLAN_STREAM": "1"}, "EAGLE", "error"),
        ({"SGLANG_ENABLE_OVERLAP_PLAN_STREAM": "<$X>"}, "EAGLE", "warning"),
    ],
)
def test_variables_that_drafts_with_adapters_may_not_have(
    variables: dict[str, str], algorithm: str, severity: str
) -> None:
    flags = {"enable-lora": True, "speculative-algorithm": algorithm}
    made = mixed(flags=flags, environment=variables)
    findings = found(made, "adapter-drafts", "sglang==0.5.19")
    assert [each.severity for each in findings] == [severity]


def test_every_role_with_a_fault_is_named() -> None:
    made = separated(decode={"page-size": 64, "speculative-algorithm": "NEXTN"})
    for name in ("prefill", "decode"):
        made["roles"][f"{name}-2"] = made["roles"][name]
    for rule in ("handshake", "drafts-on-both"):
        findings = found(made, rule)
        assert [each.role for each in findings] == ["decode", "decode-2"]
        if rule == "handshake":
            assert all("prefill, prefill-2" in each.text for each in findings)


def test_a_mistake_is_told_once() -> None:
    made = separated(decode={"page-size": 64})
    made["roles"]["prefill-2"] = made["roles"]["prefill"]
    assert len(found(made, "handshake")) == 1
    ranked = read("--model-path m --tp 4 --nnodes 2 --node-rank 2", "sglang==0.5.10")
    about_ranks = [each for each in judge(ranked).findings if each.flag == "--node-rank"]
    assert [each.severity for each in about_ranks] == ["error"]
