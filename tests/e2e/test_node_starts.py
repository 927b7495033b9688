"""Servers of several ranks, on one node or two, that are disturbed while they start, and whom the
watchdog names."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running_server import RunningServer, find_children, wait_ended
from safetensors.torch import load_file, save_file
from seeded_streams import FLAGS, TOKENS, stream_tokens
from served_toy import write_toy_llama
from toy_models import DEEPSEEK, make
from two_nodes import ENGINES, Nodes, find_rank, list_ranks, wait_for

from vivace.platforms.cpu.library import LIBRARY

pytestmark = pytest.mark.skipif(not LIBRARY.is_file(), reason="nodes need the native kernels")
WATCHED = ("--watchdog-timeout", "3")
SLOW_RANK = "rank-start@60"
SLOW = pytest.mark.skipif(not os.environ.get("VIVACE_SLOW_TESTS"), reason="set VIVACE_SLOW_TESTS=1")


@pytest.fixture
def nodes(folder: Path, tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(folder, tmp_path)
    yield made
    made.close()


def wait_until(found: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_who_stops_node_0_while_it_starts_stops_all(nodes: Nodes) -> None:
    first, second = nodes.start(0, fault=SLOW_RANK), nodes.start(1)
    wait_until(lambda: list_ranks(second))
    ranks = list_ranks(second)
    first.signal(signal.SIGTERM)
    assert first.wait(20) == 128 + signal.SIGTERM
    assert second.wait(10) == 0
    wait_ended(ranks)
    assert "Node 0 was stopped, and so is this node" in second.text()
    assert "Traceback" not in first.text() + second.text()


def test_a_node_that_ends_while_the_server_starts_may_come_back(nodes: Nodes) -> None:
    """And when engines die too often all nodes hear that none follows."""
    first, third = replace_node(nodes)
    os.kill(first.children()["engine"], signal.SIGKILL)
    assert (first.wait(20), third.wait(10)) == (1, 1)
    for node in (first, third):
        assert "That is more than 1 deaths in 10 minutes" in node.text()
        assert "Traceback" not in node.text()


def test_a_warm_up_that_fails_ends_all_nodes_with_why(tmp_path: Path) -> None:
    """Its engine lives, and is told what the server ends of."""
    logs = tmp_path / "logs"
    logs.mkdir()
    nodes = Nodes(write_poisoned_llama(tmp_path / "toy"), logs)
    try:
        first, second = nodes.start(0), nodes.start(1)
        assert first.wait(60) == second.wait(20) != 0
        for node in (first, second):
            assert "the warm-up request failed" in node.text().splitlines()[-1]
            assert "Traceback" not in node.text()
    finally:
        nodes.close()


def write_poisoned_llama(folder: Path) -> Path:
    """Its logits are no numbers."""
    weights = write_toy_llama(folder) / "model.safetensors"
    tensors = load_file(weights)
    tensors["model.norm.weight"].fill_(math.nan)
    save_file(tensors, weights, {"format": "pt"})
    return folder


@SLOW
def test_a_node_of_engines_that_share_layers_may_come_back(tmp_path: Path) -> None:
    """One engine has no ranks there; both start again."""
    make("DeepseekV3", tmp_path / "toy", **DEEPSEEK)
    (tmp_path / "logs").mkdir()
    with contextlib.closing(Nodes(tmp_path / "toy", tmp_path / "logs", ENGINES)) as nodes:
        for node in replace_node(nodes):
            assert "Traceback" not in node.text()


def replace_node(nodes: Nodes) -> tuple[RunningServer, RunningServer]:
    """Node 1 is stopped while the server starts; what serves in the end."""
    first, second = nodes.start(0, fault="rank-start@5", crashes=1), nodes.start(1)
    wait_until(lambda: list_ranks(second))
    second.signal(signal.SIGTERM)
    assert second.wait(10) == 128 + signal.SIGTERM
    wait_for(first, "node 1 (127.0.0.1): was stopped: SIGTERM (exit code 1). Restarting it", 20)
    third = nodes.start(1)
    first.wait_ready()
    assert len(stream_tokens(first, 1)) == TOKENS
    return first, third


@SLOW
def test_a_rank_of_another_node_that_stands_in_the_start_is_named(nodes: Nodes) -> None:
    """First it is only slow; then somebody has stopped it, which ends the start."""
    first, second = nodes.start(0, *WATCHED, fault=SLOW_RANK), nodes.start(1, *WATCHED)
    stands = r"rank 1 \(node 1, process (\d+)\) does not come where others wait"
    wait_until(lambda: re.search(stands, first.text()))
    (rank,) = list_ranks(second)
    named = f"rank 1 (node 1, process {rank})"
    assert named in first.text()
    os.kill(rank, signal.SIGSTOP)
    wait_for(first, f"{named} is stopped, and all other ranks wait for it", 5)
    assert first.wait(20) == 1
    assert second.wait(20) == 1
    ended = rf"it has not got on with its start for \d+ s .*: {re.escape(named)} is stopped"
    assert re.search(ended, first.text()) and re.search(ended, second.text())
    wait_ended([rank])


def test_a_rank_that_is_stopped_before_it_is_there_is_named(folder: Path, tmp_path: Path) -> None:
    flags = ("--model-path", str(folder), "--tp-size", "2", *WATCHED, *FLAGS)
    with RunningServer(*flags, log=tmp_path / "log") as server:
        wait_until(lambda: "engine" in server.children())
        engine = server.children()["engine"]
        wait_until(lambda: "rank" in find_children(engine))
        rank = find_children(engine)["rank"]
        os.kill(rank, signal.SIGSTOP)
        wait_for(server, "is stopped, and all others wait for it", 5)
        assert server.wait(20) == 1
        assert "did not start: it has not got on" in server.text()
        assert "is stopped" in server.text().splitlines()[-1]
        wait_ended([rank])


@SLOW
def test_whom_node_0_waits_for_is_named(folder: Path, tmp_path: Path) -> None:
    """A stage of another node: stopped in the middle of a step, then without an answer to one. The
    engine, which waits for its result, is not to blame."""
    nodes = Nodes(folder, tmp_path, ("--pp-size", "2", *WATCHED))
    try:
        first, second = nodes.start(0, fault="rank-hang@1000"), nodes.start(1)
        first.wait_ready()
        threading.Thread(target=keep_busy, args=(first,), daemon=True).start()
        for life, what in enumerate(("is stopped", "does not come where others wait"), 1):
            wait_for(second, "All ranks are ready", 60, life)
            rank = find_rank(second)
            if what == "is stopped":
                time.sleep(0.3)
                os.kill(rank, signal.SIGSTOP)
            named = rf"no progress for \d+ s: rank 1 \(node 1, process {rank}\) {what}"
            wait_until(lambda named=named: re.search(named, first.text()))
            wait_ended([rank])
        assert "engine (process" not in first.text()
    finally:
        nodes.close()


def keep_busy(server: RunningServer) -> None:
    """Until it ends."""
    with contextlib.suppress(OSError, AssertionError):
        while True:
            stream_tokens(server, 1)
