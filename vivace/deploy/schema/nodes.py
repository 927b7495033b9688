"""The processes a deployment starts: every node of every instance, placeholders filled in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from vivace.deploy.schema.deployment import (
    Deployment,
    DeploymentError,
    Environment,
    Flags,
    Role,
)

T = TypeVar("T")
NAMES = ("host", "first", "node", "instance")
ADDRESS = re.compile(r"(?<!\{)\{(?:host|first)\}(?!\})")
"""a placeholder that `hosts` has the value of"""


class RoleNode(msgspec.Struct, frozen=True):
    """One process; `host` is None where the deployment does not say."""

    instance: int
    rank: int
    host: str | None
    flags: Flags
    environment: Environment


def expand_nodes(deployment: Deployment, role: Role) -> Iterator[RoleNode]:
    for index in range(role.instances * role.nodes):
        instance, rank = divmod(index, role.nodes)
        host = of_node(role, role.hosts, index)
        first = of_node(role, role.hosts, index - rank)
        values = {"host": host, "first": first, "node": rank, "instance": instance}
        own = of_node(role, role.each, index)
        flags = {**role.flags, **(own.flags if own else {})}
        environment = {**role.environment, **(own.environment if own else {})}
        yield RoleNode(
            instance,
            rank,
            host,
            {name: fill_placeholders(value, values) for name, value in flags.items()},
            {
                name: str(fill_placeholders(value, values))
                for name, value in {**deployment.environment, **environment}.items()
            },
        )


def of_node(role: Role, listed: Sequence[T], index: int) -> T | None:
    """What a list has for a node: an entry for each, or, where Ray chooses machines for the
    others, for the first one of each instance."""
    instance, rank = divmod(index, role.nodes)
    if role.flags.get("use-ray") and len(listed) <= role.instances:
        return listed[instance] if rank == 0 and instance < len(listed) else None
    return listed[index] if index < len(listed) else None


def fill_placeholders(value: Any, values: Mapping[str, Any]) -> Any:
    """The value with its placeholders replaced; placeholders without a known value stay."""
    if isinstance(value, list):
        return [fill_placeholders(each, values) for each in value]
    if not isinstance(value, str):
        return value
    for name in NAMES:
        placeholder = "{" + name + "}"
        if placeholder in value and values[name] is not None:
            if value == placeholder:
                return values[name]
            value = value.replace(placeholder, str(values[name]))
    return value


def without_address(nodes: Iterable[RoleNode]) -> tuple[str, str]:
    """The first flag (with its dashes) or variable whose placeholder stands for an address that the
    role's hosts do not have, and the placeholder; both empty where there is none. Nodes that Ray
    starts get their words from the first one."""
    for node in nodes:
        if node.rank and node.flags.get("use-ray"):
            continue
        values = {**{f"--{flag}": value for flag, value in node.flags.items()}, **node.environment}
        for name, value in values.items():
            if found := ADDRESS.search(str(value)):
                return name, found[0]
    return "", ""


def refuse_without_address(deployment: Deployment, file: str) -> None:
    """Raises DeploymentError for a flag or variable that would be written with its placeholder."""
    for name, role in deployment.roles.items():
        flag, placeholder = without_address(expand_nodes(deployment, role))
        if flag:
            raise DeploymentError(
                f"{file}: roles.{name}: {flag} has {placeholder}, an address, and `hosts` has none "
                "for it; list one host per node, or write an address (0.0.0.0: any)"
            )
