"""One bash script for each process."""

from __future__ import annotations

from collections.abc import Mapping

from vivace.deploy.quoting import command_lines, quote
from vivace.deploy.render.process import Process, list_processes
from vivace.deploy.schema.deployment import Deployment

OWN_SHELL = ("source ", ". ", "ulimit ")
"""lines of the preparation that hold for the shell that runs them"""
WARNING = "Written by `vivace deploy render`: change the deployment file instead."


def render_shell(deployment: Deployment) -> dict[str, str]:
    """File name -> content."""
    return {
        f"{process.name}.sh": script(deployment, process) for process in list_processes(deployment)
    }


def script(deployment: Deployment, process: Process) -> str:
    """A script that starts the process, on its own host only where that is known."""
    lines = ["#!/usr/bin/env bash", f"# {process.title}", f"# {WARNING}", ""]
    lines += settings(deployment, process)
    lines += start_lines(process)
    return "\n".join(lines) + "\n"


def settings(deployment: Deployment, process: Process) -> list[str]:
    """Preparation and environment."""
    lines = list(deployment.prepare) if process.kind != "benchmark" else []
    lines += [f"unset {quote(name)}" for name in deployment.unset]
    lines += [
        f"export {name}={quote(value)}" for name, value in ordered_by_use(process.environment)
    ]
    return [*lines, ""] if lines else []


def ordered_by_use(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Values that use a variable come before that variable is set."""
    return sorted(environment.items(), key=lambda item: is_used(item[0], environment))


def is_used(name: str, environment: Mapping[str, str]) -> bool:
    """Whether another value has the one that the machine knows."""
    others = [value for other, value in environment.items() if other != name]
    return any(f"<${name}>" in value or f"<${{{name}}}>" in value for value in others)


def start_lines(process: Process) -> list[str]:
    if process.host is None:
        return [command_lines(["exec", *process.words], "")]
    return [
        "for address in $(hostname -I) $(hostname); do",
        f'    if [[ "$address" == {quote(process.host)} ]]; then',
        command_lines(["exec", *process.words], "        "),
        "    fi",
        "done",
        f"echo {quote(f'this node is not {process.host}: nothing was started')} >&2",
        "exit 1",
    ]


def inline(deployment: Deployment, process: Process) -> str:
    """The same for a container: without host check, of the preparation what its shell needs."""
    lines = shell_lines(deployment, process)
    return "\n".join([*lines, command_lines(["exec", *process.words], "")])


def shell_lines(deployment: Deployment, process: Process) -> list[str]:
    """What the shell of a container does first: it has the variables that need no shell."""
    lines = [line for line in deployment.prepare if line.startswith(OWN_SHELL)]
    lines += [f"unset {quote(name)}" for name in deployment.unset]
    plain = plain_environment(process)
    lines += [
        f"export {name}={quote(value)}"
        for name, value in ordered_by_use(process.environment)
        if name not in plain
    ]
    return lines


def node_settings(deployment: Deployment) -> str:
    """The rest of the preparation: lines that set something of the node."""
    return "\n".join(line for line in deployment.prepare if not line.startswith(OWN_SHELL))


def plain_environment(process: Process) -> dict[str, str]:
    """Variables whose values do not depend on the machine, and whose names stand in no such value:
    it would see them in place of the machine's own."""
    own = process.environment
    return {
        name: value for name, value in own.items() if "<$" not in value and not is_used(name, own)
    }
