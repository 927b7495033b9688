"""Servers whose engines have requests of their own and share experts and dense layers: the tokens
of one process, whoever is killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from running_server import RunningServer, wait_ended
from seeded_streams import FLAGS, ask_server, body, last_event
from toy_models import DEEPSEEK, make

from vivace.platforms.cpu.library import LIBRARY

KILLS = 70 if os.environ.get("VIVACE_SLOW_TESTS") else 3
TOKENS = 60
STREAMS = 6
LAYOUTS = {
    "tp 2, dp 2": ("--tp-size", "2", "--dp-size", "2"),
    "tp 4, dp 2, ep 4": ("--tp-size", "4", "--dp-size", "2", "--ep-size", "4"),
    "tp 2, dp 2, dense alone": ("--tp-size", "2", "--dp-size", "2", "--moe-dense-tp-size", "1"),
    "tp 2, dp 2, eager": ("--tp-size", "2", "--dp-size", "2", "--disable-cuda-graph"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    make("Qwen3Moe", folder, head_dim=16, mlp_only_layers=[1], **experts)
    return folder


@pytest.fixture(scope="module")
def wanted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[int]]:
    log = tmp_path_factory.mktemp("alone") / "log"
    seeds = range(STREAMS)
    return ask_server(folder, log, lambda alone: {n: stream_tokens(alone, n) for n in seeds})


ALWAYS = "tp 4, dp 2, ep 4", "tp 2, dp 2, dense alone"
"""the other ones are slow tests: tests/equivalence/test_layouts.py has their tokens, too"""


@pytest.fixture(scope="module", params=LAYOUTS if os.environ.get("VIVACE_SLOW_TESTS") else ALWAYS)
def server(
    request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("group") / "log"
    flags = ("--model-path", str(folder), *LAYOUTS[request.param], "--enable-dp-attention", *FLAGS)
    with RunningServer(*flags, log=log, crashes=1_000_000) as running:
        yield running.wait_ready()


@pytest.mark.slow
def test_a_rank_that_is_stopped_is_named(
    folder: Path, wanted: dict[int, list[int]], tmp_path: Path
) -> None:
    """It is of the second engine; both wait for it."""
    flags = ("--model-path", str(folder), "--tp-size", "4", "--dp-size", "2", *FLAGS)
    watchdog = ("--watchdog-timeout", "3", "--soft-watchdog-timeout", "1")
    with RunningServer(
        *flags, "--enable-dp-attention", *watchdog, log=tmp_path / "log", crashes=1_000_000
    ) as server:
        server.wait_ready()
        workers = server.workers()
        assert len(workers) == 4
        with ThreadPoolExecutor(STREAMS) as pool:
            answers = [pool.submit(stream_tokens, server, seed) for seed in range(STREAMS)]
            time.sleep(0.2)
            os.kill(workers[3], signal.SIGSTOP)
            assert {seed: answer.result(200) for seed, answer in enumerate(answers)} == wanted
        wait_ended(workers)
        assert f"rank 3 (process {workers[3]}) is stopped" in server.text()


def stream_tokens(server: RunningServer, seed: int, **more: Any) -> list[int]:
    prompt = [5 + seed + i % 40 for i in range(3 + 17 * seed)]
    return last_event(server, body(seed, TOKENS, prompt, **more))["output_ids"]


def test_tokens_are_those_of_one_process(
    server: RunningServer, wanted: dict[int, list[int]]
) -> None:
    with ThreadPoolExecutor(STREAMS) as pool:
        answers = [pool.submit(stream_tokens, server, seed) for seed in range(STREAMS)]
        assert {seed: answer.result(120) for seed, answer in enumerate(answers)} == wanted
    asked = "--disable-cuda-graph" not in list(server.process.args)
    captured = asked and LIBRARY.is_file()
    assert ("cuda graph: True" in server.text()) == captured
    for engine in (0, 1):  # also while the other one has nothing to do
        assert stream_tokens(server, 3, routed_dp_rank=engine) == wanted[3]
    found = server.json("/server_info")
    states = found["internal_states"]
    assert [state["audit"] for state in states] == [[], []]
    each = [state["effective_max_running_requests_per_dp"] for state in states]
    assert (found["max_running_requests"], each) == (8, [4, 4])


def test_streams_go_on_whoever_is_killed(
    server: RunningServer, wanted: dict[int, list[int]]
) -> None:
    chance = random.Random(5)
    for kill in range(KILLS):
        with ThreadPoolExecutor(STREAMS) as pool:
            answers = [pool.submit(stream_tokens, server, seed) for seed in range(STREAMS)]
            time.sleep(chance.uniform(0.05, 0.5))
            workers = server.workers()
            os.kill(chance.choice(workers), signal.SIGKILL)
            found = {seed: answer.result(120) for seed, answer in enumerate(answers)}
        assert found == wanted, kill
        wait_ended(workers)
    assert "Traceback" not in server.text()


def test_engines_with_latents_and_a_shared_expert(tmp_path: Path) -> None:
    make("DeepseekV3", tmp_path / "toy", **DEEPSEEK)
    flags = ("--model-path", str(tmp_path / "toy"), *FLAGS)
    layout = ("--tp-size", "4", "--dp-size", "2", "--ep-size", "4", "--enable-dp-attention")
    found = []
    for name, more in (("alone", ()), ("group", layout)):
        with RunningServer(*flags, *more, log=tmp_path / name) as server:
            server.wait_ready()
            with ThreadPoolExecutor(STREAMS) as pool:
                answers = pool.map(partial(stream_tokens, server), range(STREAMS))
                found.append(list(answers))
            assert ("cuda graph: True" in server.text()) == LIBRARY.is_file()
    assert found[0] == found[1]
