"""Engines of two nodes that share layers in stages, with sums in one order: log-probabilities of
one process, to the last bit, and a record of all experts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from rank_toys import PARTLY_MIXED
from seeded_streams import (
    DETERMINISTIC,
    SCORED,
    SCORED_SEEDS,
    ask_server,
    log_probabilities,
    scored_prompt,
)
from toy_models import make
from two_nodes import Nodes, list_ranks

from vivace.platforms.cpu.library import LIBRARY

pytestmark = [
    pytest.mark.skipif(not LIBRARY.is_file(), reason="nodes need the native kernels"),
    pytest.mark.skipif(not os.environ.get("VIVACE_SLOW_TESTS"), reason="set VIVACE_SLOW_TESTS=1"),
]
LAYOUTS = {
    "a stage on each": "--tp-size 2 --pp-size 2 --dp-size 2 --enable-dp-attention --ep-size 2",
    "an engine on each": "--tp-size 2 --dp-size 2 --enable-dp-attention --ep-size 2",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixture")
    make("Qwen3Moe", path, **PARTLY_MIXED)
    return path


@pytest.fixture(scope="module")
def wanted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    log = tmp_path_factory.mktemp("alone") / "log"
    return ask_server(folder, log, log_probabilities, DETERMINISTIC)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_nodes_have_the_log_probabilities_of_one(
    layout: str,
    folder: Path,
    wanted: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = tmp_path / "record"
    output.mkdir()
    monkeypatch.setenv("SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR", str(output))
    (tmp_path / "logs").mkdir()
    words = (*LAYOUTS[layout].split(), DETERMINISTIC)
    words += ("--expert-distribution-recorder-mode", "stat")
    nodes = Nodes(folder, tmp_path / "logs", words)
    try:
        first, second = nodes.start(0), nodes.start(1)
        first.wait_ready()
        assert len(list_ranks(second)) == (2 if "pp" in LAYOUTS[layout] else 1)
        assert first.call("POST", "/start_expert_distribution_record", {})[0] == 200
        assert log_probabilities(first) == wanted
        assert first.call("GET", "/stop_expert_distribution_record", None)[0] == 200
        assert first.call("POST", "/dump_expert_distribution_record", {})[0] == 200
    finally:
        nodes.close()
    (record,) = output.glob("expert_distribution_recorder_*.json")
    counts = json.loads(record.read_text())["logical_count"]
    tokens = sum(len(scored_prompt(seed)) + SCORED - 1 for seed in SCORED_SEEDS)
    chosen = tokens * PARTLY_MIXED["num_experts_per_tok"]
    assert [sum(row) for row in counts] == [chosen, 0, chosen]
