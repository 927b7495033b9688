"""`--use-ray`: a Ray cluster of two machines brings the second node. Runs with the fake of
tests/kit/fake_ray, and with Ray itself where that is installed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
from running_server import RunningServer, find_children, is_alive, wait_ended
from seeded_streams import FLAGS, stream_tokens
from two_nodes import SEEDS, wait_for

from vivace.platforms.cpu.library import LIBRARY

pytestmark = pytest.mark.skipif(not LIBRARY.is_file(), reason="nodes need the native kernels")
KIT = Path(__file__).parents[1] / "kit"
DEVICES = 2
KILLS = 50
TWO_NODES = ("--nnodes", "2", "--use-ray")


@pytest.fixture(scope="module")
def wanted(wanted: dict[int, list[int]]) -> dict[int, list[int]]:
    return {seed: wanted[seed] for seed in SEEDS}


@pytest.fixture(scope="module", params=["fake", "ray"])
def cluster(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The environment of a server on a machine of a cluster; both machines have DEVICES CPUs."""
    if request.param == "fake":
        machines = {host: {"CPU": DEVICES} for host in ("127.0.0.2", "127.0.0.3")}
        yield {"PYTHONPATH": search_path(KIT / "fake_ray"), "FAKE_RAY": json.dumps(machines)}
        return
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    own = {"PYTHONPATH": search_path(), "RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(
        [sys.executable, str(KIT / "ray_cluster.py"), str(DEVICES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **own},
    ) as process:
        assert process.stdin and process.stdout
        yield {**own, "RAY_ADDRESS": process.stdout.readline().strip()}
        process.stdin.close()


def search_path(*folders: Path) -> str:
    """The actors' processes, too, find this tree."""
    found = [*map(str, folders), str(KIT.parents[1]), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, found))


def serve(
    folder: Path, log: Path, cluster: dict[str, str], *flags: str, crashes: int = 10
) -> RunningServer:
    words = "--model-path", str(folder), *FLAGS, *TWO_NODES, *flags
    return RunningServer(*words, log=log, environment=cluster, crashes=crashes)


def find_processes(folder: Path) -> dict[str, list[int]]:
    """Of nodes that Ray has started to serve this model, and their actors."""
    found: dict[str, list[int]] = {"node": [], "actor": []}
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if b"--node-rank" in words and str(folder).encode() in words:
            found["node"].append(int(entry.name))
            found["actor"].append(parent)
    return found


def test_actors_draw_the_tokens_of_one_process_and_are_replaced(
    folder: Path, tmp_path: Path, cluster: dict[str, str], wanted: dict[int, list[int]]
) -> None:
    """tp 2 x pp 2; first the actor is killed, then the node's process in it (with Ray itself), then
    all are told to end: the devices are free again, which the next test needs."""
    kills = {"actor": "its actor has died: ", "node": "killed by SIGKILL"}
    if "FAKE_RAY" in cluster and not os.environ.get("VIVACE_SLOW_TESTS"):
        del kills["node"]
    with serve(folder, tmp_path / "log", cluster, "--tp-size", "2", "--pp-size", "2") as server:
        server.wait_ready()
        for kind, named in kills.items():
            before = find_processes(folder)
            assert len(before["actor"]) == 1
            with ThreadPoolExecutor(len(SEEDS)) as pool:
                answers = {seed: pool.submit(stream_tokens, server, seed) for seed in SEEDS}
                time.sleep(0.2)
                os.kill(before[kind][0], signal.SIGKILL)
                assert {seed: answer.result(120) for seed, answer in answers.items()} == wanted
            assert f"Node 1 has ended: {named}" in server.text()
            wait_ended(before["node"])
        before = find_processes(folder)
        server.signal(signal.SIGTERM)
        assert server.wait(30) == 0
        wait_ended([*before["node"], *(before["actor"])])
    assert "Traceback" not in server.text()
    assert "Ray has reserved 2 CPU on each of 2 machines" in server.text()


def test_engines_that_share_layers_have_ranks_of_both_nodes(
    folder: Path, tmp_path: Path, cluster: dict[str, str], wanted: dict[int, list[int]]
) -> None:
    layout = "--tp-size", "4", "--dp-size", "2", "--enable-dp-attention"
    with serve(folder, tmp_path / "log", cluster, *layout) as server:
        server.wait_ready()
        started = find_processes(folder)
        assert len(started["actor"]) == 1
        with ThreadPoolExecutor(len(SEEDS)) as pool:
            answers = {seed: pool.submit(stream_tokens, server, seed) for seed in SEEDS}
            assert {seed: answer.result(120) for seed, answer in answers.items()} == wanted
        server.signal(signal.SIGTERM)
        assert server.wait(30) == 0
        wait_ended([*started["node"], *started["actor"]])
    assert "Traceback" not in server.text()


@pytest.mark.skipif(not os.environ.get("VIVACE_SLOW_TESTS"), reason="set VIVACE_SLOW_TESTS=1")
@pytest.mark.timeout(3600)
def test_streams_go_on_whoever_is_killed_at_any_moment(
    folder: Path, tmp_path: Path, cluster: dict[str, str], wanted: dict[int, list[int]]
) -> None:
    """Actors, processes of nodes, engines and ranks of both machines; nobody stays behind."""
    chance = random.Random(11)
    layout = ("--tp-size", "2", "--pp-size", "2")
    with serve(folder, tmp_path / "log", cluster, *layout, crashes=1_000_000) as server:
        server.wait_ready()
        for kill in range(KILLS):
            with ThreadPoolExecutor(len(SEEDS)) as pool:
                answers = {seed: pool.submit(stream_tokens, server, seed) for seed in SEEDS}
                time.sleep(chance.uniform(0.05, 0.6))
                nodes = find_processes(folder)
                ranks = [pid for node in nodes["node"] for pid in find_children(node).values()]
                victim = chance.choice([*nodes["actor"], *nodes["node"], *ranks, *server.workers()])
                os.kill(victim, signal.SIGKILL)
                found = {seed: answer.result(200) for seed, answer in answers.items()}
            assert found == wanted, kill
            wait_ended([victim])  # streams may be faster than its end
        left = [pid for kind in find_processes(folder).values() for pid in kind]
        server.signal(signal.SIGTERM)
        assert server.wait(30) == 0
        wait_ended(left)
    assert "Traceback" not in server.text()


def test_without_the_process_that_talks_to_ray_the_server_ends(
    folder: Path, tmp_path: Path, cluster: dict[str, str]
) -> None:
    with serve(folder, tmp_path / "log", cluster, "--tp-size", "2") as server:
        wait_for(server, "Node 1 has joined", 60)
        started = find_processes(folder)
        workers = server.workers()
        os.kill(server.children()["ray"], signal.SIGKILL)
        assert server.wait(30) == 1
        wait_ended([*workers, *started["node"], *started["actor"]])
    assert "the process that talks to Ray died: killed by SIGKILL" in server.text()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--tp-size", "4", "--pp-size", "2"), "4 CPU are needed on each of 2 machines, this one"),
        (("--tp-size", "4", "--nnodes", "4"), "1 CPU are needed on each of 4 machines"),
        (("--tp-size", "4", "--nnodes", "1"), "4 CPU are needed on 127.0.0.2"),
    ],
)
def test_too_few_devices_are_one_line_within_seconds(
    folder: Path, tmp_path: Path, cluster: dict[str, str], flags: tuple[str, ...], said: str
) -> None:
    with serve(folder, tmp_path / "log", cluster, *flags) as server:
        assert server.wait(40) == 2
    (line,) = server.text().splitlines()[-1:]
    assert said in line
    assert "the cluster has 2 on 127.0.0.2, 2 on 127.0.0.3, and 4 of all are free" in line
    assert "Traceback" not in server.text()


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_start_says_how_to_get_it(folder: Path, tmp_path: Path) -> None:
    with serve(folder, tmp_path / "log", {}, "--tp-size", "2") as server:
        assert server.wait(60) == 2
    (line,) = server.text().splitlines()
    assert "pip install ray" in line


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RAY_ADDRESS": "127.0.0.1:1"}, "no Ray cluster answers there: Connection refused"),
        ({"RAY_ADDRESS": "ray://127.0.0.1:10001"}, "must run on a machine of the cluster"),
        ({"RAY_ADDRESS": "127.0.0.1"}, "HOST:PORT"),
        ({}, "no Ray cluster can be joined: Could not find any running Ray instance"),
    ],
)
def test_a_cluster_that_is_not_there_is_one_line(
    folder: Path, tmp_path: Path, environment: dict[str, str], said: str
) -> None:
    environment = {"PYTHONPATH": search_path(KIT / "fake_ray"), **environment}
    with serve(folder, tmp_path / "log", environment, "--tp-size", "2") as server:
        assert server.wait(60) == 2
    (line,) = server.text().splitlines()
    assert said in line
    assert is_alive(server.process.pid) is False
