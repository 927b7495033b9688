"""A role with --use-ray in Kubernetes: what is written for KubeRay is what its operator takes, its
entrypoint is the command, and it is read back as what it starts."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from test_import import deployments, started
from test_started_commands import deployment, key_file, render, told

from vivace.deploy.from_script.script import import_scripts
from vivace.deploy.load_case import LoadedDeployment, Overrides, build_case
from vivace.deploy.render.kubernetes import KEY_FILE, Manifests, render_kubernetes
from vivace.deploy.render.process import Process, list_processes
from vivace.deploy.render.shell import render_shell
from vivace.deploy.rules.judge import judge
from vivace.deploy.schema.deployment import Deployment, DeploymentError, Hardware

TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 1}
PARAMS = {
    "type": "object",
    "propertyNames": {"enum": ["num-cpus", "num-gpus", "resources", "object-store-memory"]},
    "additionalProperties": TEXT,
}
POD = {"type": "object", "required": ["spec"], "propertyNames": {"enum": ["metadata", "spec"]}}


def strict(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    properties = {**required, **(optional or {})}
    return {
        "type": "object",
        "required": list(required),
        "properties": properties,
        "additionalProperties": False,
    }


WORKERS = strict(
    {
        "groupName": {"type": "string", "pattern": "^[a-z][-a-z0-9]*$"},
        "replicas": COUNT,
        "minReplicas": COUNT,
        "maxReplicas": COUNT,
        "rayStartParams": PARAMS,
        "template": POD,
    }
)
CLUSTER = strict(
    {"headGroupSpec": strict({"rayStartParams": PARAMS, "template": POD})},
    {"workerGroupSpecs": {"type": "array", "items": WORKERS}},
)
JOB = strict(
    {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayJob"},
        "metadata": strict(
            {"name": {"type": "string", "maxLength": 47, "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}}
        ),
        "spec": strict(
            {
                "submissionMode": {"enum": ["K8sJobMode", "HTTPMode"]},
                "entrypoint": TEXT,
                "backoffLimit": {"type": "integer", "minimum": 0},
                "shutdownAfterJobFinishes": {"type": "boolean"},
                "rayClusterSpec": CLUSTER,
            }
        ),
    }
)
"""the fields of rayjob_types.go and raycluster_types.go that are used, and what the operator's
validation says of names (ray-project/kuberay, v1)"""


def by_ray(nodes: int = 2, instances: int = 1, **flags: Any) -> Deployment:
    found = deployment(nodes, **{"use-ray": True, **flags})
    role = found.roles["server"]
    for name in ("dist-init-addr", "node-rank"):
        role.flags.pop(name, None)
    role.instances = instances
    role.hosts = [f"10.0.0.{1 + index}" for index in range(nodes * instances)]
    found.prepare = ["source /opt/set_env.sh", "sysctl -w vm.swappiness=0"]
    found.unset = ["https_proxy"]
    found.environment = {"PATH": "<$PATH>:/opt/it's", "WORD": "a$(POD_IP)$$b"}
    return found


def manifests(found: Deployment) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(render(found, render_kubernetes)["kubernetes.yaml"]))


def jobs(found: Deployment) -> list[dict[str, Any]]:
    return [each for each in manifests(found) if each["kind"] == "RayJob"]


def pod_templates(job: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", [])]
    return [group["template"] for group in groups]


@pytest.mark.parametrize("title", ["Tests & Co.", "3 nodes", "", "x" * 200])
@pytest.mark.parametrize(("nodes", "instances"), [(1, 1), (2, 1), (4, 3)])
def test_jobs_are_what_the_operator_takes(title: str, nodes: int, instances: int) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validate = pytest.importorskip("kubernetes_validate")
    found = by_ray(nodes, instances)
    found.name = title
    made = jobs(found)
    assert len({job["metadata"]["name"] for job in made}) == instances
    for job in made:
        jsonschema.validate(job, JOB)
        workers = job["spec"]["rayClusterSpec"].get("workerGroupSpecs", [])
        assert sum(group["replicas"] for group in workers) == nodes - 1
        for template in pod_templates(job):
            metadata = {"name": "x", **template["metadata"]}
            pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata}
            validate.validate(pod, "1.31", strict=True)


def test_the_entrypoint_is_the_command(tmp_path: Path) -> None:
    """Ray hands it to sh, in an environment that begins as the container's command says."""
    (job,) = jobs(by_ray())
    for template in pod_templates(job):
        (container,) = template["spec"]["containers"]
        (first,) = container["command"]
        first = first.replace("source /opt/set_env.sh", "export FROM_FILE=1").replace("$$(", "$(")
        entrypoint = shlex.quote(job["spec"]["entrypoint"])
        seen = 'test "$FROM_FILE$https_proxy${PATH##*:}" = "1/opt/it\'s"'
        command = ["bash", "-c", f"{first} && {seen} && sh -c {entrypoint}"]
        options = told(tmp_path, command, POD_IP="10.1.0.9", https_proxy="x")
        parallel = options.parallel
        assert parallel.use_ray and parallel.dist_init_addr is None
        assert (parallel.tp_size, parallel.nnodes, parallel.node_rank) == (4, 2, 0)
        assert parallel.cluster_key_file is None
        assert options.http.host == "10.1.0.9"
        assert options.model.served_model_name == 'it\'s "a" $(model)'
        assert {"name": "WORD", "value": "a$$(POD_IP)$$$b"} in container["env"]


def test_what_is_named_lies_on_every_node(tmp_path: Path) -> None:
    own = {"cluster-key-file": key_file(tmp_path), "dist-init-addr": "{first}:5000"}
    (job,) = jobs(by_ray())
    assert "cluster-key" not in str(job)
    found = by_ray()
    found.roles["server"].flags |= own
    (job,) = jobs(found)
    assert f"--cluster-key-file {KEY_FILE}" in " ".join(job["spec"]["entrypoint"].split())
    assert '--dist-init-addr "$POD_IP":5000' in job["spec"]["entrypoint"]
    for template in pod_templates(job):
        assert "cluster-key" in {each["name"] for each in template["spec"]["volumes"]}


@pytest.mark.parametrize(
    ("device", "resource", "params"),
    [
        ("atlas-800i-a3", "huawei.com/Ascend910", {"resources": """'{"NPU": 2}'"""}),
        ("h200", "nvidia.com/gpu", {"num-gpus": "2"}),
        (None, None, {}),
    ],
)
def test_ray_counts_the_devices_of_a_pod(
    device: str | None, resource: str | None, params: dict[str, str]
) -> None:
    found = by_ray()
    found.hardware = Hardware(device=device, cards=8) if device else None
    (job,) = jobs(found)
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        limits = container["resources"]["limits"]
        assert {name: limits[name] for name in limits if name != "memory"} == (
            {resource: 2} if resource else {}
        )
        always = {"num-cpus": container["resources"]["requests"]["cpu"]}
        store = {"object-store-memory": group["rayStartParams"]["object-store-memory"]}
        assert group["rayStartParams"] == {**always, **store, **params}
        assert int(always["num-cpus"]) >= 2, "ranks of a CPU are CPUs"


@pytest.mark.parametrize(
    "flags", [{"port": 8265}, {"dist-init-addr": "{first}:6379"}], ids=["port", "address"]
)
def test_a_port_that_ray_has_is_refused(flags: dict[str, Any]) -> None:
    found = by_ray()
    found.roles["server"].flags |= flags
    with pytest.raises(DeploymentError, match=r"dashboard|gcs"):
        manifests(found)


def test_requests_reach_the_first_node(tmp_path: Path) -> None:
    """No probe asks the server before the job starts, which is when all pods are ready."""
    found = manifests(by_ray(instances=2))
    (service,) = (each for each in found if each["kind"] == "Service")
    heads = [pod_templates(each) for each in found if each["kind"] == "RayJob"]
    assert len(heads) == 2
    for head, workers in heads:
        labels = {**head["metadata"]["labels"], "ray.io/node-type": "head"}
        assert service["spec"]["selector"] == labels
        (container,) = head["spec"]["containers"]
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        of_ray = {"gcs-server": 6379, "dashboard": 8265, "client": 10001}
        assert ports == {"http": 30000, **of_ray}, "KubeRay finds the dashboard by its name"
        probe = container["livenessProbe"]
        assert (probe["initialDelaySeconds"], probe["httpGet"]["port"]) == (3600, 30000)
        for name in ("startupProbe", "readinessProbe"):
            assert name not in container
        assert not [key for key in workers["spec"]["containers"][0] if "Probe" in key]


@pytest.mark.parametrize(("device", "on_nodes"), [("h200", True), (None, False)])
def test_ports_of_ray_are_on_a_network_of_pods_where_they_can(
    device: str | None, on_nodes: bool
) -> None:
    """They have no authentication; RDMA needs the node's own interfaces."""
    found = by_ray()
    found.engine = "vivace"
    found.hardware = Hardware(device=device, cards=8) if device else None
    (job,) = jobs(found)
    for template in pod_templates(job):
        assert ("hostNetwork" in template["spec"]) == on_nodes


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("nodes", [1, 2])
def test_it_is_read_as_what_it_starts(nodes: int, instances: int) -> None:
    found = by_ray(nodes, instances)
    text = render(found, render_kubernetes)["kubernetes.yaml"]
    loaded = import_scripts([("kubernetes.yaml", text)])
    again = loaded.deployment
    (role,) = again.roles.values()
    assert (role.instances, role.nodes, again.unset) == (instances, nodes, found.unset)
    assert sorted(again.prepare) == sorted(found.prepare)
    own = {**found.roles["server"].flags, "host": "<POD_IP>"}
    assert role.flags == own
    assert again.environment == {**found.environment, "POD_IP": "<POD_IP>"}
    assert not loaded.remarks
    case = build_case(loaded, Overrides(target="vivace"))
    assert not [each for each in judge(case).findings if each.severity == "error"]


def test_scripts_of_first_nodes_are_instances() -> None:
    found = by_ray(nodes=3, instances=2, **{"tp-size": 6})
    again = import_scripts(sorted(render_shell(found).items())).deployment
    (role,) = again.roles.values()
    assert (role.instances, role.nodes) == (2, 3)
    assert role.hosts == ["10.0.0.1", "10.0.0.4"]
    assert [each.words for each in list_processes(again)] == [
        each.words for each in list_processes(found)
    ]
    assert [each.host for each in list_processes(again)] == role.hosts
    case = build_case(LoadedDeployment(again, (), "made.yaml"), Overrides(target="vivace"))
    assert not [each for each in judge(case).findings if each.severity == "error"]


def test_a_job_of_somebody_else_is_read() -> None:
    """On a cluster that is there, and with a head of its own."""
    entrypoint = (
        "python -m sglang.launch_server --model-path /models/x --tp 16 --nnodes 2 --use-ray"
    )
    spec: dict[str, Any] = {"entrypoint": entrypoint, "clusterSelector": {"ray.io/cluster": "a"}}
    job = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "x"}, "spec": spec}
    container = {"name": "ray-head", "image": "rayproject/ray:2.9.0", "command": ["echo hello"]}
    head = {"rayStartParams": {}, "template": {"spec": {"containers": [container]}}}
    for own in ({}, {"rayClusterSpec": {"headGroupSpec": head}}):
        text = yaml.safe_dump({**job, "spec": {**spec, **own}})
        (role,) = import_scripts([("job.yaml", text)]).deployment.roles.values()
        assert (role.nodes, role.flags["tp"], role.flags["use-ray"]) == (2, 16, True)


@st.composite
def deployments_by_ray(draw: st.DrawFn) -> Deployment:
    """Those of test_import, in which Ray starts the other nodes."""
    found = draw(deployments())
    for role in found.roles.values():
        for name in ("node-rank", "dist-init-addr"):
            role.flags.pop(name, None)
        role.flags["use-ray"] = True
        role.hosts, role.each = role.hosts[:: role.nodes], role.each[:: role.nodes]
    return found


@settings(max_examples=10, deadline=None)
@given(deployments_by_ray())
def test_any_are_read_as_what_they_start(deployment: Deployment) -> None:
    again = import_scripts(sorted(render_shell(deployment).items())).deployment
    assert started(again) == started(deployment)
    assert sorted((role.kind, role.instances, role.nodes) for role in again.roles.values()) == (
        sorted((role.kind, role.instances, role.nodes) for role in deployment.roles.values())
    )
    case = build_case(LoadedDeployment(deployment, (), "made.yaml"), Overrides())
    text = render_kubernetes(case)["kubernetes.yaml"]
    in_pods = import_scripts([("kubernetes.yaml", text)]).deployment
    assert run_words(list_processes(in_pods)) == run_words(Manifests(case).processes)


def run_words(processes: Iterable[Process]) -> list[tuple[Any, ...]]:
    """What runs, with a pod's address unknown, as it is to who reads a manifest."""
    own = "<POD_IP>"
    return sorted(
        (
            tuple(word.replace("<$POD_IP>", own) for word in each.words),
            tuple(sorted({**each.environment, "POD_IP": own}.items())),
        )
        for each in processes
    )
