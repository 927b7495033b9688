"""What of Ray this project uses, on one machine: `PYTHONPATH=tests/kit/fake_ray`.

FAKE_RAY has the cluster as JSON, address -> devices by name; this process runs on the first one.
Actors are processes (`python -m ray MODULE CLASS`) that hear calls as lines of JSON, so what is
passed to them must be plain data. tests/e2e/test_ray.py runs the same tests with Ray itself where
that is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_futures
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from vivace.config.child_process import die_with

__version__ = "0.0.fake"
machines: dict[str, dict[str, float]] = {}
taken: list[dict[str, float]] = []
"""bundles of placement groups"""


class RayError(Exception): ...


class RayActorError(RayError): ...


class RayTaskError(RayError): ...


exceptions = SimpleNamespace(RayError=RayError, RayActorError=RayActorError)


def init(*, address: str, logging_level: int) -> None:
    if address != "auto" or "FAKE_RAY" not in os.environ:
        raise ConnectionError("Could not find any running Ray instance.")
    if os.environ.get("RAY_COLOR_PREFIX") != "0":
        raise RuntimeError("lines of actors would have colors")
    if refused := os.environ.get("FAKE_RAY_REFUSES"):
        raise RuntimeError(refused)
    machines.update(json.loads(os.environ["FAKE_RAY"]))


def shutdown() -> None:
    for actor in list(ActorHandle.living):
        kill(actor)


def get_runtime_context() -> Any:
    return SimpleNamespace(get_node_id=lambda: f"id of {next(iter(machines))}")


def nodes() -> list[dict[str, Any]]:
    return [
        {"NodeID": f"id of {host}", "NodeManagerAddress": host, "Alive": True, "Resources": devices}
        for host, devices in machines.items()
    ]


def available_resources() -> dict[str, float]:
    left: dict[str, float] = {}
    for devices in machines.values():
        for name, count in devices.items():
            left[name] = left.get(name, 0) + count
    for bundle in taken:
        for name, count in bundle.items():
            left[name] = left.get(name, 0) - count
    return left


class PlacementGroup:
    def __init__(self, bundles: list[dict[str, float]], *, strategy: str) -> None:
        assert strategy == "STRICT_SPREAD"
        self.bundles = bundles

    def wait(self, timeout: float) -> bool:
        """Each bundle is on another machine."""
        if not fits(self.bundles, list(machines)):
            time.sleep(min(timeout, 1.0))
            return False
        taken.extend(self.bundles)
        return True


def fits(bundles: list[dict[str, float]], hosts: list[str]) -> bool:
    if not bundles:
        return True
    first, *others = bundles
    return any(
        all(
            machines[host].get(name, 1.0 if name == f"node:{host}" else 0.0) >= count
            for name, count in first.items()
        )
        and fits(others, [one for one in hosts if one != host])
        for host in hosts
    )


def remove_placement_group(group: PlacementGroup) -> None:
    for bundle in group.bundles:
        taken.remove(bundle)


class PlacementGroupSchedulingStrategy:
    def __init__(self, group: PlacementGroup, *, placement_group_bundle_index: int) -> None:
        self.bundle = group.bundles[placement_group_bundle_index]


util = SimpleNamespace(
    placement_group=PlacementGroup,
    remove_placement_group=remove_placement_group,
    scheduling_strategies=SimpleNamespace(
        PlacementGroupSchedulingStrategy=PlacementGroupSchedulingStrategy
    ),
)


class ActorHandle:
    """A process; each method is a call of one in it."""

    living: list[ActorHandle] = []

    def __init__(self, cls: type, options: dict[str, Any]) -> None:
        assert options["num_cpus"] == options["scheduling_strategy"].bundle["CPU"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ray", cls.__module__, cls.__qualname__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.turn = ThreadPoolExecutor(1)
        ActorHandle.living.append(self)

    def __getattr__(self, method: str) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda *words: self.turn.submit(self.call, method, words))

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        try:
            assert self.process.stdin and self.process.stdout
            self.process.stdin.write(json.dumps([method, arguments]).encode() + b"\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = b""
        if not line:
            raise RayActorError(
                "The actor died unexpectedly before finishing this task.\n"
                f"\tpid: {self.process.pid}\n\tip: fake\n"
                "The actor is dead because its worker process has died."
            )
        answer = json.loads(line)
        if "error" in answer:
            raise RayTaskError(answer["error"])
        return answer["value"]


class ActorClass:
    def __init__(self, cls: type, options: dict[str, Any]) -> None:
        self.cls, self.chosen = cls, options

    def options(self, **options: Any) -> ActorClass:
        return ActorClass(self.cls, options)

    def remote(self) -> ActorHandle:
        return ActorHandle(self.cls, self.chosen)


def remote(cls: type) -> ActorClass:
    return ActorClass(cls, {})


def wait(refs: list[Future[Any]], *, timeout: float) -> tuple[list[Any], list[Any]]:
    done = wait_futures(refs, timeout, "FIRST_COMPLETED").done
    first = [ref for ref in refs if ref in done][:1]  # as Ray: num_returns is 1
    return first, [ref for ref in refs if ref not in first]


def get(ref: Future[Any]) -> Any:
    return ref.result()


def kill(actor: ActorHandle) -> None:
    actor.process.kill()
    actor.process.wait()
    ActorHandle.living.remove(actor)


def be_actor(module: str, name: str) -> None:
    die_with(os.getppid())  # as Ray ends the actors of a driver that has gone
    instance = getattr(import_module(module), name)()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the actor prints, Ray shows where the driver runs
    for line in sys.stdin:
        method, arguments = json.loads(line)
        try:
            answer = {"value": getattr(instance, method)(*arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    be_actor(*sys.argv[1:])
