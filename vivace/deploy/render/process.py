"""The processes of a deployment with their commands."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import msgspec

from vivace.deploy.from_script.flags import find_option, flags_to_words
from vivace.deploy.from_script.programs import PARTS, Part, default_port, program_command
from vivace.deploy.from_script.roles import flag_value
from vivace.deploy.schema.deployment import Deployment, Role
from vivace.deploy.schema.nodes import expand_nodes


class Process(msgspec.Struct, frozen=True):
    """`name` is unique in the deployment; `host` None: anywhere."""

    name: str
    role: str
    kind: str
    instance: int
    rank: int
    nodes: int
    host: str | None
    program: str
    words: tuple[str, ...]
    environment: dict[str, str]
    by_ray: bool = False
    """Ray starts the other nodes of its instance, and reserves the devices of all"""

    def value(self, option: str) -> str | None:
        """What follows the option, whichever spelling it has."""
        for word, following in pairwise(self.words):
            known = find_option(word[2:]) if word.startswith("--") else None
            if known is not None and known.name == option:
                return following
        return None

    @property
    def port(self) -> int:
        """What follows --port; the program's own where nothing does, or what no port can be (which
        the check says)."""
        return port_number(self.value("port")) or default_port(self.program)

    @property
    def title(self) -> str:
        of = f", node {self.rank} of {self.nodes}" if self.nodes > 1 else ""
        return f"{self.role}, instance {self.instance}{of}"


def needs_key(process: Process) -> bool:
    """Vivace's nodes let nobody join who does not know it. Ray brings them one that is made for
    each start, unless a file is named."""
    given = not process.by_ray or process.value("cluster_key_file") is not None
    return process.nodes > 1 and process.program.startswith("vivace") and given


def port_number(text: str | None) -> int | None:
    if text is None or not text.isdecimal() or len(text) > 5:
        return None
    return int(text) if 0 < int(text) < 1 << 16 else None


def list_processes(deployment: Deployment) -> Iterator[Process]:
    """Servers and routers in the order of the roles, then benchmarks."""
    for name, role in deployment.roles.items():
        yield from role_processes(deployment, name, role)
    for index, benchmark in enumerate(deployment.benchmarks):
        yield Process(
            name=f"benchmark-{index}",
            role="benchmark",
            kind="benchmark",
            instance=index,
            rank=0,
            nodes=1,
            host=None,
            program=benchmark.program,
            words=(
                *program_command(benchmark.program),
                *flags_to_words(benchmark.flags, "benchmark"),
            ),
            environment=dict(benchmark.environment),
        )


def role_processes(deployment: Deployment, name: str, role: Role) -> Iterator[Process]:
    part: Part = PARTS.get(role.program, "router" if role.kind == "router" else "server")
    instances, ranks = len(str(role.instances - 1)), len(str(role.nodes - 1))
    for node in expand_nodes(deployment, role):
        by_ray = bool(flag_value(node.flags, "use-ray"))
        if by_ray and node.rank:
            continue
        suffix = f"-{node.rank:0{ranks}}" if role.nodes > 1 else ""
        yield Process(
            name=f"{name}-{node.instance:0{instances}}{suffix}",
            role=name,
            kind=role.kind,
            instance=node.instance,
            rank=node.rank,
            nodes=role.nodes,
            host=node.host,
            program=role.program,
            words=(*program_command(role.program), *flags_to_words(node.flags, part)),
            environment=node.environment,
            by_ray=by_ray,
        )
