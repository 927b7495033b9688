"""Objects of Kubernetes, and parts of pods, that know nothing of deployments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from vivace.deploy.catalogue.hardware import Device
from vivace.deploy.render.resources import NodeShare

RESOURCES = {"npu": "huawei.com/Ascend910", "cuda": "nvidia.com/gpu", "hip": "amd.com/gpu"}
STARTING = 3600
"""seconds a server may take to load"""


class Port(msgspec.Struct, frozen=True):
    name: str
    number: int

    @property
    def of_container(self) -> dict[str, Any]:
        return {"name": self.name, "containerPort": self.number}

    @property
    def of_service(self) -> dict[str, Any]:
        return {"name": self.name, "port": self.number, "targetPort": self.number}


def escape_dollars(text: str) -> str:
    """Kubernetes replaces $(NAME) in arguments and variables, and makes one of two dollars."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def settings_container(settings: str) -> dict[str, Any]:
    """Runs the lines of the preparation that set something of the node."""
    return {
        "name": "node-settings",
        "image": "IMAGE",
        "command": ["bash", "-c"],
        "args": [escape_dollars(settings + "\n")],
        "securityContext": {"privileged": True},
    }


def apart(title: str) -> dict[str, Any]:
    """No two pods of this name on one machine."""
    term = {
        "labelSelector": {"matchLabels": {"app": title}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def resources(share: NodeShare, device: Device | None) -> dict[str, Any]:
    """/dev/shm counts toward memory; the limit leaves room for what nobody counts."""
    memory = f"{share.memory}Gi"
    requests: dict[str, Any] = {"cpu": str(share.cpus), "memory": memory}
    limits: dict[str, Any] = {"memory": f"{2 * share.memory}Gi"}
    if device is not None and share.devices and device.platform in RESOURCES:
        limits[RESOURCES[device.platform]] = share.devices
    return {"requests": requests, "limits": limits}


def probes(port: int) -> dict[str, Any]:
    """An hour to load, half a minute out of the service, five minutes until it is killed."""
    get = {"httpGet": {"path": "/health", "port": port}, "timeoutSeconds": 5}
    return {
        "startupProbe": {**get, "periodSeconds": 10, "failureThreshold": STARTING // 10},
        "readinessProbe": {**get, "periodSeconds": 10, "failureThreshold": 3},
        "livenessProbe": {**get, "periodSeconds": 30, "failureThreshold": 10},
    }


def manifest(version: str, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def simple_deployment(title: str, replicas: int, template: dict[str, Any]) -> dict[str, Any]:
    spec = {
        "replicas": replicas,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": {"app": title}},
        "template": template,
    }
    return manifest("apps/v1", "Deployment", title, spec)


def leader_worker_set(
    title: str, replicas: int, size: int, leader: dict[str, Any], worker: dict[str, Any]
) -> dict[str, Any]:
    group = {
        "size": size,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": leader,
        "workerTemplate": worker,
    }
    spec = {"replicas": replicas, "leaderWorkerTemplate": group}
    return manifest("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", title, spec)


def service(name: str, selector: dict[str, str], ports: Sequence[Port]) -> dict[str, Any]:
    """Headless: what is registered by name, as the bootstrap and the store, is reached at the
    pod's own address."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector,
        "ports": [port.of_service for port in ports],
    }
    return manifest("v1", "Service", name, spec)
