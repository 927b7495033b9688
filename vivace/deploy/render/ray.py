"""Ray: one job for each process, pinned to its node, submitted by one script."""

from __future__ import annotations

import json
import shlex

from vivace.deploy.catalogue.hardware import Device
from vivace.deploy.render.process import Process, list_processes
from vivace.deploy.render.shell import WARNING, render_shell
from vivace.deploy.schema.deployment import Deployment

RESOURCES = {"npu": "NPU", "cuda": "GPU", "hip": "GPU"}
PINNED = 0.001
"""share of a node's own resource that a job takes: it only says where"""


def render_ray(deployment: Deployment, device: Device | None) -> dict[str, str]:
    """submit.sh and the scripts that it hands to Ray as the jobs' working directory."""
    servers = [each for each in list_processes(deployment) if each.kind != "benchmark"]
    lines = ["#!/usr/bin/env bash", f"# {WARNING}", "# RAY_ADDRESS names the cluster."]
    lines.append("set -eu")
    lines.append('cd "$(dirname "$0")"')
    lines += [submit_command(process, device) for process in servers]
    return {**render_shell(deployment), "submit.sh": "\n".join(lines) + "\n"}


def submit_command(process: Process, device: Device | None) -> str:
    resources: dict[str, float] = {}
    if process.host is not None:
        resources[f"node:{process.host}"] = PINNED
    if device is not None and process.kind != "router" and device.platform in RESOURCES:
        resources[RESOURCES[device.platform]] = device.cards_per_node * device.devices_per_card
    words = ["ray", "job", "submit", "--no-wait", "--submission-id", process.name]
    words += ["--working-dir", "."]
    if resources:
        words += ["--entrypoint-resources", json.dumps(resources)]
    return shlex.join([*words, "--", "bash", f"{process.name}.sh"])
