"""The process that talks to Ray, beside the supervisor: Ray's library has threads, signal handlers
and ends of its own.

It reserves the devices of all nodes, then has an actor on each node behind the first, for as long
as the supervisor lives. What it made belongs to this process: when that ends, however it does, Ray
ends the actors and frees the devices.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import time
from importlib import import_module
from typing import Any

from vivace.config.child_process import describe_exit, leave_signals_to_the_supervisor
from vivace.errors import CANNOT_START, CannotStart, say
from vivace.launch.ray_actor import NodeActor
from vivace.protocol.message_socket import MessageSocket, SocketClosed, wait_for_any
from vivace.supervisor.messages import RayReservation, RaySetup, ToChild

RESERVE_SECONDS = 10.0
"""until Ray has said that devices are ours; those that are free it gives at once"""
TURN_SECONDS = 0.3
"""after which we look who has ended"""
SHORT_LIFE_SECONDS = 5.0
SHORT_LIVES = 3
"""in a row: whoever ends so soon would do so again"""
PINNED = 0.001
"""share of a machine's own resource, which says only: this one"""

log = logging.getLogger(__name__)


def run_ray(control: MessageSocket[ToChild]) -> None:
    """To the end of the supervisor, or until a node cannot start. Raises CannotStart."""
    setup = control.wait()
    if not isinstance(setup, RaySetup):
        raise TypeError(f"the first message is {type(setup).__name__}, not RaySetup")
    gc.enable()
    ray = connect()
    try:
        host = own_host(ray)
        group = reserve(ray, setup, host)
        address = setup.dist_init_addr or free_address(host)
        nodes = RayNodes(ray, group, setup, address)
        control.send(RayReservation(address))
        nodes.watch(control)
        nodes.close()
    finally:
        ray.shutdown()


def connect() -> Any:
    """The module `ray`, connected to the cluster that this machine is a part of."""
    os.chdir("/")  # Ray would have actors import what lies in the working directory
    ray = import_module("ray")
    try:
        ray.init(address="auto", logging_level=logging.WARNING)
    except Exception as error:  # whatever it is: it is about a cluster, and has no common class
        raise CannotStart(
            f"--use-ray: no Ray cluster can be joined: {one_line(error)}. This machine must be a "
            "part of one (`ray start`; RAY_ADDRESS says which), with the same Ray as here "
            f"({ray.__version__})"
        ) from None
    leave_signals_to_the_supervisor()  # Ray has taken SIGTERM
    return ray


def own_host(ray: Any) -> str:
    """The address at which the cluster knows this machine."""
    own = ray.get_runtime_context().get_node_id()
    return next(one["NodeManagerAddress"] for one in ray.nodes() if one["NodeID"] == own)


def reserve(ray: Any, setup: RaySetup, host: str) -> Any:
    """The devices of every node, each on another machine, the first one on this. Raises
    CannotStart."""
    bundles: list[dict[str, float]] = [{setup.resource: count} for count in setup.devices]
    bundles[0][f"node:{host}"] = PINNED
    group = ray.util.placement_group(bundles, strategy="STRICT_SPREAD")
    if not group.wait(RESERVE_SECONDS):
        raise CannotStart(describe_lack(ray, setup, host))
    machines = "this machine"
    if len(bundles) > 1:
        machines = f"each of {len(bundles)} machines"
    log.info("Ray has reserved %d %s on %s", setup.devices[0], setup.resource, machines)
    return group


def describe_lack(ray: Any, setup: RaySetup, host: str) -> str:
    """What there is, and what is needed."""
    count, nodes, resource = setup.devices[0], len(setup.devices), setup.resource
    there = {
        one["NodeManagerAddress"]: round(one["Resources"].get(resource, 0))
        for one in ray.nodes()
        if one["Alive"]
    }
    free = round(ray.available_resources().get(resource, 0))
    machines = f"{nodes} machines, this one ({host}) among them" if nodes > 1 else host
    listed = ", ".join(f"{there[one]} on {one}" for one in sorted(there))
    return (
        f"--use-ray: {count} {resource} are needed on {'each of ' * (nodes > 1)}{machines}; the "
        f"cluster has {listed}, and {free} of all are free (`ray status`). Add machines, end what "
        "has the devices, or divide the ranks otherwise (--nnodes)"
    )


def free_address(host: str) -> str:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.bind((host, 0))
        port = sock.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def one_line(error: BaseException) -> str:
    """What Ray says, without the stacks of other processes."""
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(line for line in lines if line)[:600].rstrip(".") or say(error)


def death_cause(error: BaseException) -> str:
    """Of an actor: which process it was, and Ray's words, without its guesses."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = dict(line.split(": ", 1) for line in lines if line.startswith(("pid: ", "ip: ")))
    where = ", ".join(f"{name} {value}" for name, value in named.items())
    why = (lines or [say(error)])[-1].partition(" Some common causes")[0].rstrip(".")
    return f"{why[:300]} ({where})" if where else why[:300]


def actor_devices(resource: str, count: int) -> dict[str, Any]:
    """All of a bundle, in the words of Ray, which has own ones for two of its resources."""
    if resource == "CPU":
        return {"num_cpus": count}
    if resource == "GPU":
        return {"num_cpus": 0, "num_gpus": count}
    return {"num_cpus": 0, "resources": {resource: count}}


class RayNodes:
    """The nodes behind the first: an actor for each, and what it is doing."""

    def __init__(self, ray: Any, group: Any, setup: RaySetup, address: str) -> None:
        self._ray = ray
        self._group = group
        self._setup = setup
        self._address = address
        self._actors: dict[int, Any] = {}
        self._running: dict[Any, tuple[int, float]] = {}
        """node and time of the start, of what an actor is doing"""
        self._short_lives = dict.fromkeys(range(len(setup.devices)), 0)
        for node in range(1, len(setup.devices)):
            self._start(node)

    def watch(self, control: MessageSocket[ToChild]) -> None:
        """Until the supervisor closes its end. Raises CannotStart when a node does not start."""
        while not is_closed(control, 0.0 if self._running else TURN_SECONDS):
            if self._running:
                ended, _ = self._ray.wait(list(self._running), timeout=TURN_SECONDS)
                for work in ended:
                    self._on_end(work, *self._running.pop(work))

    def close(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._ray.util.remove_placement_group(self._group)

    def _start(self, node: int) -> None:
        actor = self._actors.get(node)
        if actor is None:
            actor = self._actors[node] = self._new_actor(node)
        words = [
            *self._setup.words,
            *("--node-rank", str(node), "--dist-init-addr", self._address),
        ]
        work = actor.run.remote(words, self._setup.environment, self._setup.directory)
        self._running[work] = node, time.monotonic()

    def _new_actor(self, node: int) -> Any:
        taken = actor_devices(self._setup.resource, self._setup.devices[node])
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=node
        )
        options = {**taken, "scheduling_strategy": strategy}
        return self._ray.remote(NodeActor).options(**options).remote()

    def _on_end(self, work: Any, node: int, began: float) -> None:
        try:
            code, said = self._ray.get(work)
        except self._ray.exceptions.RayActorError as error:
            cause = f"its actor has died: {death_cause(error)}"
            with contextlib.suppress(Exception):
                self._ray.kill(self._actors.pop(node))
        except self._ray.exceptions.RayError as error:
            raise CannotStart(f"--use-ray: node {node}: {one_line(error)}") from None
        else:
            cause = describe_exit(code)
            if code == 0:
                return  # node 0 was stopped, and said so
            if code == CANNOT_START:
                raise CannotStart(f"--use-ray: node {node}: {said[-1] if said else cause}")
        self._replace(node, began, cause)

    def _replace(self, node: int, began: float, cause: str) -> None:
        short = time.monotonic() - began < SHORT_LIFE_SECONDS
        self._short_lives[node] = self._short_lives[node] + 1 if short else 0
        if self._short_lives[node] >= SHORT_LIVES:
            raise CannotStart(f"--use-ray: node {node} ends as soon as it is started: {cause}")
        log.error("Node %d has ended: %s. Ray starts it again", node, cause)
        self._start(node)


def is_closed(control: MessageSocket[ToChild], timeout: float) -> bool:
    if not wait_for_any([control], timeout):
        return False
    try:
        control.receive()
    except SocketClosed:
        return True
    return False
