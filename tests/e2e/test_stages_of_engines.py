"""A real server whose engines share layers that lie in stages: the tokens of one process, experts
that move in all stages at once, and ranks of stages that are stopped or killed."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rank_toys import PARTLY_MIXED
from running_server import RunningServer, wait_ended
from seeded_streams import FLAGS, ask_server, stream_tokens
from toy_models import make

from vivace.platforms.cpu.library import LIBRARY

TOKENS, KILLS = 60, 40
SEEDS = range(6)
LAYOUT = "--tp-size 2 --pp-size 2 --dp-size 2 --enable-dp-attention --ep-size 2"
MOVES = (
    "--ep-num-redundant-experts 2 --enable-eplb --eplb-rebalance-num-iterations 7 "
    "--eplb-rebalance-layers-per-chunk 1 --expert-distribution-recorder-buffer-size -1"
)
WATCHED = "--watchdog-timeout 3 --soft-watchdog-timeout 1 --log-level info"


def draw(server: RunningServer, seed: int, **more: Any) -> list[int]:
    return stream_tokens(server, seed, TOKENS, **more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixture")
    make("Qwen3Moe", path, **PARTLY_MIXED)
    return path


@pytest.fixture(scope="module")
def wanted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    log = tmp_path_factory.mktemp("alone") / "log"
    return ask_server(folder, log, lambda server: [draw(server, seed) for seed in SEEDS])


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Ranks 0 and 2 are of the first engine, 1 and 3 of the second one."""
    output = tmp_path_factory.mktemp("staged")
    words = ("--model-path", str(folder), *FLAGS, *" ".join((LAYOUT, MOVES, WATCHED)).split())
    environment = {"SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR": str(output)}
    with RunningServer(
        *words, environment=environment, log=output / "log", crashes=1_000_000
    ) as running:
        yield running.wait_ready()


def test_experts_of_all_stages_move_and_are_recorded(
    server: RunningServer, wanted: list[list[int]]
) -> None:
    """Each stage has one layer with experts. Both engines count all tokens; one has the record."""
    assert server.call("POST", "/start_expert_distribution_record", {})[0] == 200
    with ThreadPoolExecutor(len(SEEDS)) as pool:
        assert list(pool.map(lambda seed: draw(server, seed), SEEDS)) == wanted
    assert server.call("GET", "/stop_expert_distribution_record", None)[0] == 200
    assert server.call("POST", "/dump_expert_distribution_record", {})[0] == 200
    for engine in (0, 1):  # also while the other one has nothing to do
        assert draw(server, 3, routed_dp_rank=engine) == wanted[3]
    assert server.text().count("experts of 2 layers move") >= 5
    assert ("cuda graph: True" in server.text()) == LIBRARY.is_file()
    (record,) = server.log.parent.glob("expert_distribution_recorder_*.json")
    counts = json.loads(record.read_text())["logical_count"]
    chosen = len(SEEDS) * (4 + TOKENS - 1) * PARTLY_MIXED["num_experts_per_tok"]
    assert [sum(row) for row in counts] == [chosen, 0, chosen]
    states = server.json("/server_info")["internal_states"]
    assert [state["audit"] for state in states] == [[], []]
    assert [len(state["workers"]) for state in states] == [2, 2]


@pytest.mark.parametrize(
    ("number", "engine", "rank", "words"),
    [
        pytest.param(signal.SIGSTOP, 0, 2, "is stopped", marks=pytest.mark.slow),
        (signal.SIGKILL, 1, 3, "killed by SIGKILL"),
    ],
)
def test_a_rank_of_the_last_stage_is_named_and_streams_go_on(
    server: RunningServer,
    wanted: list[list[int]],
    number: signal.Signals,
    engine: int,
    rank: int,
    words: str,
) -> None:
    states = server.json("/server_info")["internal_states"]
    workers = server.workers()
    pid = states[engine]["workers"][1]["pid"]
    with ThreadPoolExecutor(len(SEEDS)) as pool:
        answers = [pool.submit(draw, server, seed) for seed in SEEDS]
        time.sleep(0.2)
        os.kill(pid, number)
        assert [answer.result(120) for answer in answers] == wanted
    wait_ended(workers)
    named = f"rank {rank} (process {pid})"
    assert any(named in line and words in line for line in server.text().splitlines())


@pytest.mark.skipif(not os.environ.get("VIVACE_SLOW_TESTS"), reason="set VIVACE_SLOW_TESTS=1")
def test_streams_go_on_whoever_is_killed(server: RunningServer, wanted: list[list[int]]) -> None:
    """An engine, or a rank of any stage, also while experts move or others start again."""
    chance = random.Random(5)
    for kill in range(KILLS):
        with ThreadPoolExecutor(len(SEEDS)) as pool:
            answers = [pool.submit(draw, server, seed) for seed in SEEDS]
            time.sleep(chance.uniform(0.05, 0.6))
            workers = server.workers()
            os.kill(chance.choice(workers), signal.SIGKILL)
            assert [answer.result(120) for answer in answers] == wanted, kill
        wait_ended(workers)
    assert "Traceback" not in server.text()
