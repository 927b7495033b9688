"""The process that talks to Ray, with the fake of tests/kit/fake_ray: what it says of nodes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from toy_config import LLAMA

from vivace.config.parsing import parse
from vivace.config.secret import Secret
from vivace.errors import CANNOT_START
from vivace.launch import ray_nodes
from vivace.launch.configure import configure
from vivace.launch.ray_process import actor_devices
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


def test_keys_that_were_typed_do_not_travel(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    words = ["--model-path", str(tmp_path), "--load-format", "dummy", "--skip-tokenizer-init"]
    typed = [*("--api-key", "secret-a", "--admin-api-key=secret-b"), *("--tp-size", "2")]
    config = configure(parse([*words, "--use-ray", *typed], {}))
    setup = ray_nodes.ray_setup(config, ["--use-ray", *typed], Secret("k" * 32))
    assert setup.words == ["--use-ray", "--tp-size", "2"]
    assert "secret" not in str(setup)


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        (ray_setup("--nonsense"), "node 1: vivace serve: unknown flag --nonsense"),
        (ray_setup(PYTHONHOME="/none"), "node 1 ends as soon as it is started: exit code 1"),
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


def test_a_ray_of_another_version_is_one_line(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = "Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.11.7"
    monkeypatch.setenv("FAKE_RAY_REFUSES", refused)
    spawned = spawn("ray", process_command)
    try:
        spawned.control.send(ray_setup())
        failure = spawned.control.wait(60)
        assert isinstance(failure, Failure)
        assert "cluster was started with: Ray: 2.9.0 Python: 3.11.7. This machine" in failure.text
        assert "\n" not in failure.text
    finally:
        spawned.kill()
        spawned.process.wait()


@pytest.mark.parametrize(
    ("resource", "taken"),
    [
        ("CPU", {"num_cpus": 4}),
        ("GPU", {"num_cpus": 0, "num_gpus": 4}),
        ("NPU", {"num_cpus": 0, "resources": {"NPU": 4}}),
    ],
)
def test_an_actor_takes_the_devices_of_its_bundle(resource: str, taken: dict[str, Any]) -> None:
    assert actor_devices(resource, 4) == taken
