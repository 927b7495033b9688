"""A compose file: one service for each process, chosen on each node by its profile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from vivace.config.keys import CLUSTER_KEY
from vivace.deploy.case import Case
from vivace.deploy.quoting import quote
from vivace.deploy.render.blocks import dump_yaml
from vivace.deploy.render.process import Process, list_processes, needs_key
from vivace.deploy.render.resources import (
    AMD_DEVICES,
    ASCEND_DEVICES,
    ASCEND_FILES,
    NodeShare,
    node_shares,
)
from vivace.deploy.render.shell import WARNING, inline, node_settings, plain_environment

IMAGE = "${IMAGE:?the container image that has the engine}"
MODELS = "${MODELS:-/models}:${MODELS:-/models}:ro"
SETTINGS = "node-settings"
KEY = f"${{{CLUSTER_KEY}:?the key of all nodes, as `openssl rand -hex 32` makes one}}"
HEAD = f"""# {WARNING}
# docker compose --profile HOST up: what runs on that node; the model's folder is ${{MODELS}}.
# docker compose run benchmark-0: a benchmark.
"""
KEYED = """# The user of the image (1000 in vivace's) has to own the file with the key of all nodes.
"""


def render_compose(case: Case) -> dict[str, str]:
    deployment = case.deployment
    shares, processes = node_shares(case), list(list_processes(deployment))
    services: dict[str, Any] = {}
    settings = node_settings(deployment)
    if settings:
        servers = (process for process in processes if process.kind not in ("router", "benchmark"))
        services[SETTINGS] = setter(settings, servers)
    for process in processes:
        share = shares.get(process.role, NodeShare())
        services[process.name] = service(case, process, share)
    keyed = KEYED if any(map(key_file, processes)) else ""
    return {"compose.yaml": HEAD + keyed + dump_yaml([{"services": services}])}


def setter(settings: str, servers: Iterator[Process]) -> dict[str, Any]:
    """Runs the lines of the preparation that set something of the node, once."""
    return {
        "image": IMAGE,
        "profiles": list(dict.fromkeys(profile(process) for process in servers)),
        "network_mode": "host",
        "privileged": True,
        "restart": "no",
        "entrypoint": ["bash", "-c"],
        "command": [escape(settings + "\n")],
    }


def service(case: Case, process: Process, share: NodeShare) -> dict[str, Any]:
    deployment = case.deployment
    found: dict[str, Any] = {"image": IMAGE, "profiles": [profile(process)]}
    if process.host is not None:
        found["x-host"] = process.host
    serves = process.kind not in ("router", "benchmark")
    if serves and node_settings(deployment):
        found["depends_on"] = {SETTINGS: {"condition": "service_completed_successfully"}}
    found |= {
        "network_mode": "host",
        "shm_size": f"{share.shared}gb",
        "ulimits": {"memlock": -1, "nofile": 1048576},
        "restart": "no" if process.kind == "benchmark" else "on-failure:5",
        "stop_grace_period": "3m",
        "environment": {name: escape(value) for name, value in plain_environment(process).items()},
        "entrypoint": ["bash", "-c"],
        "command": [escape(inline(deployment, process) + "\n")],
        "volumes": [MODELS],
    }
    if process.kind != "benchmark" and process.rank == 0:
        found["healthcheck"] = healthcheck(process)
    if serves and case.device is not None:
        found |= accelerators(case)
    return with_key(process, found) if needs_key(process) else found


def with_key(process: Process, found: dict[str, Any]) -> dict[str, Any]:
    """The file with the key of all nodes, where one was given; else whoever starts it says it."""
    if file := key_file(process):
        return found | {"volumes": [*found["volumes"], escape(f"{file}:{file}:ro")]}
    return found | {"environment": {CLUSTER_KEY: KEY, **found["environment"]}}


def key_file(process: Process) -> str | None:
    return process.value("cluster_key_file") if needs_key(process) else None


def healthcheck(process: Process) -> dict[str, Any]:
    """An hour to load; then five minutes without an answer are one too many."""
    host = process.value("host") or "127.0.0.1"
    host = quote("127.0.0.1" if host == "0.0.0.0" else host)
    ask = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)"
    test = f"python3 -c {quote(ask)} http://{host}:{process.port}/health"
    return {
        "test": ["CMD", "bash", "-c", escape(test)],
        "start_period": "60m",
        "interval": "30s",
        "timeout": "10s",
        "retries": 10,
    }


def accelerators(case: Case) -> dict[str, Any]:
    """All devices of a node."""
    if case.platform == "cuda":
        request = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        return {"deploy": {"resources": {"reservations": {"devices": [request]}}}}
    if case.platform == "hip":
        return {"devices": list(AMD_DEVICES), "group_add": ["video", "render"]}
    if case.platform != "npu":
        return {}
    count = case.devices_per_node or 0
    nodes = [*ASCEND_DEVICES, *(f"/dev/davinci{index}" for index in range(count))]
    volumes = [MODELS, *(f"{path}:{path}:ro" for path in ASCEND_FILES.values())]
    return {"privileged": True, "devices": [f"{node}:{node}" for node in nodes], "volumes": volumes}


def profile(process: Process) -> str:
    """The node's address in the letters that a profile may have."""
    name = re.sub(r"[^a-zA-Z0-9_.-]+", "-", process.host or process.role).strip("-.")
    return name or process.role


def escape(text: str) -> str:
    """Compose expands dollar signs."""
    return text.replace("$", "$$")
