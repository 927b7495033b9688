"""A real server whose layers lie in stages: the tokens of one process, also when a stage is
killed; steps that wait for a slow stage are no stall, and a request that kills one ends alone."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import seeded_streams
from running_server import RunningServer, is_alive
from seeded_streams import FLAGS, SEEDS, ask_server, last_event
from served_toy import write_toy_llama

from vivace.platforms.cpu.library import LIBRARY

KILLS = 30 if os.environ.get("VIVACE_SLOW_TESTS") else 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_llama(tmp_path_factory.mktemp("toy"), layers=3)


@pytest.fixture(scope="module")
def wanted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    log = tmp_path_factory.mktemp("alone") / "log"
    return ask_server(folder, log, ask_all)


@pytest.fixture(scope="module")
def staged(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("staged") / "log"
    flags = ("--model-path", str(folder), "--pp-size", "2", *FLAGS)
    with RunningServer(*flags, log=log, crashes=1_000_000) as server:
        yield server.wait_ready()


def body(seed: int, count: int = 120) -> dict[str, Any]:
    prompt = [3 + (7 * seed + i) % 250 for i in range(4 + 40 * (seed % 3))]
    scores = {"return_logprob": seed % 4 == 1, "logprob_start_len": 0}
    return seeded_streams.body(seed, count, prompt, **scores)


def ask(server: RunningServer, seed: int) -> Any:
    """(tokens, log-probabilities of prompt and answer)"""
    answer = last_event(server, body(seed))
    scores = [answer["meta_info"].get(f"{side}_token_logprobs") for side in ("input", "output")]
    return answer["output_ids"], scores


def ask_all(server: RunningServer) -> dict[int, Any]:
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, server, seed) for seed in SEEDS]
        return {seed: answer.result(120) for seed, answer in zip(SEEDS, answers, strict=True)}


def test_two_stages_answer_as_one_process(staged: RunningServer, wanted: dict[int, Any]) -> None:
    """Log-probabilities, too, to the last bit where the kernels compute them."""
    found = ask_all(staged)
    assert {seed: one[0] for seed, one in found.items()} == {
        seed: one[0] for seed, one in wanted.items()
    }
    assert found == wanted or not LIBRARY.is_file()
    state = staged.json("/server_info")["internal_states"][0]
    assert state["executor"] == "ProcessGroupExecutor"
    assert [worker.get("rank", 0) for worker in state["workers"]] == [0, 1]
    first, second = (worker["kv_bytes"] for worker in state["workers"])
    assert first == 2 * second  # of three layers
    assert state["audit"] == []


def test_stages_of_several_ranks_answer_as_one_process(
    folder: Path, wanted: dict[int, Any], tmp_path: Path
) -> None:
    """Tokens, also with more plans in flight, an uneven split and another prompt cut. The ranks of
    the last stage draw the same."""
    more = ("--tp-size", "2", "--pp-size", "2", "--pp-async-batch-depth", "1")
    more += ("--chunked-prefill-size", "16", "--pp-max-micro-batch-size", "2")
    environment = {"SGLANG_PP_LAYER_PARTITION": "1,2", "VIVACE_COMPARE_RANKS": "1"}
    flags = ("--model-path", str(folder), *more, *FLAGS)
    with RunningServer(*flags, log=tmp_path / "log", environment=environment) as server:
        server.wait_ready()
        found = ask_all(server)
        assert {seed: one[0] for seed, one in found.items()} == {
            seed: one[0] for seed, one in wanted.items()
        }
        state = server.json("/server_info")["internal_states"][0]
        assert len(state["workers"]) == 4
        assert state["audit"] == []


def test_engines_of_stages_that_gloo_connects(
    folder: Path, wanted: dict[int, Any], tmp_path: Path
) -> None:
    """Two engines that share nothing, each with a stage beside it, without the kernels."""
    more = ("--dp-size", "2", "--pp-size", "2", "--disable-cpu-kernels")
    with RunningServer("--model-path", str(folder), *more, *FLAGS, log=tmp_path / "log") as server:
        server.wait_ready()
        tokens = {seed: one[0] for seed, one in wanted.items()}
        assert {seed: one[0] for seed, one in ask_all(server).items()} == tokens
        states = server.json("/server_info")["internal_states"]
        assert [len(state["workers"]) for state in states] == [2, 2]
        assert [state["audit"] for state in states] == [[], []]
        assert len({worker["pid"] for state in states for worker in state["workers"]}) == 4


def test_a_stage_that_is_killed_is_named_and_streams_go_on(
    staged: RunningServer, wanted: dict[int, Any]
) -> None:
    chance = random.Random(5)
    for kill in range(KILLS):
        with ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(ask, staged, seed) for seed in SEEDS]
            time.sleep(chance.uniform(0.05, 0.6))
            rank = staged.find_rank()
            os.kill(rank, signal.SIGKILL)
            found = {seed: answer.result(120)[0] for seed, answer in enumerate(answers)}
        assert found == {seed: one[0] for seed, one in wanted.items()}, kill
        named = re.compile(rf"rank 1 \(process {rank}\): killed by SIGKILL")
        for _ in range(200):
            if named.search(staged.text()):
                break
            time.sleep(0.05)
        assert named.search(staged.text()), staged.text()[-3000:]
        assert not is_alive(rank)
        assert "Traceback" not in staged.text()


@pytest.mark.slow
def test_a_stage_that_hangs_is_named(folder: Path, tmp_path: Path) -> None:
    """Nobody has stopped it: it does not come where the engine waits for it."""
    flags = ("--pp-size", "2", "--watchdog-timeout", "2", "--soft-watchdog-timeout", "1")
    environment = {"VIVACE_TEST_FAULT": "rank-hang@30"}
    log = tmp_path / "log"
    with RunningServer(
        "--model-path", str(folder), *flags, *FLAGS, log=log, environment=environment
    ) as server:
        server.wait_ready()
        rank = server.find_rank()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(server.call, "POST", "/generate", body(1), timeout=15.0)
            named = f"rank 1 (process {rank}) does not come where others wait"
            server.wait_for(f"made no progress for 3 s: {named}", 30.0)
            server.process.kill()


def test_a_slow_stage_is_no_stall(folder: Path, tmp_path: Path) -> None:
    """Its step takes longer than the engine may take between two steps."""
    flags = ("--model-path", str(folder), "--pp-size", "2", "--skip-server-warmup", *FLAGS)
    told = {"VIVACE_TEST_FAULT": "rank-slow@3500"}
    with RunningServer(*flags, log=tmp_path / "log", environment=told) as server:
        server.wait_ready()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(server.call, "POST", "/generate", body(0, 2), timeout=60.0)
            seen = set()
            while not answer.done():
                seen.add(server.call("GET", "/health")[0])
                time.sleep(0.1)
        assert (answer.result()[0], seen) == (200, {200})
        assert "Stalled" not in server.text()


def test_a_request_that_kills_a_later_stage_ends_alone(
    folder: Path, wanted: dict[int, Any], tmp_path: Path
) -> None:
    flags = ("--model-path", str(folder), "--pp-size", "2", *FLAGS)
    told = {"VIVACE_TEST_FAULT": "rank-kill-token@299"}
    with RunningServer(*flags, log=tmp_path / "log", environment=told) as server:
        server.wait_ready()
        with ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(ask, server, seed) for seed in SEEDS]
            time.sleep(0.3)
            poison = {**body(2), "input_ids": [5, 299]}
            status, page = server.call("POST", "/generate", poison, timeout=120.0)
            found = {seed: answer.result(120)[0] for seed, answer in enumerate(answers)}
        assert status == 500 and b"died of this request" in page
        assert found == {seed: one[0] for seed, one in wanted.items()}
        server.wait_ready()


def test_more_stages_than_layers_end_the_start(folder: Path, tmp_path: Path) -> None:
    flags = ("--model-path", str(folder), "--pp-size", "4", *FLAGS)
    with RunningServer(*flags, log=tmp_path / "log") as server:
        assert server.process.wait(60) == 2
        assert "--pp-size 4" in server.text()
        assert "3 or less" in server.text()
