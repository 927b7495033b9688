"""Rules that say something else of one release than of another."""

from __future__ import annotations

import pytest

from vivace.deploy.load_case import Overrides, build_case, open_command
from vivace.deploy.rules.judge import judge

NEXT = "--model-path Qwen/Qwen3-Next-80B-A3B-Instruct --tp 4"
DRAFTED = (
    f"{NEXT} --speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1"
)


def severities(line: str, rule: str, target: str, hardware: str | None = None) -> list[str]:
    words = ["python", "-m", "sglang.launch_server", *line.split()]
    made = build_case(open_command(words), Overrides(target=target, hardware=hardware))
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
