"""Similar commands -> roles, with what differs from node to node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from vivace.deploy.from_script.flags import Remark, canonical, find_option
from vivace.deploy.locations import Location, Sources
from vivace.deploy.schema.deployment import (
    Deployment,
    Difference,
    Environment,
    Flags,
    FlagValue,
    Kind,
    Role,
)

PER_NODE = frozenset(
    """
    node_rank host port nccl_port dist_init_addr disaggregation_bootstrap_port
    """.split()
)
"""options in which the nodes of one role may differ from script to script"""


class TargetPort(msgspec.Struct, frozen=True):
    """A port where somebody expects the server of these networks: `client` is a probe or a
    Service; `outside`: it comes to the address of the pod, not from within the container."""

    client: str
    port: int
    networks: tuple[str, ...]
    place: Location
    outside: bool = False


class StartedServer(msgspec.Struct, frozen=True):
    """One process of a server or router, before those that are alike become a role.

    `place`: the command, the same for all rounds of a loop, which `round` counts; `host`: the
    machine, where it is known; `script` and `paths`: what the same script starts on one path runs
    on one machine; `tasks`: how many processes `srun` makes of it; `contained`: its network is its
    container's own; `conditions`: of its launch, which only the machine can decide."""

    place: Location
    kind: Kind
    program: str
    flags: Flags
    environment: Environment
    host: str | None
    instance: str = ""
    """where a deployment file says it"""
    round: int = 0
    script: str = ""
    paths: tuple[int, ...] = ()
    tasks: int = 0
    contained: bool = False
    devices: int = 0
    """that its container is given; 0: unknown"""
    conditions: tuple[str, ...] = ()
    network: str = ""
    """the same for what shares addresses and ports, where a file says it"""
    names: tuple[str, ...] = ()
    """under which others find it; `closed`: and under no others"""
    closed: bool = False
    published: tuple[tuple[int, int], ...] = ()
    """ports of the machine that lead to its container: the first, and how many from it on"""
    again: Flags = {}
    """what it has in the next round of a loop without a known end"""
    stops: tuple[int, int] = (0, 0)
    """how often its script ended servers before: those with other counts run at other times"""
    elsewhere: bool = False
    """whether it is started with a node's rank on machines, too, that its script does not name"""

    def runs_with(self, other: StartedServer) -> bool:
        """Whether both run on the same machine at the same time."""
        if self.stops != other.stops:
            return False
        if self.host is not None or other.host is not None:
            return self.host == other.host
        return (
            bool(self.script)
            and self.script == other.script
            and bool(set(self.paths) & set(other.paths))
        )


def flag_value(flags: Mapping[str, FlagValue], name: str) -> FlagValue:
    """A flag's value, whichever spelling was used."""
    wanted = find_option(name)
    for given, value in flags.items():
        if given == name or (wanted is not None and find_option(given) is wanted):
            return value
    return None


def model_name(path: FlagValue) -> str:
    """The last part of a path or a repository id."""
    return str(path).rstrip("/").rpartition("/")[2]


def server_kind(flags: Flags) -> Kind:
    mode = flag_value(flags, "disaggregation-mode")
    if mode == "prefill":
        return "prefill"
    if mode == "decode":
        return "decode"
    return "encoder" if flag_value(flags, "encoder-only") else "mixed"


class LoadedDeployment(msgspec.Struct, frozen=True):
    """A deployment, and what is known of how it was read."""

    deployment: Deployment
    remarks: tuple[Remark, ...]
    file: str
    sources: Sources = Sources()
    started: tuple[StartedServer, ...] = ()
    """processes as scripts start them; empty for a deployment file"""
    target_ports: tuple[TargetPort, ...] = ()
    shared: frozenset[str] = frozenset()
    """networks in which something else runs too"""


class RoleGroups(msgspec.Struct):
    """Roles by name, the processes of each, and places where one of several variants was chosen."""

    roles: dict[str, Role] = {}
    started: dict[str, list[StartedServer]] = {}
    chosen: list[tuple[StartedServer, str]] = []


def build_roles(started: Sequence[StartedServer]) -> RoleGroups:
    """Roles by name: the kind, with a number where there are several of it."""
    groups = RoleGroups()
    for group in group_servers(started):
        members = on_known_hosts(group, groups)
        role = build_role(members)
        name, count = role.kind, 2
        while name in groups.roles:
            name, count = f"{role.kind}-{count}", count + 1
        groups.roles[name], groups.started[name] = role, members
    return groups


def group_servers(started: Sequence[StartedServer]) -> list[list[StartedServer]]:
    """Grouped by line of the script, and across lines and scripts that differ only by node. A line
    of a function may start servers of several kinds."""
    found: dict[tuple[Location, Kind, str], list[StartedServer]] = {}
    for each in started:
        found.setdefault((each.place, each.kind, each.program), []).append(each)
    merged: dict[tuple[Any, ...], list[list[StartedServer]]] = {}
    for group in found.values():
        candidates = merged.setdefault(signature(group[0]), [])
        ranked = is_rank(group[0])
        alike = next((each for each in candidates if same_role(each[0], group[0], ranked)), None)
        if alike is None:
            candidates.append(group)
        else:
            alike += group
    order = {id(group): at for at, group in enumerate(found.values())}
    roles = [each for candidates in merged.values() for each in candidates]
    return sorted(roles, key=lambda group: order[id(group)])


def same_role(one: StartedServer, other: StartedServer, ranked: bool) -> bool:
    """Whether two with one signature differ only by node: in scripts or containers of their own,
    or as ranks of one instance."""
    if one.place.file != other.place.file:
        return True
    containers = one.place != other.place and one.place.file.endswith((".yaml", ".yml"))
    if containers and one.environment == other.environment:
        return True
    return ranked and node_rank(one.flags) is not None


def is_rank(server: StartedServer) -> bool:
    nodes = positive_int(flag_value(server.flags, "nnodes"))
    return nodes not in (None, 1) and node_rank(server.flags) is not None


def node_rank(flags: Mapping[str, FlagValue]) -> int | None:
    value = flag_value(flags, "node-rank")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def signature(started: StartedServer) -> tuple[Any, ...]:
    kept = {
        name: str(value) for name, value in started.flags.items() if canonical(name) not in PER_NODE
    }
    return started.kind, started.program, tuple(sorted(kept.items()))


def build_role(group: list[StartedServer]) -> Role:
    """One role; its instances' nodes in the order of the script, then of their ranks."""
    nodes = positive_int(flag_value(group[0].flags, "nnodes")) or 1
    started = 1 if flag_value(group[0].flags, "use-ray") else nodes  # Ray starts the others
    group[:] = in_order(group, started)
    full = len(group) % started == 0
    hosts = [each.host for each in group if each.host is not None]
    hosts = hosts if full and len(hosts) == len(group) else []
    members = [
        node_view(each, index % started, nodes, bool(hosts)) for index, each in enumerate(group)
    ]
    flags, environment, each = split(members)
    if not full and any(canonical(name) == "node_rank" for name in flags):
        flags |= {name: "{node}" for name in flags if canonical(name) == "node_rank"}
    return Role(
        kind=group[0].kind,
        program=group[0].program,
        instances=max(1, len(group) // started),
        nodes=nodes,
        hosts=hosts,
        flags=flags,
        environment=environment,
        each=each if full else [],
    )


def in_order(group: list[StartedServer], nodes: int) -> list[StartedServer]:
    """Instance after instance by rank, where every rank of each is there; else as it was."""
    instances: dict[str, list[StartedServer]] = {}
    for each in group:
        instances.setdefault(str(flag_value(each.flags, "dist-init-addr")), []).append(each)
    ordered: list[StartedServer] = []
    for members in instances.values():
        by_rank = sorted(members, key=lambda each: node_rank(each.flags) or 0)
        ranks = [node_rank(each.flags) for each in by_rank]
        if len(ranks) != nodes or ranks != list(range(len(ranks))):
            return group
        ordered += by_rank
    return ordered


def on_known_hosts(group: list[StartedServer], groups: RoleGroups) -> list[StartedServer]:
    """Where some are on known machines, only those: the others are what the script would do on a
    machine it does not know. Without any, one for each place in the scripts and round of a loop."""
    known = [each for each in group if each.host is not None]
    if known:
        others = [each for each in group if each.host is None]
        more = any(node_rank(each.flags) is not None for each in others)
        return [msgspec.structs.replace(each, elsewhere=more) for each in known]
    found: dict[tuple[Location, int], StartedServer] = {}
    for each in group:
        kept = found.setdefault((each.place, each.round), each)
        if kept is not each and (kept.flags, kept.environment) != (each.flags, each.environment):
            condition = next((each for each in kept.conditions if each), "")
            groups.chosen.append((kept, condition))
    return list(found.values())


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
