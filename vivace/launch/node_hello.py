"""What the nodes of one server must have in common, and what their ranks need to meet."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vivace.checkpoint.file_state import model_digests
from vivace.config.http import HttpOptions
from vivace.config.nodes import CLOCK_SECONDS, comparable, difference
from vivace.config.parallelism import process_groups, requested_sizes
from vivace.config.plugins import find_installed, installed, package
from vivace.config.speculative import DRAFTERS
from vivace.launch.handshake import derive
from vivace.launch.node_messages import NodeHello
from vivace.platforms.platform import describe_arithmetic
from vivace.protocol.ranks import NodeSocketSetup
from vivace.version import __version__

if TYPE_CHECKING:
    from vivace.config.config import Config


def node_ranks(config: Config) -> list[list[int]]:
    """Of each node."""
    return [list(ranks) for ranks in process_groups(requested_sizes(config)).nodes]


def describe_share(nodes: Sequence[Sequence[int]], node: int) -> str:
    """`nodes`: as `node_ranks`."""
    return f"Node {node} (of {len(nodes)} nodes) has {numbered('rank', nodes[node])}"


def numbered(what: str, numbers: Sequence[int]) -> str:
    """`node 1`; `ranks 2, 3`"""
    return f"{what}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def cluster_key(config: Config) -> bytes:
    """Empty where none is given, which is allowed on a loopback address only."""
    key = config.parallel.cluster_key
    return key.reveal().encode() if key else b""


def hello(config: Config) -> NodeHello:
    """What a node says of itself."""
    return NodeHello(
        version=__version__,
        asked=comparable(config),
        files=all_digests(config),
        arithmetic=describe_arithmetic(config.platform) | describe_drafter(config),
        clock=time.time(),
    )


def all_digests(config: Config) -> dict[str, str]:
    """Of the model and of what drafts: ranks propose alike only from the same numbers."""
    found = model_digests(config.source)
    if config.draft is not None:
        drafts = model_digests(config.draft.source)
        found |= {f"draft: {name}": digest for name, digest in drafts.items()}
    return found


def describe_drafter(config: Config) -> dict[str, str]:
    """The package that brings it, if one does."""
    name = config.speculative.speculative_algorithm
    if name is None or name not in installed(DRAFTERS):
        return {}
    return {f"drafter {name}": package(find_installed(DRAFTERS, name))}


def without_keys(config: Config) -> Config:
    """What goes over a network."""
    parallel = replace(config.parallel, cluster_key=None)
    return replace(config, http=HttpOptions(), parallel=parallel)


def socket_setup(config: Config, rank: int, host: str, session: int) -> NodeSocketSetup:
    """Of a rank of this node, which the others reach at `host`."""
    nodes, first = node_ranks(config), config.parallel.nccl_port
    place = nodes[config.parallel.node_rank].index(rank)
    return NodeSocketSetup(
        key=derive(cluster_key(config), session),
        session=session,
        host=host,
        port=0 if first is None else first + place,
        nodes=nodes,
    )


def differences(
    node: int, hello: NodeHello, ours: NodeHello, now: float | None = None
) -> list[str]:
    """Why a node cannot be a part of this server; a line each. `now`: what its clock is compared
    with, if it has just said `hello`."""
    if hello.version != ours.version:
        return [f"vivace {hello.version} on node {node}, {ours.version} on node 0"]
    found = difference(node, hello.asked, ours.asked)
    files = [
        name
        for name in sorted(hello.files.keys() | ours.files.keys())
        if hello.files.get(name) != ours.files.get(name)
    ]
    if files:
        found.append(f"its model is another one than node 0's: {', '.join(files[:4])} differ")
    found += [
        f"its {name} is {hello.arithmetic.get(name, 'unknown')}, node 0's {value}: all nodes "
        "need the same, so that all compute the same"
        for name, value in ours.arithmetic.items()
        if hello.arithmetic.get(name) != value
    ]
    behind = 0.0 if now is None else now - hello.clock
    if abs(behind) > CLOCK_SECONDS:
        how = "behind" if behind > 0 else "ahead of"
        found.append(f"its clock is {abs(behind):.0f} s {how} node 0's; set it (NTP)")
    return found
