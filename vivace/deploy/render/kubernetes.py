"""Kubernetes: a LeaderWorkerSet for instances of several nodes, else a Deployment; services."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import yaml

from vivace.deploy.catalogue.hardware import Device
from vivace.deploy.from_script.flags import find_option
from vivace.deploy.render.process import Process, list_processes
from vivace.deploy.render.shell import WARNING, inline, plain_environment
from vivace.deploy.schema.deployment import Deployment

RESOURCES = {"npu": "huawei.com/Ascend910", "cuda": "nvidia.com/gpu"}
PORT = 30000
SHARED_MEMORY = "16Gi"
GRACE = 180
"""seconds a pod has to finish its requests"""
STARTING = 3600
"""seconds a server may take to load"""


def render_kubernetes(deployment: Deployment, device: Device | None) -> dict[str, str]:
    """One file; {host}, {first} and {node} become what the pod is told."""
    documents = list(objects(deployment, device))
    head = (
        f"# {WARNING}\n# Replace IMAGE, and the claim `models` where the weights lie. Instances of "
        "several nodes need the LeaderWorkerSet\n# controller (sigs.k8s.io/lws).\n"
    )
    return {"kubernetes.yaml": head + yaml.dump_all(documents, sort_keys=False, width=100)}


def objects(deployment: Deployment, device: Device | None) -> Iterator[dict[str, Any]]:
    processes = list(list_processes(deployment))
    moved = addresses(deployment, processes)
    every = [generic(process, moved) for process in processes]
    for name, role in deployment.roles.items():
        mine = [process for process in every if process.role == name]
        leaders = [process for process in mine if process.rank == 0]
        devices = per_node(role.flags, device, role.nodes)
        same = alike(leaders)
        for leader in leaders[:1] if same else leaders:
            title = label(deployment, name if same else leader.name)
            replicas = role.instances if same else 1
            template = pod(deployment, leader, title, device, devices)
            if role.nodes > 1:
                second = next(p for p in mine if p.instance == leader.instance and p.rank == 1)
                worker = pod(deployment, second, title, device, devices)
                yield leader_worker_set(title, replicas, role.nodes, template, worker)
            else:
                yield simple_deployment(title, replicas, template)
            if not same:
                yield headless(title)
        service_name = label(deployment, name)
        yield service(service_name, service_name, find_port(leaders[0]))


def alike(leaders: list[Process]) -> bool:
    first = leaders[0]
    return all(
        (each.words, each.environment) == (first.words, first.environment) for each in leaders
    )


def addresses(deployment: Deployment, processes: list[Process]) -> dict[str, str]:
    """Host of the spec -> name of the service in front of its role, or of its instance where the
    instances differ."""
    found: dict[str, str] = {}
    for name in deployment.roles:
        mine = [process for process in processes if process.role == name]
        leaders = [process for process in mine if process.rank == 0]
        same = alike([generic(leader, {}) for leader in leaders])
        for process in mine:
            leader = leaders[process.instance]
            if process.host is not None:
                found[process.host] = label(deployment, name if same else leader.name)
    return found


def generic(process: Process, moved: dict[str, str]) -> Process:
    """The process with what a pod is told in place of the node's own address and rank."""
    words, waiting = list[str](), ""
    for word in process.words:
        if waiting == "node_rank" and process.nodes > 1:
            words.append("<$LWS_WORKER_INDEX>")
        elif waiting == "host":
            words.append("<$POD_IP>" if process.kind != "router" else "0.0.0.0")
        elif waiting == "dist_init_addr":
            port = word.rpartition(":")[2]
            words.append(f"<$LWS_LEADER_ADDRESS>:{port}")
        else:
            words.append(with_services(word, moved))
        option = find_option(word[2:]) if word.startswith("--") else None
        waiting = "" if option is None else option.name
    environment = {name: with_services(value, moved) for name, value in process.environment.items()}
    return msgspec.structs.replace(process, words=tuple(words), environment=environment, host=None)


def with_services(word: str, moved: dict[str, str]) -> str:
    for host, name in moved.items():
        if host in word and re.search(rf"(^|[/@]){re.escape(host)}(:|/|$)", word):
            return word.replace(host, name)
    return word


def label(deployment: Deployment, name: str) -> str:
    """A DNS label: at most 63 lower-case letters, digits and dashes."""
    text = f"{deployment.name}-{name}" if deployment.name else name
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-") or "vivace"


def per_node(flags: dict[str, Any], device: Device | None, nodes: int) -> int:
    sizes = {option.name: value for flag, value in flags.items() if (option := find_option(flag))}
    ranks = sizes.get("tp_size", 1)
    ranks = ranks if isinstance(ranks, int) else 1
    return 0 if device is None else max(1, -(-ranks // nodes))


def pod(
    deployment: Deployment, process: Process, title: str, device: Device | None, devices: int
) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "engine",
        "image": "IMAGE",
        "command": ["bash", "-c", inline(deployment, process, ("source ", ". "))],
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            *({"name": k, "value": v} for k, v in plain_environment(process).items()),
        ],
        "ports": [{"containerPort": find_port(process)}],
        "volumeMounts": [
            {"name": "shared-memory", "mountPath": "/dev/shm"},
            {"name": "models", "mountPath": "/models", "readOnly": True},
        ],
    }
    if process.rank == 0:
        container |= probes(find_port(process))
    serves = process.kind != "router" and device is not None and device.platform in RESOURCES
    if serves and device is not None:
        container["resources"] = {"limits": {RESOURCES[device.platform]: devices}}
    spec = {
        "terminationGracePeriodSeconds": GRACE,
        "containers": [container],
        "volumes": [
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}},
            {"name": "models", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
        ],
    }
    return {
        "metadata": {"labels": {"app": title, "role": role_label(deployment, process)}},
        "spec": spec,
    }


def role_label(deployment: Deployment, process: Process) -> str:
    return label(deployment, process.role)


def probes(port: int) -> dict[str, Any]:
    get = {"path": "/health", "port": port}
    return {
        "startupProbe": {"httpGet": get, "periodSeconds": 10, "failureThreshold": STARTING // 10},
        "readinessProbe": {"httpGet": get, "periodSeconds": 10},
        "livenessProbe": {"httpGet": get, "periodSeconds": 30, "failureThreshold": 5},
    }


def find_port(process: Process) -> int:
    """What follows --port; PORT where nothing does, or what no port can be (the check says so)."""
    for word, following in pairwise(process.words):
        if word == "--port" and following.isdecimal() and len(following) < 6:
            return int(following) if 0 < int(following) < 1 << 16 else PORT
    return PORT


def simple_deployment(title: str, replicas: int, template: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": title},
        "spec": {
            "replicas": replicas,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app": title}},
            "template": template,
        },
    }


def leader_worker_set(
    title: str, replicas: int, size: int, leader: dict[str, Any], worker: dict[str, Any]
) -> dict[str, Any]:
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": title},
        "spec": {
            "replicas": replicas,
            "leaderWorkerTemplate": {
                "size": size,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": leader,
                "workerTemplate": worker,
            },
        },
    }


def headless(name: str) -> dict[str, Any]:
    """The name of one instance's pods: every port of theirs, bootstrap and KV store included."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"clusterIP": "None", "selector": {"app": name}},
    }


def service(name: str, role: str, port: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"role": role}, "ports": [{"port": port, "targetPort": port}]},
    }
