"""Ray: one job for each process, pinned to its node, submitted by one script. An instance with
--use-ray is one job: its first node reserves the devices of all and has Ray start the others."""

from __future__ import annotations

import json
import re
import shlex

from vivace.deploy.case import Case
from vivace.deploy.render.process import Process, list_processes
from vivace.deploy.render.shell import WARNING, render_shell

RESOURCES = {"npu": "NPU", "cuda": "GPU", "hip": "GPU"}
OF_JOBS = "RAY_JOB_"
"""variables that Ray reads before the job's script does: in the actor that starts and stops it"""
NO_ID = re.compile(r"[^\w.-]+", re.ASCII)
"""what a submission's identity, which is part of a path, must not have"""
BEGIN = """#!/usr/bin/env bash
# {warning}
# RAY_ADDRESS names the cluster.
set -eu
cd "$(dirname "$0")"

# The first number of a job that the cluster has not had: Ray takes no identity twice.
find_number() {{
    number=1
    while state="$(ray job status "$1-$number" 2>&1)"; do
        case "$state" in
            *"': RUNNING"* | *"': PENDING"*)
                echo "submit.sh: $1-$number is on this cluster: ray job stop $1-$number ends it" >&2
                exit 1 ;;
        esac
        number=$((number + 1))
    done
}}

submit() {{
    find_number "$1"
    job="$1-$number"
    shift
    ray job submit --no-wait --submission-id "$job" "$@"
}}

# Where one still runs none is submitted.
"""
PINNED = 0.001
"""share of a node's own resource that a job takes: it only says where"""


def render_ray(case: Case) -> dict[str, str]:
    """submit.sh and the scripts that it hands to Ray as the jobs' working directory."""
    servers = [each for each in list_processes(case.deployment) if each.kind != "benchmark"]
    lines = [shlex.join(["find_number", job_name(process, case)]) for process in servers]
    lines += [submit_command(process, case) for process in servers]
    text = BEGIN.format(warning=WARNING) + "\n".join(lines) + "\n"
    return {**render_shell(case.deployment), "submit.sh": text}


def job_name(process: Process, case: Case) -> str:
    """Two deployments on one cluster have different ones."""
    named = f"{case.deployment.name}-{process.name}" if case.deployment.name else process.name
    return NO_ID.sub("-", named)


def submit_command(process: Process, case: Case) -> str:
    resources: dict[str, float] = {}
    if process.host is not None:
        resources[f"node:{process.host}"] = PINNED
    name = "" if case.device is None else RESOURCES.get(case.device.platform, "")
    if name and process.kind != "router" and not process.by_ray:
        resources[name] = case.devices_per_node or 0
    words = ["submit", job_name(process, case), "--working-dir", "."]
    if resources:
        words += ["--entrypoint-resources", json.dumps(resources)]
    own = {name: value for name, value in process.environment.items() if name.startswith(OF_JOBS)}
    if own:
        words += ["--runtime-env-json", json.dumps({"env_vars": own})]
    return shlex.join([*words, "--", "bash", f"{process.name}.sh"])
