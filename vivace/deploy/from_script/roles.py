"""Similar commands -> roles, with what differs from node to node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from vivace.deploy.from_script.flags import option_named
from vivace.deploy.schema.deployment import Difference, Environment, Flags, FlagValue, Kind, Role

PER_NODE = frozenset(
    """
    node_rank host port nccl_port dist_init_addr disaggregation_bootstrap_port
    """.split()
)
"""options in which the nodes of one role may differ from script to script"""


class StartedServer(msgspec.Struct, frozen=True):
    """One server or router: `place` is the same for those of one line of one script; `host`: the
    machine it runs on, where the script says so."""

    place: tuple[str, int]
    kind: Kind
    program: str
    flags: Flags
    environment: Environment
    host: str | None


def value_of(flags: Mapping[str, FlagValue], name: str) -> FlagValue:
    """A flag's value, whichever spelling was used."""
    wanted = option_named(name)
    for given, value in flags.items():
        if given == name or (wanted is not None and option_named(given) is wanted):
            return value
    return None


def kind_of(flags: Flags) -> Kind:
    mode = value_of(flags, "disaggregation-mode")
    if mode == "prefill":
        return "prefill"
    if mode == "decode":
        return "decode"
    return "encoder" if value_of(flags, "encoder-only") else "mixed"


def roles_of(started: Sequence[StartedServer]) -> dict[str, Role]:
    """Roles by name: the kind, with a number where there are several of it."""
    roles: dict[str, Role] = {}
    for group in grouped(started):
        role = role_of(group)
        name, count = role.kind, 2
        while name in roles:
            name, count = f"{role.kind}-{count}", count + 1
        roles[name] = role
    return roles


def grouped(started: Sequence[StartedServer]) -> list[list[StartedServer]]:
    """Grouped by line of the script, and across scripts that differ only by node."""
    found: dict[Any, list[StartedServer]] = {}
    for each in started:
        found.setdefault(each.place, []).append(each)
    merged: list[list[StartedServer]] = []
    for group in found.values():
        alike = next((other for other in merged if same_role(other[0], group[0])), None)
        if alike is None:
            merged.append(group)
        else:
            alike += group
    return merged


def same_role(one: StartedServer, other: StartedServer) -> bool:
    """Whether they are of different scripts and differ only by node."""
    alone = one.place[0] != other.place[0]
    return alone and signature(one) == signature(other)


def signature(started: StartedServer) -> tuple[Any, ...]:
    kept = {
        name: str(value) for name, value in started.flags.items() if canonical(name) not in PER_NODE
    }
    return started.kind, started.program, tuple(sorted(kept.items()))


def canonical(name: str) -> str:
    option = option_named(name)
    return name if option is None else option.name


def role_of(group: list[StartedServer]) -> Role:
    """One role; its instances' nodes in the order of the script, then of their ranks."""
    nodes = positive_int(value_of(group[0].flags, "nnodes")) or 1
    group = on_known_hosts(group)
    full = len(group) % nodes == 0
    hosts = [each.host for each in group if each.host is not None]
    hosts = hosts if full and len(hosts) == len(group) else []
    members = [
        node_view(each, index % nodes, nodes, bool(hosts)) for index, each in enumerate(group)
    ]
    flags, environment, each = split(members)
    if not full and any(canonical(name) == "node_rank" for name in flags):
        flags |= {name: "{node}" for name in flags if canonical(name) == "node_rank"}
    return Role(
        kind=group[0].kind,
        program=group[0].program,
        instances=max(1, len(group) // nodes),
        nodes=nodes,
        hosts=hosts,
        flags=flags,
        environment=environment,
        each=each if full else [],
    )


def on_known_hosts(group: list[StartedServer]) -> list[StartedServer]:
    """Where some are on known machines, only those: the others are what the script would do on a
    machine it does not know. Without any, one for each place in the scripts."""
    known = [each for each in group if each.host is not None]
    return known or list({each.place: each for each in reversed(group)}.values())[::-1]


def positive_int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def node_view(
    started: StartedServer, rank: int, nodes: int, hosts: bool
) -> tuple[Flags, Environment]:
    """Flags and environment with `{host}` and `{node}` in place of what stands for them."""
    flags = dict(started.flags)
    for name, value in started.flags.items():
        if canonical(name) == "node_rank" and nodes > 1 and value == rank:
            flags[name] = "{node}"
        elif canonical(name) == "host" and hosts and value == started.host:
            flags[name] = "{host}"
    return flags, dict(started.environment)


def split(
    members: Sequence[tuple[Flags, Environment]],
) -> tuple[Flags, Environment, list[Difference]]:
    """(common flags, common environment, the rest of each)"""
    common_flags = common([flags for flags, _ in members])
    common_environment = common([environment for _, environment in members])
    each = [
        Difference(
            flags=without(flags, common_flags), environment=without(environment, common_environment)
        )
        for flags, environment in members
    ]
    alike = not any(one.flags or one.environment for one in each)
    return common_flags, common_environment, [] if alike else each


def common(mappings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = mappings[0]
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in mappings[1:])
    }


def without(mapping: Mapping[str, Any], taken: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name not in taken}


def shared_environment(environments: Iterable[Environment]) -> Environment:
    """Variables that all of them share."""
    every = list(environments)
    return common(every) if every else {}
