"""Several engines behind one port, on the oracle: who gets what, and streams that outlive them."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from running_server import RunningServer

from vivace.checkpoint.source import locate
from vivace.engine.oracle import oracle_answer
from vivace.models.facts import read_facts

ORACLE = {"VIVACE_EXECUTOR": "oracle:0.004"}
FLAGS = ("--skip-tokenizer-init", "--random-seed", "1", "--dp-size", "2")
PROMPT = [5, 6, 7, 8]
KILLS = 200 if os.environ.get("VIVACE_SLOW_TESTS") else 4
STREAMS = 8


@pytest.fixture(scope="module")
def vocabulary() -> int:
    return read_facts(locate(None)).vocabulary


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("server") / "log"
    flags = (*FLAGS, "--tokenizer-worker-num", "2")
    with RunningServer(*flags, environment=ORACLE, log=log, crashes=1_000_000) as server:
        yield server.wait_ready()


def body(seed: int, count: int, **more: Any) -> dict[str, Any]:
    sampling = {"max_new_tokens": count, "ignore_eos": True, "sampling_seed": seed}
    return {"input_ids": PROMPT, "sampling_params": sampling, **more}


def expected(seed: int, count: int, vocabulary: int) -> list[int]:
    return oracle_answer(seed, len(PROMPT), count, vocabulary, ignore_eos=True)


def stream(server: RunningServer, seed: int, count: int, **more: Any) -> tuple[list[int], set[int]]:
    """(tokens, engines that they came from)"""
    tokens: list[int] = []
    engines: set[int] = set()
    for event in server.stream("/generate", body(seed, count, **more)):
        assert "error" not in event, event
        assert event["output_ids"][: len(tokens)] == tokens, "what was sent stays"
        tokens = event["output_ids"]
        engines.add(event["meta_info"]["dp_rank"])
    return tokens, engines


def engines(server: RunningServer) -> dict[int, int]:
    """Process of each engine that is up."""
    states = server.json("/server_info")["internal_states"]
    return {state["dp_rank"]: state["pid"] for state in states}


def wait_for_engines(server: RunningServer, count: int = 2) -> dict[int, int]:
    deadline = time.monotonic() + 30
    while len(found := engines(server)) != count:
        assert time.monotonic() < deadline, server.text()
        time.sleep(0.02)
    return found


def test_engines_take_turns(server: RunningServer, vocabulary: int) -> None:
    pids = wait_for_engines(server).values()
    answers = [server.json("/generate", body(seed, 3)) for seed in range(6)]
    assert [a["output_ids"] for a in answers] == [expected(s, 3, vocabulary) for s in range(6)]
    assert {answer["meta_info"]["dp_rank"] for answer in answers} == {0, 1}
    mapped = [Path(f"/proc/{pid}/maps").read_text() for pid in pids]
    assert not any("libtorch" in files for files in mapped), "the oracle starts without it"


@pytest.mark.parametrize("field", ["routed_dp_rank", "data_parallel_rank"])
def test_an_engine_that_is_asked_for(field: str, server: RunningServer) -> None:
    wait_for_engines(server)
    for rank in (0, 1, 1):
        answer = server.json("/generate", body(1, 2, **{field: rank}))
        assert answer["meta_info"]["dp_rank"] == rank
    for rank in (-1, 2, "first"):
        status, answer = server.call("POST", "/generate", body(1, 2, **{field: rank}))
        assert (status, b"dp_rank" in answer or b"data_parallel_rank" in answer) == (400, True)


def test_loads_and_metrics_are_of_each_engine(server: RunningServer) -> None:
    wait_for_engines(server)
    loads = server.json("/v1/loads")
    assert (loads["dp_rank_count"], [one["dp_rank"] for one in loads["loads"]]) == (2, [0, 1])
    assert [one["dp_rank"] for one in server.json("/v1/loads?dp_rank=1")["loads"]] == [1]
    assert server.call("GET", "/v1/loads?dp_rank=2")[0] == 400
    assert server.call("POST", "/flush_cache")[0] == 200


def test_a_killed_engine_is_a_pause_for_its_streams(server: RunningServer, vocabulary: int) -> None:
    """Its streams go on with the other engine, before a new one is there."""
    before = wait_for_engines(server)
    with ThreadPoolExecutor(STREAMS) as pool:
        answers = [pool.submit(stream, server, seed, 400) for seed in range(STREAMS)]
        time.sleep(0.4)
        os.kill(before[0], signal.SIGKILL)
        found = [answer.result(60) for answer in answers]
    assert [tokens for tokens, _ in found] == [
        expected(seed, 400, vocabulary) for seed in range(STREAMS)
    ]
    assert any(len(ranks) == 2 for _, ranks in found), "some have moved"
    assert "Engine 0 died: killed by SIGKILL" in server.text()
    assert wait_for_engines(server)[0] != before[0]


def test_random_kills_lose_nothing(server: RunningServer, vocabulary: int) -> None:
    """A kill comes when both engines are there: a request that was in two fatal steps in a row is
    taken for the cause."""
    chance, stop, wrong, done = random.Random(1), threading.Event(), [], [0]

    def keep_asking(worker: int) -> None:
        seed = worker * 1_000_000
        while not stop.is_set():
            seed, count = seed + 1, random.Random(seed).randint(1, 120)
            tokens, _ = stream(server, seed, count)
            done[0] += 1
            if tokens != expected(seed, count, vocabulary):
                wrong.append((seed, count, tokens))

    with ThreadPoolExecutor(STREAMS) as pool:
        workers = [pool.submit(keep_asking, worker) for worker in range(STREAMS)]
        try:
            for _ in range(KILLS):
                found = wait_for_engines(server)
                time.sleep(chance.uniform(0.6, 1.2))
                os.kill(found[chance.randint(0, 1)], signal.SIGKILL)
                time.sleep(0.05)
            wait_for_engines(server)
        finally:
            stop.set()
        for worker in workers:
            worker.result(60)
    assert not wrong
    assert done[0] > KILLS
    print(f"{KILLS} kills, {done[0]} streams, none wrong")
    assert all(not state["audit"] for state in server.json("/server_info")["internal_states"])


def test_an_engine_that_dies_too_often_leaves_the_others(tmp_path: Path, vocabulary: int) -> None:
    with RunningServer(*FLAGS, environment=ORACLE, log=tmp_path / "log", crashes=1) as server:
        server.wait_ready()
        for _ in range(2):
            os.kill(wait_for_engines(server)[1], signal.SIGKILL)
            time.sleep(0.3)
        server.wait_for("the others go on without it")
        assert list(wait_for_engines(server, 1)) == [0]
        assert server.call("GET", "/health")[0] == 200
        assert stream(server, 3, 20) == (expected(3, 20, vocabulary), {0})
        refuses_the_lost_one(server)
        before = server.children()["frontend"]
        os.kill(before, signal.SIGKILL)
        server.wait_for("The frontend 0 died")
        server.wait_ready()
        assert server.children()["frontend"] != before
        refuses_the_lost_one(server)
        server.signal()
        assert server.wait() == 0


def refuses_the_lost_one(server: RunningServer) -> None:
    status, answer = server.call("POST", "/generate", body(1, 2, routed_dp_rank=1))
    assert (status, b"routed_dp_rank" in answer) == (503, True), answer


def test_a_drain_is_over_when_all_engines_are(tmp_path: Path, vocabulary: int) -> None:
    with RunningServer(*FLAGS, environment=ORACLE, log=tmp_path / "log") as server:
        server.wait_ready()
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(stream, server, seed, 300) for seed in range(4)]
            time.sleep(0.3)
            server.signal()
            found = [answer.result(30)[0] for answer in answers]
        assert found == [expected(seed, 300, vocabulary) for seed in range(4)]
        assert server.wait() == 0


def test_an_engine_that_is_lost_in_a_drain_ends_it(tmp_path: Path) -> None:
    """The other one has drained: nobody is waited for any more."""
    with RunningServer(*FLAGS, environment=ORACLE, log=tmp_path / "log", crashes=1) as server:
        server.wait_ready()
        before = wait_for_engines(server)
        os.kill(before[1], signal.SIGKILL)
        server.wait_for("is back after")
        found = wait_for_engines(server)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(server.call, "POST", "/generate", body(1, 5000, routed_dp_rank=1))
            time.sleep(0.3)
            server.signal()
            server.wait_for("Drained: no running requests")
            os.kill(found[1], signal.SIGKILL)
            started = time.monotonic()
            server.wait()
            assert time.monotonic() - started < 15, server.text()
            assert answer.result(10)[0] == 503


def test_a_request_that_kills_engines_does_not_kill_all(tmp_path: Path, vocabulary: int) -> None:
    """It is refused after it has killed two; the others go on."""
    faults = {**ORACLE, "VIVACE_TEST_FAULT": "engine-kill-token@77"}
    with RunningServer(*FLAGS, environment=faults, log=tmp_path / "log") as server:
        server.wait_ready()
        with ThreadPoolExecutor(5) as pool:
            answers = [pool.submit(stream, server, seed, 400) for seed in range(4)]
            time.sleep(0.3)
            poison = {**body(9, 5), "input_ids": [5, 77, 6]}
            status, answer = server.call("POST", "/generate", poison)
            assert status == 500, answer
            found = [answer.result(60)[0] for answer in answers]
        assert found == [expected(seed, 400, vocabulary) for seed in range(4)]
        assert server.text().count("died: killed by SIGKILL") == 2


@pytest.mark.parametrize(
    "method",
    [
        "total_tokens",
        pytest.param("total_requests", marks=pytest.mark.slow),
        pytest.param("shortest_queue", marks=pytest.mark.slow),
    ],
)
def test_the_lighter_engine_gets_more(method: str, tmp_path: Path) -> None:
    flags = (*FLAGS, "--load-balance-method", method)
    with RunningServer(*flags, environment=ORACLE, log=tmp_path / "log") as server:
        server.wait_ready()
        with ThreadPoolExecutor(8) as pool:
            heavy = [pool.submit(stream, server, seed, 500, routed_dp_rank=0) for seed in range(6)]
            time.sleep(0.3)
            light = [server.json("/generate", body(seed, 2)) for seed in range(5)]
            assert {answer["meta_info"]["dp_rank"] for answer in light} == {1}
            for one in heavy:
                assert one.result(30)[1] == {0}


def test_a_stream_goes_on_on_another_server(server: RunningServer, vocabulary: int) -> None:
    """What a router does whose server has gone: the rest of the answer, and its counts."""
    whole = expected(11, 40, vocabulary)
    for cut in (1, 7, 39, 40):
        answer = server.json("/generate", body(11, 40, resumed=whole[:cut]))
        assert answer["output_ids"] == whole[cut:]
        assert answer["meta_info"]["completion_tokens"] == 40
        assert answer["meta_info"]["finish_reason"]["type"] == "length"


def test_the_summary_says_how_many_engines_there_are(server: RunningServer) -> None:
    assert "2 engines" in server.text()
