"""Real servers whose ranks have different experts: the tokens of one process."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from running_server import RunningServer
from seeded_streams import FLAGS, ask_server, body
from toy_models import make

TOKENS = 60
MIXTURE = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 64,
    "mlp_only_layers": [1],
}


def draw(folder: Path, log: Path, *flags: str) -> list[list[int]]:
    def ask(server: RunningServer) -> list[list[int]]:
        with ThreadPoolExecutor(6) as pool:
            answers = pool.map(lambda seed: server.json("/generate", body(seed, TOKENS)), range(6))
            return [answer["output_ids"] for answer in answers]

    return ask_server(folder, log, ask, *flags)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixture")
    make("Qwen3Moe", path, **MIXTURE)
    return path


@pytest.fixture(scope="module")
def wanted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    return draw(folder, tmp_path_factory.mktemp("alone") / "log")


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param("--tp-size 2 --ep-size 2", marks=pytest.mark.slow),
        "--tp-size 4 --ep-size 2 --ep-num-redundant-experts 4 --ep-dispatch-algorithm dynamic",
        pytest.param(
            "--tp-size 2 --ep-size 2 --moe-dense-tp-size 1 --dp-size 2 --enable-dp-attention",
            marks=pytest.mark.slow,
        ),
        "--tp-size 4 --ep-size 4 --dp-size 2 --enable-dp-attention --ep-num-redundant-experts 8 "
        "--ep-dispatch-algorithm dynamic",
        pytest.param(
            "--tp-size 4 --dp-size 2 --enable-dp-attention --moe-a2a-backend deepep "
            "--ep-num-redundant-experts 4",
            marks=pytest.mark.slow,
        ),
        "--tp-size 2 --moe-a2a-backend ascend_fuseep --deepep-mode normal",
        "--tp-size 2 --dp-size 2 --enable-dp-attention --moe-a2a-backend deepep "
        "--deepep-mode low_latency --chunked-prefill-size 64",
    ],
)
def test_ranks_with_different_experts(
    flags: str, folder: Path, wanted: list[list[int]], tmp_path: Path
) -> None:
    assert draw(folder, tmp_path / "log", *flags.split()) == wanted


@pytest.mark.parametrize(
    "engines", [pytest.param("", marks=pytest.mark.slow), "--dp-size 2 --enable-dp-attention"]
)
def test_experts_move_and_are_recorded_while_streams_go_on(
    engines: str,
    folder: Path,
    wanted: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also those that engines share: all move them at the same step, and one has the record."""
    monkeypatch.setenv("SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR", str(tmp_path))
    flags = (
        "--tp-size 2 --ep-size 2 --ep-num-redundant-experts 2 --enable-eplb "
        "--eplb-rebalance-num-iterations 7 --eplb-rebalance-layers-per-chunk 1 --log-level info "
        "--expert-distribution-recorder-buffer-size -1 " + engines
    )
    words = ["--model-path", str(folder), *FLAGS, *flags.split()]
    with RunningServer(*words, log=tmp_path / "log") as server:
        server.wait_ready()
        assert server.call("POST", "/start_expert_distribution_record", {})[0] == 200
        with ThreadPoolExecutor(6) as pool:
            answers = pool.map(lambda seed: server.json("/generate", body(seed, TOKENS)), range(6))
            assert [answer["output_ids"] for answer in answers] == wanted
        assert server.call("GET", "/stop_expert_distribution_record", None)[0] == 200
        assert server.call("POST", "/dump_expert_distribution_record", {})[0] == 200
        assert server.text().count("experts of 2 layers move") >= 5
    (record,) = tmp_path.glob("expert_distribution_recorder_*.json")
    counts = json.loads(record.read_text())["logical_count"]
    assert [len(row) for row in counts] == [8] * 3 and sum(counts[1]) == 0
    assert sum(counts[0]) == sum(counts[2]) == 6 * (4 + TOKENS - 1) * MIXTURE["num_experts_per_tok"]
    again = "--tp-size 2 --ep-size 2 --ep-num-redundant-experts 2 --init-expert-location".split()
    assert draw(folder, tmp_path / "again", *again, str(record)) == wanted
