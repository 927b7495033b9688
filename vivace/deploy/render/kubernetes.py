"""Kubernetes: a LeaderWorkerSet for instances of several nodes, a Ray cluster for those that use
one, else a Deployment; services."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from vivace.deploy.case import Case
from vivace.deploy.from_script.flags import find_option
from vivace.deploy.processes import BOOTSTRAP, VISIBLE
from vivace.deploy.render.blocks import dump_yaml
from vivace.deploy.render.kuberay import HEAD_OF_CLUSTER, ray_jobs
from vivace.deploy.render.kubernetes_objects import (
    Port,
    apart,
    escape_dollars,
    leader_worker_set,
    manifest,
    probes,
    resources,
    service,
    settings_container,
    simple_deployment,
)
from vivace.deploy.render.process import Process, list_processes, needs_key, port_number
from vivace.deploy.render.resources import ASCEND_FILES, NodeShare, node_shares, on_cpus
from vivace.deploy.render.shell import (
    WARNING,
    inline,
    node_settings,
    plain_environment,
    shell_lines,
)
from vivace.deploy.schema.deployment import Deployment

STORE = "ASCEND_MF_STORE_URL"
OWN = ("127.0.0.1", "localhost", "0.0.0.0")
LONGEST = 43
"""letters of a name: KubeRay takes 47, with the number of an instance behind it"""
GRACE = 180
"""seconds a pod has to finish its requests"""
HEAD = f"""# {WARNING}
# Replace IMAGE, and the claim `models` where the weights lie. Instances of several nodes need the
# LeaderWorkerSet controller (sigs.k8s.io/lws), those with --use-ray the operator KubeRay, and Ray
# in the image: whoever reaches Ray's ports (6379, 8265, 10001) runs code, so let nobody reach them.
# CPUs and memory are per rank: adapt them.
# Benchmarks are jobs that wait: kubectl patch job NAME -p '{{"spec": {{"suspend": false}}}}'
"""
KEYED = """# Nodes of an instance know each other by a key of yours:
# kubectl create secret generic {name} --from-literal={name}="$(openssl rand -hex 32)"
"""
KEY_NAME = "cluster-key"
"""of the secret, its only entry, and the volume"""
KEY_FOLDER = "/etc/vivace"
KEY_FILE = f"{KEY_FOLDER}/{KEY_NAME}"
GROUP = 1000
"""of the user of vivace's image (Dockerfile), who cannot read what of a secret is root's alone"""


class PodGroup(msgspec.Struct, frozen=True):
    """How the pods of an instance are told apart: its first one by labels that a controller sets,
    `rank` and `first` (node's address) by what it tells them, where there are several."""

    first_pod: dict[str, str] = {}
    rank: str = ""
    first: str = ""


ALONE = PodGroup()
LWS = PodGroup(
    {"leaderworkerset.sigs.k8s.io/worker-index": "0"},
    "<$LWS_WORKER_INDEX>",
    "<$LWS_LEADER_ADDRESS>",
)
RAY = PodGroup(HEAD_OF_CLUSTER, "0", "<$POD_IP>")


def render_kubernetes(case: Case) -> dict[str, str]:
    """One file; {host}, {first} and {node} become what the pod is told."""
    made = Manifests(case)
    keyed = KEYED.format(name=KEY_NAME) if any(map(needs_key, made.processes)) else ""
    return {"kubernetes.yaml": HEAD + keyed + dump_yaml(made.objects())}


class Manifests:
    """The objects of one deployment."""

    def __init__(self, case: Case) -> None:
        self.deployment, self.device = case.deployment, case.device
        self.shares, self.on_cpus = node_shares(case), on_cpus(case)
        self.machine = case.devices_per_node
        """devices of one; None: nobody says it"""
        found = list(list_processes(case.deployment))
        self.separate = any(process.kind == "router" for process in found)
        self.stores = {store_host(process.environment.get(STORE, "")) for process in found}
        self.moved = self.addresses(found)
        self.entry = self.entry_service(found)
        self.store_hosts = {
            each.name for each in found if each.host is not None and each.host in self.stores
        }
        self.processes = [generic(process, self.moved, self.entry) for process in found]

    def addresses(self, processes: Sequence[Process]) -> dict[str, str]:
        """Host of the deployment -> name of the service in front of its instance; of servers that
        share a host, the first. Without hosts, all share one: loopback addresses with ports."""
        found: dict[str, str] = {}
        for name, role in self.deployment.roles.items():
            mine = [process for process in processes if process.role == name]
            leaders = [process for process in mine if process.rank == 0]
            whole = self.one_set([generic(leader, {}, "") for leader in leaders])
            for process in mine:
                title = self.title(leaders[process.instance], whole)
                if process.host is not None:
                    found.setdefault(process.host, service_name(title, role.nodes))
                    continue
                to = f"{service_name(title, role.nodes)}:{process.port}"
                for own in OWN:
                    found.setdefault(f"{own}:{process.port}", to)
        return found

    def entry_service(self, processes: Sequence[Process]) -> str:
        """Where requests go: to the router, or to the servers."""
        for kind in ("router", "mixed", "decode"):
            found = next((process for process in processes if process.kind == kind), None)
            if found is not None:
                whole = len([each for each in processes if each.role == found.role]) == 1
                return service_name(self.title(found, whole or found.kind != "router"), found.nodes)
        return ""

    def one_set(self, leaders: Sequence[Process]) -> bool:
        """Whether the instances of a role can be replicas of one object: alike, and nobody has to
        reach one of them rather than another."""
        first = leaders[0]
        same = all((p.words, p.environment) == (first.words, first.environment) for p in leaders)
        return len(leaders) == 1 or (same and not self.separate)

    def title(self, leader: Process, whole: bool) -> str:
        return label(self.deployment, leader.role if whole else leader.name)

    def objects(self) -> Iterator[dict[str, Any]]:
        for name, role in self.deployment.roles.items():
            mine = [process for process in self.processes if process.role == name]
            leaders = [process for process in mine if process.rank == 0]
            whole = self.one_set(leaders)
            for leader in leaders[:1] if whole else leaders:
                members = [process for process in mine if process.instance == leader.instance]
                title, replicas = self.title(leader, whole), role.instances if whole else 1
                yield from self.workloads(title, replicas, members)
                selector = {"app": title, **pod_group(leader).first_pod}
                yield service(service_name(title, role.nodes), selector, self.ports(leader))
        for process in self.processes:
            if process.kind == "benchmark":
                yield self.job(process)

    def workloads(
        self, title: str, replicas: int, members: Sequence[Process]
    ) -> Iterator[dict[str, Any]]:
        first = members[0]
        leader = self.pod(first, title)
        if first.by_ray:
            lines = shell_lines(self.deployment, first)
            share = self.shares.get(first.role, NodeShare())
            yield from ray_jobs(title, replicas, first, leader, lines, share, self.device)
        elif len(members) == 1:
            yield simple_deployment(title, replicas, leader)
        else:
            worker = self.pod(members[1], title)
            yield leader_worker_set(title, replicas, len(members), leader, worker)

    def ports(self, process: Process) -> list[Port]:
        """Where the process listens: requests, and what other servers ask for."""
        found = [Port("http", process.port)]
        if process.kind == "prefill":
            number = port_number(process.value("disaggregation_bootstrap_port")) or BOOTSTRAP
            found.append(Port("bootstrap", number))
        address = process.value("dist_init_addr")
        rendezvous = port_number((address or "").rpartition(":")[2])
        if rendezvous is not None and process.rank == 0 and process.nodes > 1:
            found.append(Port("rendezvous", rendezvous))
        store = port_number(process.environment.get(STORE, "").rpartition(":")[2])
        if store is not None and process.name in self.store_hosts:
            found.append(Port("store", store))
        numbers: dict[int, Port] = {}
        for each in found:
            numbers.setdefault(each.number, each)
        return list(numbers.values())

    def pod(self, process: Process, title: str) -> dict[str, Any]:
        share = self.shares.get(process.role, NodeShare())
        serves = process.kind not in ("router", "benchmark")
        ascend = serves and self.device is not None and self.device.platform == "npu"
        container = self.container(process, share)
        if ascend:
            container["securityContext"] = {"privileged": True}
        volumes: list[dict[str, Any]] = [
            {
                "name": "shared-memory",
                "emptyDir": {"medium": "Memory", "sizeLimit": f"{share.shared}Gi"},
            },
            {"name": "models", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
        ]
        if ascend:
            for name, path in ASCEND_FILES.items():
                volumes.append({"name": name, "hostPath": {"path": path}})
                mount = {"name": name, "mountPath": path, "readOnly": True}
                container["volumeMounts"].append(mount)
        if needs_key(process):
            secret = {"secretName": KEY_NAME, "defaultMode": 0o440}
            volumes.append({"name": KEY_NAME, "secret": secret})
            mount = {"name": KEY_NAME, "mountPath": KEY_FOLDER, "readOnly": True}
            container["volumeMounts"].append(mount)
        spec: dict[str, Any] = {}
        if needs_key(process):
            # Otherwise the owner of every file of the models' volume would be looked at.
            spec["securityContext"] = {"fsGroup": GROUP, "fsGroupChangePolicy": "OnRootMismatch"}
        if serves and self.on_host_network(process):
            spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
        if process.nodes > 1 and self.machine and share.devices >= self.machine:
            spec["affinity"] = apart(title)
        spec["terminationGracePeriodSeconds"] = GRACE
        settings = node_settings(self.deployment)
        if serves and settings:
            spec["initContainers"] = [settings_container(settings)]
        spec |= {"containers": [container], "volumes": volumes}
        return {"metadata": {"labels": {"app": title}}, "spec": spec}

    def on_host_network(self, process: Process) -> bool:
        """HCCL takes its links from the node's own interfaces, and RDMA between nodes and for KV
        needs them too. Ranks on CPUs need none, and Ray's ports have no authentication."""
        if self.on_cpus:
            return False
        ascend = self.device is not None and self.device.platform == "npu"
        return ascend or process.nodes > 1 or process.kind in ("prefill", "decode")

    def container(self, process: Process, share: NodeShare) -> dict[str, Any]:
        found: dict[str, Any] = {
            "name": "engine",
            "image": "IMAGE",
            "command": ["bash", "-c"],
            "args": [escape_dollars(inline(self.deployment, process) + "\n")],
            "env": [
                {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                *(
                    {"name": name, "value": escape_dollars(value)}
                    for name, value in plain_environment(process).items()
                ),
            ],
            "resources": resources(share, self.device if process.kind != "router" else None),
            "volumeMounts": [
                {"name": "shared-memory", "mountPath": "/dev/shm"},
                {"name": "models", "mountPath": "/models", "readOnly": True},
            ],
        }
        if process.kind == "benchmark":
            return found
        found["ports"] = [port.of_container for port in self.ports(process)]
        return found | (probes(process.port) if process.rank == 0 else {})

    def job(self, process: Process) -> dict[str, Any]:
        template = self.pod(process, label(self.deployment, process.name))
        template["spec"]["restartPolicy"] = "Never"
        spec = {"suspend": True, "backoffLimit": 0, "template": template}
        return manifest("batch/v1", "Job", label(self.deployment, process.name), spec)


def pod_group(process: Process) -> PodGroup:
    if process.by_ray:
        return RAY
    return LWS if process.nodes > 1 else ALONE


def generic(process: Process, moved: dict[str, str], entry: str) -> Process:
    """The process with what a pod is told in place of the node's own address and rank; a benchmark
    beside the servers calls their service, `entry`."""
    words, waiting, group = list[str](), "", pod_group(process)
    for word in process.words:
        option = find_option(word[2:]) if word.startswith("--") else None
        if "base_gpu_id" in (waiting, option and option.name):
            waiting = "" if option is None else option.name
            continue  # a pod's devices are its own, from 0 on
        if waiting == "node_rank" and group.rank:
            words.append(group.rank)
        elif waiting == "host" and process.kind != "benchmark":
            words.append("<$POD_IP>" if process.kind != "router" else "0.0.0.0")
        elif waiting == "host" and word in OWN and entry:
            words.append(entry)
        elif waiting == "dist_init_addr" and group.first:
            words.append(f"{group.first}:{word.rpartition(':')[2]}")
        elif waiting == "cluster_key_file":
            words.append(KEY_FILE)
        else:
            words.append(with_services(word, moved))
        waiting = "" if option is None else option.name
    if process.kind not in ("benchmark", "router") and process.value("host") is None:
        words += ["--host", "<$POD_IP>"]  # by default nobody outside of the pod is answered
    if needs_key(process) and process.value("cluster_key_file") is None:
        words += ["--cluster-key-file", KEY_FILE]
    environment = {
        name: with_services(value, moved)
        for name, value in process.environment.items()
        if name not in VISIBLE
    }
    return msgspec.structs.replace(process, words=tuple(words), environment=environment, host=None)


def with_services(word: str, moved: dict[str, str]) -> str:
    for host, name in moved.items():
        if host in word and re.search(rf"(^|[/@]){re.escape(host)}(:|/|$)", word):
            return word.replace(host, name)
    return word


def store_host(url: str) -> str:
    return url.rpartition("/")[2].rpartition(":")[0]


def service_name(title: str, nodes: int) -> str:
    """A LeaderWorkerSet makes a headless service of its own name, for the names of its pods."""
    return f"{title[:56].rstrip('-')}-leader" if nodes > 1 else title


def label(deployment: Deployment, name: str) -> str:
    """A DNS label (RFC 1035): lower-case letters, digits and dashes, a letter first."""
    text = f"{deployment.name}-{name}" if deployment.name else name
    text = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    text = text if text[:1].isalpha() else f"d-{text}"
    if len(text) > LONGEST:  # the end says which role it is
        end = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[-36:]
        text = f"{text[: LONGEST - 1 - len(end)].strip('-')}-{end.strip('-')}"
    return text.strip("-")
