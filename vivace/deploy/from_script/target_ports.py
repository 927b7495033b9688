"""Ports at which probes, health checks and Services expect a server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import yaml

from vivace.deploy.from_script.container import Container
from vivace.deploy.from_script.roles import TargetPort
from vivace.deploy.from_script.yaml_nodes import child, plain
from vivace.deploy.locations import Location

PROBE_FIELDS = ("startupProbe", "readinessProbe", "livenessProbe")
REQUESTS = ("httpGet", "tcpSocket", "grpc")
URL = re.compile(r"(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\]):(\d{1,5})(?!\d)")
CONTROLLED = ("kubernetes.io/", "x-k8s.io/", "ray.io/")
"""in labels that controllers set"""


def named_ports(containers: Sequence[yaml.Node]) -> dict[str, int]:
    """containerPort by name, of all containers of a pod."""
    found: dict[str, int] = {}
    for each in containers:
        listed = plain(child(each, "ports"))
        for port in listed if isinstance(listed, list) else []:
            if isinstance(port, Mapping) and isinstance(port.get("containerPort"), int):
                found[str(port.get("name") or "")] = port["containerPort"]
    return found


def probed_ports(
    file: str, container: yaml.Node, ports: Mapping[str, int], network: str
) -> Iterator[TargetPort]:
    """Of a container's probes."""
    for probe in PROBE_FIELDS:
        for request in REQUESTS:
            node = child(container, probe, request, "port")
            elsewhere = child(container, probe, request, "host") is not None
            number = port_number(plain(node), ports)
            if node is not None and number is not None and not elsewhere:
                yield target_port(f"the {probe}", number, node, file, network, outside=True)
        yield from checked_ports(
            f"the {probe}", file, child(container, probe, "exec", "command"), network
        )


def checked_ports(
    client: str, file: str, command: yaml.Node | None, network: str
) -> Iterator[TargetPort]:
    """Of the URLs in a command that asks the container itself."""
    parts = command.value if isinstance(command, yaml.SequenceNode) else [command]
    for part in (each for each in parts if isinstance(each, yaml.ScalarNode)):
        for number in dict.fromkeys(map(int, URL.findall(str(part.value)))):
            yield target_port(client, number, part, file, network)


def target_port(
    client: str, port: int, node: yaml.Node, file: str, *networks: str, outside: bool = False
) -> TargetPort:
    line = node.start_mark.line + 1
    return TargetPort(client, port, networks, Location(file, line, line), outside)


def port_number(value: object, names: Mapping[str, int]) -> int | None:
    """None for a name that no container has."""
    if isinstance(value, int):
        return value
    text = str(value)
    return int(text[:6]) if text.isdecimal() else names.get(text)


def with_services(
    file: str, documents: Sequence[yaml.Node], containers: list[Container]
) -> list[Container]:
    """The containers, with the names of the Services that select them; the first has the ports
    of all of them."""
    ports: list[TargetPort] = []
    for document in documents:
        if plain(child(document, "kind")) != "Service":
            continue
        selector = plain(child(document, "spec", "selector"))
        if not isinstance(selector, Mapping) or not selector:
            continue
        chosen = [each for each in containers if selects(selector, each.labels)]
        name = str(plain(child(document, "metadata", "name")) or "")
        containers = [
            msgspec.structs.replace(each, names=(*each.names, name)) if each in chosen else each
            for each in containers
        ]
        ports += service_ports(file, document, name, chosen)
    first = [
        msgspec.structs.replace(containers[0], target_ports=(*containers[0].target_ports, *ports))
    ]
    return [*first, *containers[1:]]


def selects(selector: Mapping[object, object], labels: Mapping[str, str]) -> bool:
    """What a controller sets may be anything; of the others at least one is the same."""
    own = {
        str(key): str(value)
        for key, value in selector.items()
        if not any(part in str(key) for part in CONTROLLED)
    }
    return bool(own) and all(labels.get(key) == value for key, value in own.items())


def service_ports(
    file: str, document: yaml.Node, name: str, chosen: Sequence[Container]
) -> Iterator[TargetPort]:
    """Of a headless Service nobody takes the ports."""
    listed = child(document, "spec", "ports")
    if not chosen or plain(child(document, "spec", "clusterIP")) == "None":
        return
    names = {key: port for each in chosen for key, port in each.ports.items()}
    networks = tuple(dict.fromkeys(each.network for each in chosen))
    for entry in listed.value if isinstance(listed, yaml.SequenceNode) else []:
        target = child(entry, "targetPort")
        node = child(entry, "port") if target is None else target
        number = port_number(plain(node), names)
        if node is not None and number is not None:
            yield target_port(f"Service {name}", number, node, file, *networks, outside=True)
