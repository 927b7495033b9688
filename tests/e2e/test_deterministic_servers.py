"""--enable-deterministic-inference on real servers: the log-probabilities of one process, to the
last bit, of prompts and of what captured steps draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from running_server import RunningServer, free_port
from seeded_streams import DETERMINISTIC, FLAGS, ask_server, log_probabilities
from toy_models import make

from vivace.platforms.cpu.library import LIBRARY

pytestmark = pytest.mark.skipif(not LIBRARY.is_file(), reason="sums in one order are the kernels'")
MIXTURE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 24,
    "num_key_value_heads": 24,
    "head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
LAYOUTS = (
    "--tp-size 2 --ep-size 2 --ep-num-redundant-experts 2",
    "--tp-size 3",
    "--tp-size 4 --ep-size 2 --dp-size 2 --enable-dp-attention",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixture")
    make("DeepseekV3", path, **MIXTURE)
    return path


@pytest.fixture(scope="module")
def wanted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    log = tmp_path_factory.mktemp("alone") / "log"
    return ask_server(folder, log, log_probabilities, DETERMINISTIC)


@pytest.mark.parametrize("flags", LAYOUTS)
def test_any_ranks_have_the_log_probabilities_of_one(
    flags: str, folder: Path, wanted: list[Any], tmp_path: Path
) -> None:
    words = (DETERMINISTIC, *flags.split())
    assert ask_server(folder, tmp_path / "log", log_probabilities, *words) == wanted


def test_two_nodes_have_the_log_probabilities_of_one(
    folder: Path, wanted: list[Any], tmp_path: Path
) -> None:
    words = f"--tp-size 2 --ep-size 2 --nnodes 2 --dist-init-addr 127.0.0.2:{free_port()}".split()
    flags = ("--model-path", str(folder), DETERMINISTIC, *FLAGS, *words, "--node-rank")
    environment = {"VIVACE_CLUSTER_KEY": "a-key-that-both-nodes-of-this-test-know"}
    with (
        RunningServer(*flags, "1", log=tmp_path / "second", environment=environment),
        RunningServer(*flags, "0", log=tmp_path / "first", environment=environment) as first,
    ):
        assert log_probabilities(first.wait_ready()) == wanted


def test_ranks_that_would_part_segments_end_the_start(folder: Path, tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 160, "num_attention_heads": 32}
    make("Llama", tmp_path / "wide", **sizes, head_dim=16)
    flags = ("--model-path", str(tmp_path / "wide"), "--tp-size", "16", DETERMINISTIC)
    with RunningServer(*flags, *FLAGS, log=tmp_path / "log") as server:
        assert server.process.wait(60) == 2
        assert "in one order" in server.text()
