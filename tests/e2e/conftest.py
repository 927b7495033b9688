"""What several files of servers compare with: the streams of one process. A file that is about
another model has fixtures of its own with these names."""

from __future__ import annotations

from pathlib import Path

import pytest
from running_server import RunningServer
from seeded_streams import FLAGS, SEEDS, stream_tokens
from served_toy import write_toy_llama
from shared_results import shared_result


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a Llama of two layers."""
    return write_toy_llama(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="session")
def wanted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[int]]:
    """What a server of one process draws with it for each seed."""

    def draw(place: Path) -> list[list[int]]:
        with RunningServer("--model-path", str(folder), *FLAGS, log=place / "log") as server:
            server.wait_ready()
            return [stream_tokens(server, seed) for seed in SEEDS]

    return dict(enumerate(shared_result(tmp_path_factory, "toy-streams", draw)))
