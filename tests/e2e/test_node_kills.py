"""Whoever of two nodes is killed, at any moment: streams go on with the tokens of one process, and
nobody stays behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from running_server import RunningServer, wait_ended
from seeded_streams import ask_server, stream_tokens
from toy_models import DEEPSEEK, make
from two_nodes import ENGINES, SEEDS, STAGES, Nodes, list_ranks

from vivace.platforms.cpu.library import LIBRARY

pytestmark = [
    pytest.mark.skipif(not LIBRARY.is_file(), reason="nodes need the native kernels"),
    pytest.mark.skipif(not os.environ.get("VIVACE_SLOW_TESTS"), reason="set VIVACE_SLOW_TESTS=1"),
]
KILLS = int(os.environ.get("VIVACE_KILLS", "70"))
"""of each layout"""
LAYOUTS = {
    "tp 2": ("--tp-size", "2"),
    "tp 2, pp 2": STAGES,
    "tp 4, dp 2, deepep": ENGINES,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    make("DeepseekV3", folder, **DEEPSEEK)
    return folder


@pytest.fixture(scope="module")
def wanted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    log = tmp_path_factory.mktemp("alone") / "log"
    return ask_server(folder, log, lambda server: [stream_tokens(server, seed) for seed in SEEDS])


@pytest.fixture
def nodes(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Iterator[Nodes]:
    (tmp_path / "logs").mkdir()
    made = Nodes(folder, tmp_path / "logs", LAYOUTS[request.param])
    yield made
    made.close()


def processes(first: RunningServer, second: RunningServer) -> list[int]:
    """Engines, ranks of both nodes (those that are there yet), and the process of node 1."""
    return [*first.workers(), *list_ranks(second), second.process.pid]


@pytest.mark.timeout(120 + 60 * KILLS)
@pytest.mark.parametrize("nodes", LAYOUTS, indirect=True)
def test_streams_go_on_whoever_is_killed(nodes: Nodes, wanted: list[list[int]]) -> None:
    chance, seen = random.Random(11), set[int]()
    first, second = nodes.start(0, crashes=1_000_000), nodes.start(1)
    first.wait_ready()
    for kill in range(KILLS):
        with ThreadPoolExecutor(len(SEEDS)) as pool:
            answers = [pool.submit(stream_tokens, first, seed) for seed in SEEDS]
            time.sleep(chance.choice((chance.uniform(0.0, 0.5), chance.uniform(0.0, 3.0))))
            victims = processes(first, second)
            victim = chance.choice(victims)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
            if victim == second.process.pid:
                assert second.wait(5) == -signal.SIGKILL
                second = nodes.start(1)
            assert [answer.result(200) for answer in answers] == wanted, kill
        wait_ended([victim])
        seen.update(victims)
    first.signal(signal.SIGTERM)
    assert (first.wait(30), second.wait(30)) == (0, 0)
    wait_ended(seen)
    assert "Traceback" not in first.text() + second.text()
