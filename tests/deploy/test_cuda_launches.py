"""What SGLang's documents start on GPUs, the source beside each: no launch has an error.

The settings are kept, not the documents' lines: of each server the program, its variables and its
flags by name. They are read as one script; hardware and cards are those the document names, or that
the model is made for. Sources name the commit in which the settings stand.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from vivace.deploy.from_script.script import import_scripts
from vivace.deploy.load_case import Overrides, build_case
from vivace.deploy.rules.judge import RULES, CheckResult, judge

LAUNCHES: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("cuda_launches.json").read_text()
)
OF_ASCEND = {rule.name for rule in RULES if rule.platforms == ("npu",)}
TRUE_WARNINGS = {
    "graph-covers": 6,  # batches above --cuda-graph-max-bs 8 run eagerly; 48 requests are admitted
    "separation-halves": 8,  # one half of a deployment
    "router-missing": 2,  # there are prefill and decode servers only
    "abbreviated-flag": 1,  # --speculative-algo
    "hybrid-cache": 1,  # Qwen3-Next with NEXTN stops 0.5.10 to 0.5.13 without extra buffers
}
"""how many launches have each"""


def line(server: dict[str, Any]) -> str:
    words = [f"{name}={value}" for name, value in server.get("environment", {}).items()]
    words.append(server["program"])
    for name, value in server["flags"].items():
        values = value if isinstance(value, list) else [] if value is True else [value]
        words += [f"--{name}", *values]
    return " ".join(words)


def verdict(launch: dict[str, Any], hardware: str | None, cards: int | None) -> CheckResult:
    loaded = import_scripts([("launch.sh", "\n".join(map(line, launch["servers"])) + "\n")])
    return judge(build_case(loaded, Overrides(hardware=hardware, cards=cards)))


@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: launch["hardware"])
@pytest.mark.parametrize("known", [True, False], ids=["hardware", "bare"])
def test_no_documented_launch_has_an_error(launch: dict[str, Any], known: bool) -> None:
    found = verdict(
        launch, launch["hardware"] if known else None, launch["cards"] if known else None
    )
    assert [each.text for each in found.findings if each.severity == "error"] == []
    assert not OF_ASCEND & {each.rule for each in found.findings}


def test_every_warning_is_true() -> None:
    counts = Counter(
        rule
        for launch in LAUNCHES
        for rule in {
            each.rule
            for each in verdict(launch, launch["hardware"], launch["cards"]).findings
            if each.severity == "warning"
        }
    )
    assert counts == TRUE_WARNINGS


def test_each_names_its_source() -> None:
    assert len({str(launch["servers"]) for launch in LAUNCHES}) == len(LAUNCHES) >= 60
    commits = re.compile(r"https://github.com/sgl-project/sglang/blob/[0-9a-f]{40}/docs/.+\.md")
    assert all(commits.fullmatch(launch["source"]) for launch in LAUNCHES)


@pytest.mark.parametrize(
    "name", "rtx-3090 rtx-4090 rtx-5090 l4 l40s a100 h100 h200 b200 gb200 mi300x".split()
)
def test_a_small_model_fits_on_every_gpu(name: str) -> None:
    flags = {"model-path": "Qwen/Qwen3-30B-A3B-FP8", "tp": "4", "ep": "4"}
    server = {"program": "python -m sglang.launch_server", "flags": flags}
    found = verdict({"servers": [server]}, name, 4)
    assert [each.text for each in found.findings if each.severity == "error"] == []
