"""Several nodes of one server, each with its own `vivace serve`: the tokens of one process, whoever
joins, leaves, or only wants to look."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from running_server import RunningServer, find_children, is_alive
from seeded_streams import FLAGS, TOKENS, all_streams, stream_tokens
from served_toy import write_toy_llama
from toy_models import DEEPSEEK, make
from two_nodes import ENGINES, SEEDS, STAGES, Nodes, find_rank, list_ranks, wait_for

from vivace.platforms.cpu.library import LIBRARY

pytestmark = pytest.mark.skipif(not LIBRARY.is_file(), reason="nodes need the native kernels")


@pytest.fixture(scope="module")
def wanted(wanted: dict[int, list[int]]) -> dict[int, list[int]]:
    return {seed: wanted[seed] for seed in SEEDS}


@pytest.fixture
def nodes(folder: Path, tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(folder, tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def pair(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningServer, RunningServer]]:
    """Both nodes of a server that is ready."""
    made = Nodes(folder, tmp_path_factory.mktemp("pair"))
    second = made.start(1)
    first = made.start(0)
    first.wait_ready()
    yield first, second
    made.close()


def test_two_nodes_draw_the_tokens_of_one(
    pair: tuple[RunningServer, RunningServer], wanted: dict[int, list[int]]
) -> None:
    first, second = pair
    assert all_streams(first, SEEDS) == wanted
    state = first.json("/server_info")["internal_states"][0]
    assert [worker.get("rank", 0) for worker in state["workers"]] == [0, 1]
    assert state["workers"][1]["pid"] == find_rank(second)
    assert "Node 0 (of 2 nodes) has rank 0; it waits at 127.0.0.2" in first.text()
    assert "Node 1 (of 2 nodes) has rank 1; it joins node 0 at 127.0.0.2" in second.text()
    assert "All ranks are ready" in second.text()


@pytest.mark.parametrize(
    "victim", ["rank of node 1", pytest.param("engine of node 0", marks=pytest.mark.slow)]
)
def test_a_death_is_named_on_both_nodes_and_streams_go_on(
    pair: tuple[RunningServer, RunningServer], wanted: dict[int, list[int]], victim: str
) -> None:
    first, second = pair
    named = {
        "rank of node 1": (r"rank 1 (node 1, process {}): killed by SIGKILL",) * 2,
        "engine of node 0": ("killed by SIGKILL", "its engine has ended"),
    }[victim]
    killed = 0

    def kill() -> None:
        nonlocal killed
        time.sleep(0.3)
        killed = find_rank(second) if "rank" in victim else first.children()["engine"]
        os.kill(killed, signal.SIGKILL)

    ready = second.text().count("All ranks are ready")
    assert all_streams(first, SEEDS, kill) == wanted
    assert named[0].format(killed) in first.text()
    assert named[1].format(killed) in second.text()
    assert not is_alive(killed)
    assert "Traceback" not in first.text() + second.text()
    wait_for(second, "All ranks are ready", 60, ready + 1)


@contextlib.contextmanager
def stopped(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def test_a_rank_or_node_process_that_is_stopped_is_named_within_seconds(
    pair: tuple[RunningServer, RunningServer],
) -> None:
    first, second = pair
    back = first.text().count("The engine is back")
    rank = find_rank(second)
    with stopped(rank):
        wait_for(first, f"rank 1 (node 1, process {rank}) is stopped", 5)
    with stopped(second.process.pid):
        assert wait_for(first, "its process has said nothing for 4 s", 15) < 7
    wait_for(first, "The engine is back", 60, back + 1)


def test_who_stops_node_0_stops_all(pair: tuple[RunningServer, RunningServer]) -> None:
    """The last one of the pair."""
    first, second = pair
    rank = find_rank(second)
    first.signal(signal.SIGTERM)
    assert second.wait(20) == 0
    assert first.wait(20) == 0
    assert "Node 0 was stopped" in second.text()
    assert not is_alive(rank)


def test_a_node_that_is_killed_is_named_and_another_one_takes_its_place(
    nodes: Nodes, wanted: dict[int, list[int]]
) -> None:
    first, second = nodes.start(0), nodes.start(1)
    first.wait_ready()
    rank = find_rank(second)
    third: list[RunningServer] = []

    def replace() -> None:
        time.sleep(0.3)
        second.process.kill()
        assert wait_for(first, "node 1 (127.0.0.1): the connection was closed") < 5
        third.append(nodes.start(1))

    assert all_streams(first, SEEDS, replace) == wanted
    assert not is_alive(rank)
    third[0].signal(signal.SIGTERM)
    assert third[0].wait(10) == 128 + signal.SIGTERM
    wait_for(first, "node 1 (127.0.0.1): was stopped: SIGTERM", 5)
    first.signal(signal.SIGTERM)
    assert first.wait(30) == 0


@pytest.mark.parametrize(
    "layout", [pytest.param(("--tp-size", "4"), marks=pytest.mark.slow), STAGES]
)
def test_four_ranks_on_two_nodes(
    folder: Path, tmp_path: Path, wanted: dict[int, list[int]], layout: tuple[str, ...]
) -> None:
    """Two on each; of those beside the engine one dies, which both nodes hear."""
    nodes = Nodes(folder, tmp_path, layout)
    try:
        first, second = nodes.start(0), nodes.start(1)
        first.wait_ready()
        assert "ranks 0, 1;" in first.text()
        assert "ranks 2, 3;" in second.text()
        rank = find_children(first.children()["engine"])["rank"]

        def kill() -> None:
            time.sleep(0.3)
            os.kill(rank, signal.SIGKILL)

        assert all_streams(first, SEEDS, kill) == wanted
        for node in (first, second):
            wait_for(node, f"rank 1 (process {rank}): killed by SIGKILL", 5)
    finally:
        nodes.close()


def test_engines_of_two_nodes_share_experts(tmp_path: Path) -> None:
    """Each node has an engine's ranks, experts are everywhere, tokens travel, experts move; a rank
    of node 1 dies, which all engines live through."""
    folder = tmp_path / "toy"
    make("DeepseekV3", folder, **DEEPSEEK)
    with RunningServer("--model-path", str(folder), *FLAGS, log=tmp_path / "alone") as server:
        server.wait_ready()
        wanted = {seed: stream_tokens(server, seed) for seed in SEEDS}
    (tmp_path / "logs").mkdir()
    with contextlib.closing(Nodes(folder, tmp_path / "logs", ENGINES)) as nodes:
        first, second = nodes.start(0), nodes.start(1)
        first.wait_ready()
        assert "Node 0 (of 2 nodes) has ranks 0, 1;" in first.text()
        assert "Node 1 (of 2 nodes) has ranks 2, 3;" in second.text()
        for engine in (0, 1):  # also while the other one has nothing to do
            assert stream_tokens(first, 1, routed_dp_rank=engine) == wanted[1]
        workers = first.json("/server_info")["internal_states"][1]["workers"]
        rank = workers[1]["pid"]
        assert {one["pid"] for one in workers} == list_ranks(second)

        def kill() -> None:
            time.sleep(0.3)
            os.kill(rank, signal.SIGKILL)

        ready = second.text().count("All ranks are ready")
        assert all_streams(first, SEEDS, kill) == wanted
        for node in (first, second):
            wait_for(node, f"rank 3 (node 1, process {rank}): killed by SIGKILL", 5)
        wait_for(second, "All ranks are ready", 60, ready + 1)
        assert "experts of" in first.text() and "cuda graph: True" in first.text()
        assert "Traceback" not in first.text() + second.text()
        first.signal(signal.SIGTERM)
        assert second.wait(30) == first.wait(30) == 0


def test_who_does_not_belong_is_refused_in_one_line(nodes: Nodes, tmp_path: Path) -> None:
    """With another key, other flags, another model, a rank that is taken; then the right one."""
    first = nodes.start(0)
    wait_for(first, "it waits at", 60)
    host, port = nodes.address.split(":")
    strangers = [socket.create_connection((host, int(port))) for _ in range(100)]
    strangers[0].sendall(os.urandom(4096))
    strangers[1].sendall(b"GET / HTTP/1.1\r\n\r\n")
    wrong_key = nodes.start(1, key="k" * 40)
    assert wrong_key.wait(30) == 2
    assert "has another key" in wrong_key.text()
    other_flags = nodes.start(1, "--page-size", "32", "--dtype", "bfloat16")
    assert other_flags.wait(30) == 2
    assert "--page-size: 32 on node 1, unset on node 0" in other_flags.text()
    assert '--dtype: "bfloat16" on node 1' in other_flags.text()
    (tmp_path / "other").mkdir()
    other = write_toy_llama(tmp_path / "other", layers=3)
    other_model = nodes.start(1, "--model-path", str(other))
    assert other_model.wait(30) == 2
    assert "config.json, model.safetensors differ" in other_model.text()
    second = nodes.start(1)
    first.wait_ready()
    for stranger in strangers:
        stranger.close()
    twice = nodes.start(1)
    assert twice.wait(30) == 2
    assert "node 1 has joined already" in twice.text()
    assert len(stream_tokens(first, 1)) == TOKENS
    for node in (wrong_key, other_flags, other_model, twice):
        assert "Traceback" not in node.text()
    assert second.process.poll() is None


def test_a_node_that_does_not_come_is_named(nodes: Nodes) -> None:
    first = nodes.start(0, "--dist-timeout", "2")
    assert first.wait(60) == 1
    assert "node 1 did not join within 2 s (--dist-timeout); nobody has called" in first.text()


def test_who_has_joined_ends_with_a_server_that_does_not_start(nodes: Nodes) -> None:
    four = "--tp-size", "4", "--nnodes", "4"
    second = nodes.start(1, *four)
    wait_for(second, "it joins node 0", 60)
    first = nodes.start(0, *four, "--dist-timeout", "4")
    assert (first.wait(60), second.wait(10)) == (1, 1)
    for node in (first, second):
        assert "nodes 2, 3 did not join within 4 s" in node.text()


def test_a_first_node_that_does_not_answer_is_named(nodes: Nodes) -> None:
    second = nodes.start(1, "--dist-timeout", "2")
    assert second.wait(30) == 1
    assert "Connection refused" in second.text()
    assert "--dist-timeout" in second.text()


def test_a_port_in_use_is_one_line(nodes: Nodes) -> None:
    host, port = nodes.address.split(":")
    with socket.create_server((host, int(port))):
        first = nodes.start(0)
        assert first.wait(60) == 2
    assert f"--dist-init-addr {nodes.address}: node 0 cannot listen there" in first.text()


def run(*words: str) -> bool:
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.fixture
def machines() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a cable between them: names, 10.77.0.1 and 10.77.0.2."""
    names = f"vva{os.getpid()}", f"vvb{os.getpid()}"
    made = all(run("ip", "netns", "add", name) for name in names)
    try:
        if not made or not run(
            *("ip", "link", "add", "cable", "netns", names[0], "type", "veth"),
            *("peer", "name", "cable", "netns", names[1]),
        ):
            pytest.skip("network namespaces cannot be made here")
        for number, name in enumerate(names, 1):
            within = ("ip", "-n", name)
            assert run(*within, "addr", "add", f"10.77.0.{number}/24", "dev", "cable")
            assert run(*within, "link", "set", "cable", "up")
            assert run(*within, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            run("ip", "netns", "del", name)


def test_a_cable_that_is_pulled_is_noticed_on_both_sides_within_seconds(
    folder: Path, tmp_path: Path, machines: tuple[str, str]
) -> None:
    """And the server serves again when it is back."""
    with contextlib.closing(Nodes(folder, tmp_path, STAGES)) as nodes:
        pull_the_cable(nodes, machines)


def pull_the_cable(nodes: Nodes, machines: tuple[str, str]) -> None:
    nodes.address = "10.77.0.1:5000"
    first, second = (
        nodes.start(rank, through=("ip", "netns", "exec", name))
        for rank, name in enumerate(machines)
    )
    first.wait_ready()
    pulled = time.monotonic()
    assert run("ip", "-n", machines[1], "link", "set", "cable", "down")
    wait_for(first, "node 1 (10.77.0.2): ", 15)
    wait_for(second, "node 0: ", 15)
    assert time.monotonic() - pulled < 5.5  # with what it takes to read the logs
    said = first.text() + second.text()  # the neighbor may be forgotten before the connection
    assert "Connection timed out" in said or "No route to host" in said
    assert run("ip", "-n", machines[1], "link", "set", "cable", "up")
    wait_for(first, "The engine is back", 60)
