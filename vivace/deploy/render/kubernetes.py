"""Kubernetes: a LeaderWorkerSet for instances of several nodes, else a Deployment; services."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from vivace.deploy.case import Case
from vivace.deploy.catalogue.hardware import Device
from vivace.deploy.from_script.flags import find_option
from vivace.deploy.processes import BOOTSTRAP, VISIBLE
from vivace.deploy.render.blocks import dump_yaml
from vivace.deploy.render.process import Process, list_processes, needs_key, port_number
from vivace.deploy.render.resources import ASCEND_FILES, NodeShare, node_shares
from vivace.deploy.render.shell import WARNING, inline, node_settings, plain_environment
from vivace.deploy.schema.deployment import Deployment
from vivace.errors import CannotStart

RESOURCES = {"npu": "huawei.com/Ascend910", "cuda": "nvidia.com/gpu", "hip": "amd.com/gpu"}
STORE = "ASCEND_MF_STORE_URL"
LEADER = "leaderworkerset.sigs.k8s.io/worker-index"
OWN = ("127.0.0.1", "localhost", "0.0.0.0")
GRACE = 180
"""seconds a pod has to finish its requests"""
STARTING = 3600
"""seconds a server may take to load"""
HEAD = f"""# {WARNING}
# Replace IMAGE, and the claim `models` where the weights lie. Instances of several nodes need the
# LeaderWorkerSet controller (sigs.k8s.io/lws). CPUs and memory are per rank: adapt them.
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


def render_kubernetes(case: Case) -> dict[str, str]:
    """One file; {host}, {first} and {node} become what the pod is told."""
    made = Manifests(case)
    keyed = KEYED.format(name=KEY_NAME) if any(map(needs_key, made.processes)) else ""
    return {"kubernetes.yaml": HEAD + keyed + dump_yaml(made.objects())}


class Port(msgspec.Struct, frozen=True):
    name: str
    number: int

    @property
    def of_container(self) -> dict[str, Any]:
        return {"name": self.name, "containerPort": self.number}

    @property
    def of_service(self) -> dict[str, Any]:
        return {"name": self.name, "port": self.number, "targetPort": self.number}


class Manifests:
    """The objects of one deployment."""

    def __init__(self, case: Case) -> None:
        self.deployment, self.device = case.deployment, case.device
        self.shares = node_shares(case)
        found = list(list_processes(case.deployment))
        refuse_ray(found)
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
                yield self.workload(title, replicas, members)
                selector = {"app": title} | ({LEADER: "0"} if role.nodes > 1 else {})
                yield service(service_name(title, role.nodes), selector, self.ports(leader))
        for process in self.processes:
            if process.kind == "benchmark":
                yield self.job(process)

    def workload(self, title: str, replicas: int, members: Sequence[Process]) -> dict[str, Any]:
        leader = self.pod(members[0], title)
        if len(members) == 1:
            return simple_deployment(title, replicas, leader)
        return leader_worker_set(title, replicas, len(members), leader, self.pod(members[1], title))

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
        spec["terminationGracePeriodSeconds"] = GRACE
        settings = node_settings(self.deployment)
        if serves and settings:
            spec["initContainers"] = [settings_container(settings)]
        spec |= {"containers": [container], "volumes": volumes}
        return {"metadata": {"labels": {"app": title}}, "spec": spec}

    def on_host_network(self, process: Process) -> bool:
        """HCCL takes its links from the node's own interfaces, and RDMA between nodes and for KV
        needs them too."""
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
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": label(self.deployment, process.name)},
            "spec": {"suspend": True, "backoffLimit": 0, "template": template},
        }


def refuse_ray(processes: Sequence[Process]) -> None:
    """Raises CannotStart: the pods that are written here are no Ray cluster."""
    for process in processes:
        if process.by_ray:
            raise CannotStart(
                f"role {process.role}: use-ray needs a Ray cluster, and starts the other nodes in "
                "it: take the flag out, or render --to ray, for the jobs of a cluster (KubeRay's)"
            )


def generic(process: Process, moved: dict[str, str], entry: str) -> Process:
    """The process with what a pod is told in place of the node's own address and rank; a benchmark
    beside the servers calls their service, `entry`."""
    words, waiting = list[str](), ""
    for word in process.words:
        option = find_option(word[2:]) if word.startswith("--") else None
        if "base_gpu_id" in (waiting, option and option.name):
            waiting = "" if option is None else option.name
            continue  # a pod's devices are its own, from 0 on
        if waiting == "node_rank" and process.nodes > 1:
            words.append("<$LWS_WORKER_INDEX>")
        elif waiting == "host" and process.kind != "benchmark":
            words.append("<$POD_IP>" if process.kind != "router" else "0.0.0.0")
        elif waiting == "host" and word in OWN and entry:
            words.append(entry)
        elif waiting == "dist_init_addr" and process.nodes > 1:
            words.append(f"<$LWS_LEADER_ADDRESS>:{word.rpartition(':')[2]}")
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
    """A DNS label (RFC 1035): at most 63 lower-case letters, digits and dashes, a letter first.
    Eight are left for the numbers of pods."""
    text = f"{deployment.name}-{name}" if deployment.name else name
    text = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    text = text if text[:1].isalpha() else f"d-{text}"
    if len(text) > 55:  # the end says which role it is
        end = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[-40:]
        text = f"{text[: 54 - len(end)].strip('-')}-{end.strip('-')}"
    return text.strip("-")


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


def service(name: str, selector: dict[str, str], ports: Sequence[Port]) -> dict[str, Any]:
    """Headless: what is registered by name, as the bootstrap and the store, is reached at the
    pod's own address."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector,
            "ports": [port.of_service for port in ports],
        },
    }
