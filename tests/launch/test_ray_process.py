"""The process that talks to Ray, with the fake of tests/kit/fake_ray: what it says of nodes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vivace.errors import CANNOT_START
from vivace.supervisor.child import Child, process_command, spawn
from vivace.supervisor.messages import Failure, RayReservation, RaySetup

ROOT = Path(__file__).parents[2]


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    path = f"{ROOT / 'tests/kit/fake_ray'}{os.pathsep}{ROOT}"
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("FAKE_RAY", json.dumps({"127.0.0.2": {"CPU": 1}, "127.0.0.3": {"CPU": 1}}))
    spawned = spawn("ray", process_command)
    yield spawned
    spawned.kill()
    spawned.process.wait()
    spawned.close()


def ray_setup(*words: str, **environment: str) -> RaySetup:
    return RaySetup(
        devices=[1, 1],
        resource="CPU",
        words=list(words),
        environment=environment,
        directory="/",
        dist_init_addr="127.0.0.2:5000",
    )


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        (ray_setup("--nonsense"), "node 1: vivace serve: unknown flag --nonsense"),
        (ray_setup(PYTHONPATH="/"), "node 1 ends as soon as it is started: exit code 1"),
    ],
)
def test_a_node_that_cannot_start_ends_it_with_the_words_of_the_node(
    child: Child, setup: RaySetup, said: str
) -> None:
    child.control.send(setup)
    assert child.control.wait(60) == RayReservation("127.0.0.2:5000")
    failure = child.control.wait(60)
    assert isinstance(failure, Failure)
    assert said in failure.text
    assert child.process.wait(10) == CANNOT_START


def test_it_ends_with_who_started_it(child: Child) -> None:
    child.control.send(ray_setup("--help"))
    child.control.wait(60)
    child.close()
    assert child.process.wait(30) == 0
