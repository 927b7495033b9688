"""A compose file: one service for each process, chosen on each node by its profile."""

from __future__ import annotations

import re
from typing import Any

import yaml

from vivace.deploy.catalogue.hardware import Device
from vivace.deploy.render.process import Process, list_processes
from vivace.deploy.render.shell import WARNING, inline, plain_environment
from vivace.deploy.schema.deployment import Deployment

IMAGE = "${IMAGE:?the container image that has the engine}"
SHARED_MEMORY = "16g"
ASCEND_DEVICES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
ASCEND_VOLUMES = (
    "/usr/local/Ascend/driver:/usr/local/Ascend/driver:ro",
    "/usr/local/dcmi:/usr/local/dcmi:ro",
    "/usr/local/bin/npu-smi:/usr/local/bin/npu-smi:ro",
)
INHERITED = ("source ", ". ")
"""lines of the preparation that also a container needs; the rest is for the node itself"""


def render_compose(deployment: Deployment, device: Device | None) -> dict[str, str]:
    services = {
        process.name: service(deployment, process, device) for process in list_processes(deployment)
    }
    content = {"services": services}
    text = yaml.dump(content, sort_keys=False, width=100, allow_unicode=True)
    usage = (
        "docker compose --profile HOST up: what runs on that node; the model's folder is ${MODELS}."
    )
    return {"compose.yaml": f"# {WARNING}\n# {usage}\n{text}"}


def service(deployment: Deployment, process: Process, device: Device | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "image": IMAGE,
        "profiles": [profile(process)],
        "network_mode": "host",
        "ipc": "host",
        "shm_size": SHARED_MEMORY,
        "restart": "no" if process.kind == "benchmark" else "on-failure:5",
        "stop_grace_period": "3m",
        "environment": {name: escape(value) for name, value in plain_environment(process).items()},
        "entrypoint": ["bash", "-c"],
        "command": [escape(inline(deployment, process, INHERITED))],
        "volumes": ["${MODELS:-/models}:${MODELS:-/models}:ro"],
    }
    if process.kind in ("router", "benchmark") or device is None:
        return found
    return found | accelerators(device)


def accelerators(device: Device) -> dict[str, Any]:
    if device.platform == "cuda":
        request = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        return {"deploy": {"resources": {"reservations": {"devices": [request]}}}}
    if device.platform != "npu":
        return {}
    count = device.cards_per_node * device.devices_per_card
    nodes = [*ASCEND_DEVICES, *(f"/dev/davinci{index}" for index in range(count))]
    volumes = ["${MODELS:-/models}:${MODELS:-/models}:ro", *ASCEND_VOLUMES]
    return {"privileged": True, "devices": [f"{node}:{node}" for node in nodes], "volumes": volumes}


def profile(process: Process) -> str:
    """The node's address in the letters that a profile may have."""
    name = re.sub(r"[^a-zA-Z0-9_.-]+", "-", process.host or process.role).strip("-.")
    return name or process.role


def escape(text: str) -> str:
    """Compose expands dollar signs."""
    return text.replace("$", "$$")
