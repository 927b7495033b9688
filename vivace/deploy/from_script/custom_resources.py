"""Containers that resources of Dynamo and llmaz describe in their own way: command and args outside
of a pod's list of containers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from vivace.deploy.from_script.yaml_nodes import child, plain

TEMPLATED = re.compile(r"\{\{-?\s*\.?([\w.]+)\s*-?\}\}")
BACKENDS = {
    "sglang": ("python3", "-m", "sglang.launch_server", "--model-path", "<modelClaim>"),
    "vllm": ("vllm", "serve", "<modelClaim>"),
}
"""llmaz's name of a backend -> what it starts for a Playground, before the args of its own"""


def is_container(node: yaml.Node) -> bool:
    """Whether a mapping has a container's command or args, as `mainContainer` of a
    DynamoGraphDeployment, `backendRuntimeConfig` of a Playground, `spec` of a BackendRuntime."""
    return any(isinstance(child(node, key), yaml.SequenceNode) for key in ("command", "args"))


def given_words(content: Mapping[str, Any], more: Sequence[str]) -> list[str]:
    """The command and args of such a mapping, with the program that its backend has and `more`
    behind; of a BackendRuntime with the args of its first configuration."""
    words = [*BACKENDS.get(str(content.get("backendName")), ())]
    configs = content.get("recommendedConfigs")
    first = configs[0] if isinstance(configs, list) and configs else {}
    for holder in (content, first if isinstance(first, Mapping) else {}):
        for key in ("command", "args"):
            listed = holder.get(key)
            words += [str(each) for each in listed] if isinstance(listed, list) else []
    words = [TEMPLATED.sub(r"<\1>", word) for word in words]
    if "-c" in words[1:2] and more:
        return [*words[:-1], f"{words[-1].rstrip()} {shlex.join(more)}"]
    return [*words, *more]


def count_nodes(service: yaml.Node) -> int | None:
    """Of each replica of a service of Dynamo, or of a role that is a LeaderWorkerSet."""
    count = plain(child(service, "multinode", "nodeCount"))
    count = plain(child(service, "leaderWorkerSet", "size")) if count is None else count
    return max(count, 1) if isinstance(count, int) else None


def node_words(pod: int, nodes: int) -> list[str]:
    """What Dynamo's operator adds for a service of several nodes."""
    if nodes == 1:
        return []
    leader = f"<leader {pod // nodes}>:29500"
    return ["--nnodes", str(nodes), "--node-rank", str(pod % nodes), "--dist-init-addr", leader]
