"""Rules that say something else of one release than of another."""

from __future__ import annotations

import pytest

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
