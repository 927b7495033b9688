"""Tasks of SkyPilot -> what each of their nodes runs."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from vivace.deploy.from_script.container import Container, image_release, to_script
from vivace.deploy.from_script.yaml_nodes import child, plain
from vivace.deploy.locations import Location


def of_task(file: str, task: yaml.Node) -> Iterator[Container]:
    """`setup` runs in a shell of its own before `run`; both see `envs` and `secrets`, which the
    command line fills in where they have no value."""
    content = plain(task)
    nodes = content.get("num_nodes")
    nodes = nodes if isinstance(nodes, int) and 0 < nodes < 128 else 1
    variables = {"SKYPILOT_NUM_NODES": str(nodes)}
    for key in ("envs", "secrets"):
        given = content.get(key)
        for name, value in given.items() if isinstance(given, dict) else ():
            if str(name).isidentifier():
                variables[str(name)] = f"<{name}>" if value is None else str(value)
    resources = content.get("resources")
    image = resources.get("image_id") if isinstance(resources, dict) else ""
    setup, run = (str(content.get(key) or "") for key in ("setup", "run"))
    script = (f"(\n{setup}\n)\n" if setup.strip() else "") + run + "\n"
    node = child(task, "run") or task
    for rank in range(nodes):
        yield Container(
            script=to_script({**variables, "SKYPILOT_NODE_RANK": str(rank)}, []) + script,
            place=Location(file, node.start_mark.line + 1, node.end_mark.line),
            pod=rank,
            contained=False,
            machine=f"{file} {rank}",
            release=image_release(str(image or "")),
        )
