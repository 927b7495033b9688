"""Kubernetes manifests, docker-compose files, SkyPilot tasks -> the commands they start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from vivace.deploy.from_script.compose import (
    as_list,
    find_machine,
    interpolate,
    read_environment,
    service_ports,
)
from vivace.deploy.from_script.container import (
    USED,
    Container,
    first_containers,
    image_release,
    not_read,
    shell_words,
    to_script,
    unread_variables,
)
from vivace.deploy.from_script.custom_resources import (
    count_nodes,
    given_words,
    is_container,
    node_words,
)
from vivace.deploy.from_script.flags import Remark
from vivace.deploy.from_script.sky_task import of_task
from vivace.deploy.from_script.target_ports import (
    checked_ports,
    named_ports,
    probed_ports,
    with_services,
)
from vivace.deploy.from_script.undefined import undefined_in_pod
from vivace.deploy.from_script.yaml_nodes import child, documents, plain
from vivace.deploy.locations import Location
from vivace.deploy.schema.files import (
    describe_character,
    describe_problem,
)
from vivace.deploy.shell.interpreter import Follow
from vivace.deploy.shell.reader import ScriptError, no_file
from vivace.deploy.shell.wrappers import program_of_image

IN_COMMAND = re.compile(r"\$\$|\$\(([A-Za-z_]\w*)\)")
RANKS = ("pod-index", "worker-index", "completion-index")
"""ends of labels that number the pods of a set"""
GROUPED = "leaderworkerset"
"""what a resource says whose pods are those of a LeaderWorkerSet, as a role of a RoleBasedGroup"""
LWS = ("LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX")
"""what a LeaderWorkerSet's controller sets in each of its containers"""
OF_SERVICES = re.compile(r"_(SERVICE_(HOST|PORT\w*)|PORT(_\d+_\w+)?)$")
"""ends of variables that the cluster makes of its services"""
DEVICE = re.compile(r"nvidia\.com/gpu|amd\.com/gpu|huawei\.com/Ascend\w+")
"""resources that are whole devices; others are parts of them, as nvidia.com/gpumem"""
RESOLVING = ("extra_hosts", "links", "external_links", "networks", "dns", "network_mode")
"""of a service: what may give others names"""


def containers_in(file: str, content: str, follow: Follow = no_file) -> list[Container]:
    """Of a compose file, or of every document of manifests. Raises ScriptError."""
    try:
        nodes = list(documents(content))
        found = first_containers(each for node in nodes for each in of_document(file, node, follow))
        found = with_services(file, nodes, found) if found else []
    except yaml.MarkedYAMLError as error:
        template = "; it is a template: check what `helm template` makes of it"
        hint = template if "{{" in content else ""
        raise ScriptError(f"{file}: {describe_problem(error)}{hint}") from None
    except yaml.reader.ReaderError as error:
        raise ScriptError(f"{file}: {describe_character(error)}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ScriptError(f"{file}: {error}") from None
    return found


def of_document(file: str, node: yaml.Node, follow: Follow) -> Iterator[Container]:
    services = child(node, "services")
    if services is not None and child(node, "apiVersion") is None:
        for name, service in services.value if isinstance(services, yaml.MappingNode) else []:
            yield from of_service(file, name, service, follow)
        return
    if child(node, "run") is not None:
        yield from of_task(file, node)
        return
    entrypoint = plain(child(node, "spec", "entrypoint"))
    if plain(child(node, "kind")) == "RayJob" and isinstance(entrypoint, str):
        yield from of_ray_job(file, node, entrypoint)
        return
    group = child(node, "spec", "leaderWorkerTemplate")
    name = str(plain(child(node, "metadata", "name")) or "")
    if group is not None:
        size = count_pods(plain(child(group, "size")))
        policy = plain(child(node, "spec", "networkConfig", "subdomainPolicy"))
        domain = f"{name}-0" if policy == "UniquePerReplica" else name
        workers = child(group, "workerTemplate", "spec")
        leaders = child(group, "leaderTemplate", "spec") or workers
        for pod in range(size):
            template = child(group, "leaderTemplate" if pod == 0 else "workerTemplate")
            labels = read_labels(template or child(group, "workerTemplate"))
            spec = workers if pod else leaders
            own = f"{name}-0" + f"-{pod}" * (pod > 0) + f".{domain}" if name else ""
            yield from of_pod(file, spec, pod, size, labels, own, grouped=True)
        return
    ordered = plain(child(node, "kind")) == "StatefulSet"
    domain = str(plain(child(node, "spec", "serviceName")) or "")
    wrapped = GROUPED in str(plain(node)).lower()
    for template, size, labels, nodes in pods_in(node):
        for pod in range(size * nodes):
            own = f"{name}-{pod}" + (f".{domain}" if domain else "") if ordered and name else ""
            more, group = node_words(pod, nodes), nodes if wrapped else size
            yield from of_pod(file, template, pod, group, labels, own, wrapped, more)


def of_ray_job(file: str, node: yaml.Node, entrypoint: str) -> Iterator[Container]:
    """Its entrypoint runs in the pod of the cluster's head; the others wait for what it sends."""
    head = child(node, "spec", "rayClusterSpec", "headGroupSpec", "template")
    if head is None:
        yield Container(script=entrypoint + "\n", place=location(file, node), alone=False)
        return
    spec, labels = child(head, "spec"), read_labels(head)
    yield from of_pod(file, spec, 0, 1, labels, "", entrypoint=entrypoint)


def read_labels(node: yaml.Node | None) -> dict[str, str]:
    """Of a pod, or of what has a template of pods."""
    found = plain(child(node, "metadata", "labels"))
    pairs = found.items() if isinstance(found, Mapping) else ()
    return {str(key): str(value) for key, value in pairs}


Pods = tuple[yaml.Node, int, dict[str, str], int]


def pods_in(document: yaml.Node) -> Iterator[Pods]:
    """(what has a list of containers or is one, how often the nearest `replicas` above starts it,
    the nearest labels, nodes of each): of a Pod, a Deployment and of every other kind that is made
    of pods."""
    seen: set[int] = set()
    waiting: list[Pods] = [(document, 1, {}, 1)]
    while waiting:
        node, replicas, labels, nodes = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        stated = child(node, "replicas")
        replicas = replicas if stated is None else count_pods(plain(stated))
        labels, nodes = read_labels(node) or labels, count_nodes(node) or nodes
        if isinstance(child(node, "containers"), yaml.SequenceNode) or is_container(node):
            yield node, replicas, labels, nodes
        elif isinstance(node, yaml.MappingNode):
            waiting += [(value, replicas, labels, nodes) for _, value in reversed(node.value)]
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(each, replicas, labels, nodes) for each in reversed(node.value)]


def count_pods(value: Any) -> int:
    return max(value, 1) if isinstance(value, int) else 1


def of_pod(
    file: str,
    spec: yaml.Node | None,
    pod: int,
    size: int,
    labels: dict[str, str],
    name: str,
    grouped: bool = False,
    more: Sequence[str] = (),
    entrypoint: str = "",
) -> Iterator[Container]:
    """`entrypoint`: what somebody else starts in its first container, behind the command."""
    shared = plain(child(spec, "hostNetwork")) is True
    lists = (child(spec, "initContainers"), child(spec, "containers"))
    listed = [found.value for found in lists if isinstance(found, yaml.SequenceNode)]
    loose = not listed
    listed = listed or [[spec] if spec else []]
    ports = named_ports([each for found in listed for each in found])
    network = f"{file}:{spec.start_mark.line if spec else 0}/{pod}"
    serving = listed[-1] if listed else []
    alone = all(child(each, "command") or child(each, "args") for each in serving)
    for node in (each for found in listed for each in found):
        content = plain(node)
        if not isinstance(content, Mapping):
            continue
        variables = {"LWS_GROUP_SIZE": str(size), "LWS_WORKER_INDEX": str(pod % size)}
        own = pod_variables(content.get("env"), pod % size if grouped else pod)
        given = [word for key in ("command", "args") for word in as_words(content.get(key))]
        given = given_words(content, more) if loose else given
        job = entrypoint if node in serving[:1] else ""
        words = started_words(content, given, {**variables, **own}, job)
        if words:
            used = {name: value for name, value in variables.items() if name in str(words)}
            defined = (*own, *(LWS if grouped else ()))
            yield Container(
                script=to_script({**used, **own}, words),
                place=location(file, node),
                pod=pod,
                contained=not shared,
                remarks=tuple(pod_remarks(content, given, defined)),
                release=image_release(str(content.get("image") or "")),
                devices=limited_devices(content),
                network=network,
                alone=alone,
                names=(name,) if name else (),
                target_ports=tuple(probed_ports(file, node, ports, network)),
                labels=labels,
                ports=ports,
            )


def started_words(
    content: Mapping[str, Any], given: Sequence[str], variables: Mapping[str, str], job: str
) -> list[str]:
    words = [expand_variables(word, variables) for word in given]
    if job:
        return ["bash", "-c", f"{' '.join(words)}\n{job}"]
    return [*own_program(content, words), *words]


def pod_remarks(
    content: Mapping[str, Any], words: list[str], defined: Sequence[str]
) -> Iterator[Remark]:
    """What is not read of a container, or not defined in it."""
    if content.get("envFrom"):
        yield not_read("envFrom of a container is not read")
        return
    for name in undefined_names(words, content.get("env"), defined):
        yield undefined_in_pod(name, defined)
    used = dict.fromkeys(USED.findall(" ".join(words)))
    yield from unread_variables(words, (name for name in used if name in defined))


def undefined_names(words: list[str], env: Any, defined: Sequence[str]) -> tuple[str, ...]:
    """`$(NAME)` that the container does not define, nor a service of the cluster. In small letters
    it is a command of the shell."""
    values = [each.get("value") for each in as_list(env) if isinstance(each, Mapping)]
    used = (match[1] for text in (*words, *values) for match in IN_COMMAND.finditer(str(text)))
    names = (name for name in used if name and name.isupper() and not OF_SERVICES.search(name))
    return tuple(dict.fromkeys(name for name in names if name not in defined))


def pod_variables(listed: Any, pod: int) -> dict[str, str]:
    """A container's `env`; what the cluster fills in is unknown, but for the pod's number."""
    found: dict[str, str] = {}
    for each in listed if isinstance(listed, list) else []:
        if not isinstance(each, Mapping) or not str(each.get("name", "")).isidentifier():
            continue
        origin = str(each.get("valueFrom") or "")
        if origin:
            numbered = any(label + "'" in origin for label in RANKS)
            value = str(pod) if numbered else f"<{each['name']}>"
        else:
            value = expand_variables(str(each.get("value") or ""), found)
        found[str(each["name"])] = value
    return found


def expand_variables(word: str, variables: Mapping[str, str]) -> str:
    """$(NAME) of a manifest."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] is None else variables.get(match[1], f"<{match[1]}>")

    return IN_COMMAND.sub(value, word)


def of_service(file: str, name: yaml.Node, node: yaml.Node, follow: Follow) -> Iterator[Container]:
    content = plain(node)
    if not isinstance(content, Mapping):
        return
    words = [
        interpolate(word)
        for key in ("entrypoint", "command")
        for word in as_words(content.get(key))
    ]
    words = [*own_program(content, words), *words]
    found = read_environment(content, follow)
    deploy = content.get("deploy")
    contained = content.get("network_mode") != "host"
    network = f"{file}:{name.start_mark.line}" if contained else f"{file} host"
    test = child(node, "healthcheck", "test")
    replicas = count_pods(deploy.get("replicas")) if isinstance(deploy, Mapping) else 1
    for pod in range(replicas if words else 0):
        yield Container(
            script=to_script(found.variables, words),
            place=location(file, node, name),
            pod=pod,
            contained=contained,
            network=network,
            alone=contained,
            names=service_names(str(name.value), content) if contained else (),
            closed=not any(content.get(key) for key in RESOLVING),
            published=tuple(service_ports(content)) if contained else (),
            target_ports=tuple(checked_ports("the healthcheck", file, test, network)),
            machine=find_machine(file, content),
            host=str(content.get("x-host") or ""),
            remarks=tuple(map(not_read, found.notes)),
            files=found.files,
            release=image_release(str(content.get("image") or "")),
        )


def service_names(name: str, content: Mapping[str, Any]) -> tuple[str, ...]:
    """Under which others of its network find a service of compose."""
    networks = content.get("networks")
    found = [name, content.get("container_name"), content.get("hostname")]
    for each in networks.values() if isinstance(networks, Mapping) else ():
        if isinstance(each, Mapping):
            found += [*as_list(each.get("aliases")), each.get("ipv4_address")]
    return tuple(str(each) for each in found if each)


def limited_devices(content: Mapping[str, Any]) -> int:
    """resources.limits of a pod's container"""
    limits = content.get("resources")
    limits = limits.get("limits") if isinstance(limits, Mapping) else None
    found = [
        int(str(value))
        for name, value in (limits.items() if isinstance(limits, Mapping) else ())
        if DEVICE.fullmatch(str(name)) and str(value).isdecimal() and len(str(value)) < 6
    ]
    return sum(found)


def own_program(content: Mapping[str, Any], words: list[str]) -> list[str]:
    return program_of_image(str(content.get("image") or ""), next(iter(words), None))


def as_words(value: Any) -> list[str]:
    """A list as it is; a text as a shell would split it. Raises ValueError."""
    if isinstance(value, str):
        return shell_words(value)
    return [str(each) for each in value] if isinstance(value, list) else []


def location(file: str, node: yaml.Node, key: yaml.Node | None = None) -> Location:
    start = (key or node).start_mark.line + 1
    return Location(file, start, max(start, node.end_mark.line))
