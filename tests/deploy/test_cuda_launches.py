"""30 launch lines of SGLang's documents for GPUs, the source beside each: none has an error.

They are read as a script, as a user would paste them; hardware and cards are those the document
names, or that the model is made for.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from vivace.deploy.from_script.script import import_scripts
from vivace.deploy.load_case import Overrides, build_case
from vivace.deploy.rules.judge import RULES, CheckResult, judge

LAUNCHES = json.loads(Path(__file__).with_name("cuda_launches.json").read_text())
OF_ASCEND = {rule.name for rule in RULES if rule.platforms == ("npu",)}
TRUE_WARNINGS = {
    "graph-covers": 6,  # batches above --cuda-graph-max-bs 8 run eagerly; 48 requests are admitted
    "separation-halves": 6,  # the line is one half of a deployment
}
"""how many lines have each"""


def verdict(launch: dict[str, str], hardware: str | None, cards: int | None) -> CheckResult:
    loaded = import_scripts([("launch.sh", launch["line"] + "\n")])
    return judge(build_case(loaded, Overrides(hardware=hardware, cards=cards)))


@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: launch["hardware"])
@pytest.mark.parametrize("known", [True, False], ids=["hardware", "bare"])
def test_no_documented_launch_has_an_error(launch: dict[str, str], known: bool) -> None:
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


def test_there_are_thirty_and_each_names_its_source() -> None:
    assert len({launch["line"] for launch in LAUNCHES}) == 30
    assert all(launch["source"].startswith("https://") for launch in LAUNCHES)


@pytest.mark.parametrize(
    "name", "rtx-3090 rtx-4090 rtx-5090 l4 l40s a100 h100 h200 b200 gb200 mi300x".split()
)
def test_a_small_model_fits_on_every_gpu(name: str) -> None:
    line = "python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B-FP8 --tp 4"
    found = verdict({"line": line}, name, 4)
    assert [each.text for each in found.findings if each.severity == "error"] == []
