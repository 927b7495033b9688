"""Rendered manifests start exactly the commands of the deployment: containers and jobs are run with
a `vivace` that only says what it was told, and the parser of the server reads that."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from vivace.config.config import Options
from vivace.config.keys import CLUSTER_KEY, OTHERS
from vivace.config.parallelism import requested_sizes
from vivace.config.parsing import parse
from vivace.deploy.load_case import LoadedDeployment, Overrides, build_case
from vivace.deploy.render.compose import render_compose
from vivace.deploy.render.kubernetes import KEY_FILE, render_kubernetes
from vivace.deploy.render.process import list_processes
from vivace.deploy.render.ray import render_ray
from vivace.deploy.render.shell import render_shell
from vivace.deploy.rules.judge import judge
from vivace.deploy.schema.deployment import Deployment
from vivace.deploy.schema.files import parse_deployment

ROOT = Path(__file__).parents[2]
ADDRESS = "tests-server-0.tests-server"
KEY = "0123456789abcdef" * 4
SAYS = """#!{python}
import json, os, sys
with open(os.environ["SAID"], "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
"""


def deployment(nodes: int = 2, **flags: Any) -> Deployment:
    several = {"dist-init-addr": "{first}:5000", "node-rank": "{node}", "nnodes": nodes}
    role = {
        "kind": "mixed",
        "program": "vivace serve",
        "nodes": nodes,
        "hosts": [f"10.0.0.{1 + node}" for node in range(nodes)],
        "flags": {
            "model-path": "/models/toy",
            "tp-size": 4,
            "host": "{host}",
            "port": 30000,
            "served-model-name": 'it\'s "a" $(model)',
            **(several if nodes > 1 else {}),
            **flags,
        },
    }
    return parse_deployment({"name": "tests", "roles": {"server": role}}, "made")


def render(found: Deployment, by: Any) -> dict[str, str]:
    return by(build_case(LoadedDeployment(found, (), "made.yaml"), Overrides()))


def told(folder: Path, command: list[str], **environment: str) -> Options:
    """What a server is told that the command starts."""
    program, said = folder / "bin" / "vivace", folder / "said"
    program.parent.mkdir(exist_ok=True)
    program.write_text(SAYS.format(python=sys.executable))
    program.chmod(0o755)
    said.unlink(missing_ok=True)
    path = f"{program.parent}:{os.environ['PATH']}"
    known = {"PATH": path, "SAID": str(said), **environment}
    subprocess.run(command, cwd=folder, env=known, check=True, timeout=60)
    (line,) = said.read_text().splitlines()
    serve, *words = json.loads(line)
    assert serve == "serve"
    return parse([key_file(folder) if word == KEY_FILE else word for word in words], {})


def key_file(folder: Path) -> str:
    """With the key of all nodes, which only its owner can read"""
    file = folder / "key"
    file.touch(0o600)
    file.write_text(KEY)
    return str(file)


def pods(text: str) -> dict[str, dict[str, Any]]:
    (group,) = (each for each in yaml.safe_load_all(text) if each["kind"] == "LeaderWorkerSet")
    template = group["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 2
    return {name: template[name]["spec"] for name in ("leaderTemplate", "workerTemplate")}


def start_pod(folder: Path, pod: dict[str, Any], rank: int) -> Options:
    """As the kubelet and the controller of groups start it."""
    (container,) = pod["containers"]
    told_by_group = {"LWS_WORKER_INDEX": str(rank), "LWS_LEADER_ADDRESS": ADDRESS}
    environment = {"POD_IP": f"10.1.0.{rank}", **told_by_group}
    command = [word.replace("$$(", "$(") for word in [*container["command"], *container["args"]]]
    return told(folder, command, **environment)


def test_a_group_starts_every_node(tmp_path: Path) -> None:
    found = pods(render(deployment(), render_kubernetes)["kubernetes.yaml"])
    for rank, pod in enumerate(found.values()):
        options = start_pod(tmp_path, pod, rank)
        parallel = options.parallel
        assert (parallel.tp_size, parallel.nnodes, parallel.node_rank) == (4, 2, rank)
        assert parallel.dist_init_addr == f"{ADDRESS}:5000"
        assert options.http.host == f"10.1.0.{rank}"
        assert options.model.served_model_name == 'it\'s "a" $(model)'
        assert requested_sizes(options).nodes == 2


def test_nodes_of_a_group_have_the_key_from_a_secret(tmp_path: Path) -> None:
    own = deployment(**{"cluster-key-file": "/home/me/other"})
    for each in (deployment(), own):
        text = render(each, render_kubernetes)["kubernetes.yaml"]
        assert "kubectl create secret generic cluster-key" in text
        for rank, pod in enumerate(pods(text).values()):
            parallel = start_pod(tmp_path, pod, rank).parallel
            assert parallel.cluster_key is not None and parallel.cluster_key.reveal() == KEY
            volume = next(one for one in pod["volumes"] if one["name"] == "cluster-key")
            assert volume["secret"]["secretName"] == "cluster-key"
            check_key_is_readable(pod, volume["secret"]["defaultMode"])
            (container,) = pod["containers"]
            mount = next(one for one in container["volumeMounts"] if one["name"] == "cluster-key")
            assert KEY_FILE.startswith(mount["mountPath"] + "/") and mount["readOnly"]


def check_key_is_readable(pod: dict[str, Any], mode: int) -> None:
    """By the image's user: files of a secret are root's, and of the group that `fsGroup` says."""
    found = re.search(r"useradd .*--uid (\d+) vivace", (ROOT / "Dockerfile").read_text())
    assert found is not None
    assert pod["securityContext"]["fsGroup"] == int(found[1])
    assert mode & stat.S_IRGRP and not mode & OTHERS


def test_one_node_needs_no_key() -> None:
    text = render(deployment(1), render_kubernetes)["kubernetes.yaml"]
    assert "cluster-key" not in text and "fsGroup" not in text
    assert CLUSTER_KEY not in render(deployment(1), render_compose)["compose.yaml"]


def test_containers_of_a_group_have_the_key() -> None:
    """The file that was given lies in them; without one whoever starts them says the key."""
    for own, variable in ({"cluster-key-file": "/home/me/key"}, False), ({}, True):
        text = render(deployment(**own), render_compose)["compose.yaml"]
        services = yaml.safe_load(text)["services"]
        assert len(services) == 2
        for service in services.values():
            assert ("/home/me/key:/home/me/key:ro" in service["volumes"]) is not variable
            assert service["environment"].get(CLUSTER_KEY, "").startswith("${") is variable


def test_jobs_of_ray_start_every_node(tmp_path: Path) -> None:
    """`ray job submit` hands each script to its node, which runs it."""
    own = deployment(**{"cluster-key-file": key_file(tmp_path)})
    files = render(own, render_ray)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    lines = [
        shlex.split(line) for line in files["submit.sh"].splitlines() if line.startswith("submit ")
    ]
    assert len(lines) == 2
    for rank, words in enumerate(lines):
        command = words[words.index("--") + 1 :]
        resources = json.loads(words[words.index("--entrypoint-resources") + 1])
        host = f"10.0.0.{1 + rank}"
        assert f"node:{host}" in resources
        place_node(tmp_path, host)
        parallel = told(tmp_path, command).parallel
        assert (parallel.nnodes, parallel.node_rank, parallel.tp_size) == (2, rank, 4)
        assert parallel.dist_init_addr == "10.0.0.1:5000"
        assert parallel.cluster_key_file == key_file(tmp_path)


def test_with_use_ray_one_job_starts_the_instance(tmp_path: Path) -> None:
    """Its devices are those of the placement group; Ray starts the other nodes."""
    own = deployment(**{"use-ray": True})
    files = render(own, render_ray)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (line,) = (line for line in files["submit.sh"].splitlines() if line.startswith("submit "))
    words = shlex.split(line)
    resources = json.loads(words[words.index("--entrypoint-resources") + 1])
    assert resources == {"node:10.0.0.1": 0.001}
    place_node(tmp_path, "10.0.0.1")
    parallel = told(tmp_path, words[words.index("--") + 1 :]).parallel
    assert parallel.use_ray and (parallel.nnodes, parallel.node_rank) == (2, 0)
    for by in (render_shell, lambda found: render(found, render_compose)):
        assert len([name for name in by(own) if name.endswith((".sh", "compose.yaml"))]) == 1


@pytest.mark.parametrize("by_ray", [True, False])
def test_the_check_knows_that_ray_starts_the_other_nodes(by_ray: bool) -> None:
    found = deployment(**{"use-ray": by_ray})
    for name in ("dist-init-addr", "node-rank"):
        del found.roles["server"].flags[name]
    case = build_case(LoadedDeployment(found, (), "made.yaml"), Overrides())
    rules = {each.rule for each in judge(case).findings if each.severity == "error"}
    assert ("meeting-point" in rules) == (not by_ray)
    assert not rules & ({"own-checks", "node-ranks"} if by_ray else set())


def place_node(folder: Path, host: str) -> None:
    """The machine is that one, as `hostname -I` says."""
    (folder / "bin").mkdir(exist_ok=True)
    file = folder / "bin" / "hostname"
    file.write_text(f"#!/bin/sh\necho {host}\n")
    file.chmod(0o755)


def test_scripts_and_services_start_the_same_words(tmp_path: Path) -> None:
    own = deployment(**{"cluster-key-file": key_file(tmp_path)})
    for process in list_processes(own):
        place_node(tmp_path, str(process.host))
        for name, text in render_shell(own).items():
            (tmp_path / name).write_text(text)
        found = told(tmp_path, ["bash", f"{process.name}.sh"])
        assert found == parse(process.words[2:], {})
    services = yaml.safe_load(render(own, render_compose)["compose.yaml"])["services"]
    assert len(services) == 2


@pytest.mark.parametrize("flag", ["nonsense", "tensor-paralel-size"])
def test_the_parser_is_the_servers(flag: str, tmp_path: Path) -> None:
    found = deployment()
    found.roles["server"].flags[flag] = 3
    (leader, _) = pods(render(found, render_kubernetes)["kubernetes.yaml"]).values()
    with pytest.raises((SystemExit, ValueError)) as refused:
        start_pod(tmp_path, leader, 0)
    assert flag in str(refused.value) or isinstance(refused.value, SystemExit)
