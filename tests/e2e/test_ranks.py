"""A real server whose model two processes share: the tokens of one process, also when a rank is
killed at any step."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from running_server import RunningServer, is_alive, wait_ended
from seeded_streams import FLAGS, all_streams, body, stream_tokens

KILLS = 100 if os.environ.get("VIVACE_SLOW_TESTS") else 3
"""of each kind"""


@pytest.fixture(scope="module")
def pair(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("pair") / "log"
    flags = ("--model-path", str(folder), "--tp-size", "2", *FLAGS)
    with RunningServer(*flags, log=log, crashes=1_000_000) as server:
        yield server.wait_ready()


def test_two_processes_draw_the_tokens_of_one(
    pair: RunningServer, wanted: dict[int, list[int]]
) -> None:
    assert all_streams(pair) == wanted
    state = pair.json("/server_info")["internal_states"][0]
    assert state["executor"] == "ProcessGroupExecutor"
    assert [worker.get("rank", 0) for worker in state["workers"]] == [0, 1]
    assert state["workers"][1]["pid"] == pair.find_rank()
    assert state["audit"] == []


def test_a_rank_that_is_killed_is_named_and_streams_go_on(
    pair: RunningServer, wanted: dict[int, list[int]]
) -> None:
    """A stream may be in the fatal step of one kill only: after two, a request counts as the one
    that kills."""
    chance = random.Random(3)
    for kill in range(KILLS):
        with ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(stream_tokens, pair, seed) for seed in range(8)]
            time.sleep(chance.uniform(0.05, 0.6))
            rank = pair.find_rank()
            os.kill(rank, signal.SIGKILL)
            found = {seed: answer.result(120) for seed, answer in enumerate(answers)}
        assert found == wanted, kill
        named = re.compile(rf"rank 1 \(process {rank}\): killed by SIGKILL")
        for _ in range(200):  # the streams may have ended before
            if named.search(pair.text()):
                break
            time.sleep(0.05)
        text = pair.text()
        assert named.search(text), text[-3000:]
        assert not is_alive(rank)
        assert "Traceback" not in text


def test_streams_go_on_whoever_is_killed_at_any_moment(
    folder: Path, wanted: dict[int, list[int]], tmp_path: Path
) -> None:
    """Of four processes; also one that has only just been started. Nobody stays behind."""
    flags = ("--model-path", str(folder), "--tp-size", "4", *FLAGS)
    chance = random.Random(7)
    with RunningServer(*flags, log=tmp_path / "log", crashes=1_000_000) as server:
        server.wait_ready()
        for kill in range(KILLS):
            with ThreadPoolExecutor(8) as pool:
                answers = [pool.submit(stream_tokens, server, seed) for seed in range(8)]
                time.sleep(chance.choice((0.0, chance.uniform(0.0, 3.0))))
                workers = server.workers()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(workers), signal.SIGKILL)
                found = {seed: answer.result(200) for seed, answer in enumerate(answers)}
            assert found == wanted, kill
            wait_ended(workers)
        assert "Traceback" not in server.text()


def test_a_rank_that_is_stopped_is_named_and_replaced(
    folder: Path, wanted: dict[int, list[int]], tmp_path: Path
) -> None:
    watchdog = ("--watchdog-timeout", "3", "--soft-watchdog-timeout", "1")
    flags = ("--model-path", str(folder), "--tp-size", "4", *watchdog, *FLAGS)
    with RunningServer(*flags, log=tmp_path / "log") as server:
        server.wait_ready()
        workers = server.workers()

        def stop() -> None:
            time.sleep(0.2)
            os.kill(workers[2], signal.SIGSTOP)

        assert all_streams(server, during=stop) == wanted
        wait_ended(workers)
        assert re.search(
            rf"no progress .*rank \d \(process {workers[2]}\) is stopped", server.text()
        )


def test_a_rank_that_draws_other_tokens_ends_the_engine_with_its_name(
    folder: Path, tmp_path: Path
) -> None:
    told = {"VIVACE_COMPARE_RANKS": "1", "VIVACE_TEST_FAULT": "rank-differs@30"}
    flags = ("--model-path", str(folder), "--tp-size", "2", *FLAGS)
    with RunningServer(*flags, environment=told, log=tmp_path / "log", crashes=1) as server:
        server.wait_ready()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: list(server.stream("/generate", body(1))))
            assert server.process.wait(120) != 0
    assert re.search(r"rank 1 \(process \d+\) has drawn .*row 0", server.text())


def test_heads_that_ranks_cannot_divide_end_the_start(folder: Path, tmp_path: Path) -> None:
    flags = ("--model-path", str(folder), "--tp-size", "3", *FLAGS)
    with RunningServer(*flags, log=tmp_path / "log") as server:
        assert server.process.wait(60) == 2
        assert "--tp-size 3" in server.text()
