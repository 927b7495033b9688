"""Several machines that serve together: what is wrong before they meet, and how they differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vivace.config.config import Config, Options, ResolveContext, all_options
from vivace.config.errors import ConfigError
from vivace.config.exposure import loopback
from vivace.config.parallelism import nodes_share_ranks, plain_dp_nodes, requested_sizes
from vivace.config.process_environment import KEYS_OF_THE_SERVER
from vivace.config.rules import why_no_kernels
from vivace.config.serialize import public

CLUSTER_KEY = KEYS_OF_THE_SERVER[2]
GIVE_THE_KEY = f"--cluster-key-file FILE, or set {CLUSTER_KEY}"
MAKE_A_KEY = (
    "make one (`openssl rand -hex 32 > FILE; chmod 600 FILE`), copy it to every node and give "
    + GIVE_THE_KEY
)
COPY_THE_KEY = f"copy node 0's to every node and give {GIVE_THE_KEY}"
OWN_SLICES = ("http", "logging", "debug")
OWN = (
    "model_path",
    "tokenizer_path",
    "download",
    "download_dir",
    "served_model_name",
    "node_rank",
    "nccl_port",
    "dist_init_addr",
    "dist_timeout",
    "use_ray",
    "cluster_key_file",
    "cpu_threads",
    "disable_overlap_schedule",
)
"""options that nodes need not have in common; of the model the files are compared"""
LAST_PORT = 65535
CLOCK_SECONDS = 30.0
"""by which clocks may differ: logs are read beside each other"""


def nodes(options: Options) -> list[str]:
    parallel, sizes = options.parallel, requested_sizes(options)
    if parallel.nnodes == 1:
        return alone(options)
    if parallel.node_rank >= parallel.nnodes:
        raise ConfigError(
            f"--node-rank {parallel.node_rank}: with --nnodes {parallel.nnodes} the nodes are 0 to "
            f"{parallel.nnodes - 1}"
        )
    if fault := nodes_share_ranks(sizes):
        raise ConfigError(f"--nnodes {parallel.nnodes}: {fault}")
    if fault := plain_dp_nodes(sizes):
        raise ConfigError(
            f"--nnodes {parallel.nnodes}: {fault}; engines with weights of their own are a server "
            "on each node, and a router before them"
        )
    check_ports(parallel.nccl_port, sizes.tp * sizes.pp // parallel.nnodes)
    if parallel.use_ray and not parallel.node_rank:
        if parallel.dist_init_addr is not None:
            address(parallel.dist_init_addr)
        return []  # Ray says where node 0 is, and brings the key to the others
    if parallel.dist_init_addr is None and parallel.use_ray:
        raise ConfigError(
            f"--node-rank {parallel.node_rank}: with --use-ray only the first node is started by "
            "hand; Ray starts the others"
        )
    if parallel.dist_init_addr is None:
        raise ConfigError(
            f"--nnodes {parallel.nnodes} needs --dist-init-addr HOST:PORT, the same on all nodes: "
            "where node 0 expects the others"
        )
    host, _ = address(parallel.dist_init_addr)
    # The last one is of `vivace check` alone: a server's parsing takes keys out of there.
    known = parallel.cluster_key or parallel.cluster_key_file or CLUSTER_KEY in options.environment
    if not known and not loopback(host):
        raise ConfigError(
            f"--dist-init-addr {parallel.dist_init_addr} can be reached from other machines, and "
            f"nodes know each other by a key: {MAKE_A_KEY}"
        )
    return []


def check_ports(first: int | None, ranks: int) -> None:
    """Of a node that has so many ranks. Raises ConfigError."""
    if first is not None and first + ranks - 1 > LAST_PORT:
        raise ConfigError(
            f"--nccl-port {first}: the {ranks} ranks of this node would take ports {first} to "
            f"{first + ranks - 1}, and the last one is {LAST_PORT}; give {LAST_PORT + 1 - ranks} "
            "or less"
        )


def alone(options: Options) -> list[str]:
    """Of options that are about several nodes where there is one."""
    if options.parallel.node_rank:
        raise ConfigError(
            f"--node-rank {options.parallel.node_rank} needs --nnodes, the number of machines"
        )
    about = ("dist_init_addr", "nccl_port", "dist_timeout", "cluster_key_file")
    return [
        f"--{name.replace('_', '-')} has no effect: there is one machine (--nnodes)"
        for name in about
        if name in options.given
    ]


def address(text: str, name: str = "--dist-init-addr") -> tuple[str, int]:
    """host:port, [IPv6]:port; `name`: of what it is. Raises ConfigError."""
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or (":" in bare and bare == host) or not port.isdecimal():
        raise ConfigError(f"{name} {text}: must be HOST:PORT, as 10.0.0.1:5000 or [fd00::1]:5000")
    if not 1 <= int(port) <= LAST_PORT:
        raise ConfigError(f"{name} {text}: ports are 1 to {LAST_PORT}")
    return bare, int(port)


def kernels_of_nodes(options: Options, context: ResolveContext) -> list[str]:
    """After the rules."""
    if options.parallel.nnodes > 1 and options.runtime.disable_cpu_kernels:
        reason = why_no_kernels(options, context) or "--disable-cpu-kernels was given"
        raise ConfigError(
            f"--nnodes {options.parallel.nnodes} needs the native kernels, and {reason}; torch's "
            "gloo would take orders from whoever connects"
        )
    return []


def comparable(config: Config) -> dict[str, str]:
    """Option -> value, in words: what every node must be told alike. Of what the rules decided what
    was asked counts, but for what the ranks cannot differ in."""
    shown = public(config)
    for rewrite in reversed(config.rewrites):
        if rewrite.field in shown and rewrite.field not in MUST_RUN_ALIKE:
            shown[rewrite.field] = rewrite.before
    compared = [
        option.name
        for option in all_options()
        if option.slice_name not in OWN_SLICES and option.name not in OWN and not option.secret
    ]
    return {name: in_words(shown[name]) for name in compared if name in shown}


def in_words(value: Any) -> str:
    return "unset" if value is None else json.dumps(value, sort_keys=True)


MUST_RUN_ALIKE = ("dtype", "kv_cache_dtype", "disable_cpu_kernels", "activation_dtype")


def difference(node: int, theirs: Mapping[str, str], ours: Mapping[str, str]) -> list[str]:
    """One line for each option in which a node differs from the first one."""
    return [
        f"--{name.replace('_', '-')}: {theirs.get(name, 'unknown')} on node {node}, "
        f"{ours.get(name, 'unknown')} on node 0"
        for name in sorted(theirs.keys() | ours.keys())
        if theirs.get(name) != ours.get(name)
    ]
