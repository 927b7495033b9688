"""A Ray cluster in Kubernetes with the job that is the server (KubeRay, ray.io/v1)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vivace.deploy.catalogue.hardware import Device
from vivace.deploy.quoting import command_lines
from vivace.deploy.render.kubernetes_objects import STARTING, Port, escape_dollars, manifest
from vivace.deploy.render.process import Process
from vivace.deploy.render.ray import RESOURCES
from vivace.deploy.render.resources import NodeShare
from vivace.deploy.schema.deployment import DeploymentError

HEAD_OF_CLUSTER = {"ray.io/node-type": "head"}
"""label that KubeRay gives to the pod in which jobs run"""
RETRIES = 5
"""new clusters, one after the other, for a server that ended by itself"""
OF_THE_SERVER = ("command", "args", "startupProbe", "readinessProbe", "livenessProbe")
PORTS = (Port("gcs-server", 6379), Port("dashboard", 8265), Port("client", 10001))
"""of a head, by the names that KubeRay looks for in its service (`DashboardPortName` of its
constants): it adds them itself only to a container that declares no port at all"""
STORE_BYTES = 100_000_000
"""of Ray's object store in /dev/shm: a server has nothing in it"""


def ray_jobs(
    title: str,
    replicas: int,
    process: Process,
    pod: dict[str, Any],
    lines: Sequence[str],
    share: NodeShare,
    device: Device | None,
) -> Iterator[dict[str, Any]]:
    """A job with a cluster of its own for each instance. `pod`: as it would start the server
    itself; `lines`: what its shell does first, here that of every node. Raises DeploymentError
    where a port of the server is one of Ray's."""
    refuse_ports_of_ray(process.role, pod["spec"]["containers"][0]["ports"])
    params = start_params(share, device)
    head = {"rayStartParams": params, "template": head_pod(pod, lines)}
    cluster: dict[str, Any] = {"headGroupSpec": head}
    others = process.nodes - 1
    if others:
        size = {"replicas": others, "minReplicas": others, "maxReplicas": others}
        workers = {"rayStartParams": params, "template": worker_pod(pod, lines)}
        cluster["workerGroupSpecs"] = [{"groupName": "workers", **size, **workers}]
    for number in range(replicas):
        yield ray_job(title if replicas == 1 else f"{title}-{number}", process.words, cluster)


def refuse_ports_of_ray(role: str, ports: Sequence[Mapping[str, Any]]) -> None:
    of_ray = {port.number: port.name for port in PORTS}
    for port in ports:
        number = port["containerPort"]
        if number in of_ray:
            raise DeploymentError(
                f"roles.{role}: the port {number} ({port['name']}) is Ray's own in the same pod "
                f"({of_ray[number]}); give another one"
            )


def ray_job(name: str, words: Sequence[str], cluster: dict[str, Any]) -> dict[str, Any]:
    """The entrypoint runs in the head's pod, which is node 0. (What RayService starts are
    applications of Ray Serve; this server listens by itself.)"""
    spec = {
        # A pod that submits it would be one shell more to quote for.
        "submissionMode": "HTTPMode",
        "entrypoint": command_lines(words, "", shlex.quote) + "\n",
        "backoffLimit": RETRIES,
        "shutdownAfterJobFinishes": True,
        "rayClusterSpec": cluster,
    }
    return manifest("ray.io/v1", "RayJob", name, spec)


def start_params(share: NodeShare, device: Device | None) -> dict[str, str]:
    """Of `ray start`, in words of a shell: the devices that Ray counts on a node."""
    found = {"num-cpus": str(share.cpus), "object-store-memory": str(STORE_BYTES)}
    name = RESOURCES.get(device.platform) if device is not None else None
    if name == "GPU":
        found["num-gpus"] = str(share.devices)
    elif name is not None:
        found["resources"] = shlex.quote(json.dumps({name: share.devices}))
    return found


def head_pod(pod: dict[str, Any], lines: Sequence[str]) -> dict[str, Any]:
    """The job starts when every pod is ready, so no probe before that can ask the server: KubeRay
    has its own for Ray."""
    container = dict(pod["spec"]["containers"][0])
    alive = {"initialDelaySeconds": STARTING, **container["livenessProbe"]}
    ports = [*container["ports"], *(port.of_container for port in PORTS)]
    own = {"ports": ports, "livenessProbe": alive}
    return with_container(pod, {**in_ray(container, lines), **own})


def worker_pod(pod: dict[str, Any], lines: Sequence[str]) -> dict[str, Any]:
    """A machine for an actor. Nobody calls it from outside of the cluster."""
    container = in_ray(pod["spec"]["containers"][0], lines)
    return with_container(pod, {key: container[key] for key in container if key != "ports"})


def in_ray(container: Mapping[str, Any], lines: Sequence[str]) -> dict[str, Any]:
    """KubeRay starts Ray behind `command`; the server is the job's."""
    kept = {key: value for key, value in container.items() if key not in OF_THE_SERVER}
    return kept | ({"command": [escape_dollars("\n".join(lines))]} if lines else {})


def with_container(pod: dict[str, Any], container: dict[str, Any]) -> dict[str, Any]:
    return {**pod, "spec": {**pod["spec"], "containers": [container]}}
