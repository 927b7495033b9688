"""The processes a deployment starts: every node of every instance, placeholders filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from vivace.deploy.schema.deployment import Deployment, Environment, Flags, Role

NAMES = ("host", "first", "node", "instance")


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
        host = role.hosts[index] if index < len(role.hosts) else None
        first_index = instance * role.nodes
        first = role.hosts[first_index] if first_index < len(role.hosts) else None
        values = {"host": host, "first": first, "node": rank, "instance": instance}
        own = role.each[index] if index < len(role.each) else None
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
