"""A service of a docker-compose file: its variables, its devices, and what is not read of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from vivace.deploy.shell.interpreter import Follow
from vivace.deploy.shell.strings import variables_in
from vivace.deploy.shell.wrappers import published_ports

INTERPOLATED = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)(?::?-([^}]*))?[^}]*\}|\$([A-Za-z_]\w*)")
DEVICES = "NVIDIA_VISIBLE_DEVICES"
"""what NVIDIA's runtime makes of `device_ids`"""
NOT_READ = ("extends", "include", "configs", "secrets")


class ServiceEnvironment(msgspec.Struct):
    """`files`: those that were read, by name; `notes`: what was not."""

    variables: dict[str, str] = {}
    files: dict[str, str] = {}
    notes: list[str] = []


def read_environment(content: Mapping[str, Any], follow: Follow) -> ServiceEnvironment:
    """Variables of env files come first, then the service's own."""
    found = ServiceEnvironment()
    for entry in as_list(content.get("env_file")):
        path = str(entry.get("path")) if isinstance(entry, Mapping) else str(entry)
        opened = follow(path.removeprefix("./"))
        if opened is None:
            found.notes.append(f"env_file {path} is not beside this file: what it sets is unknown")
            continue
        found.files[opened[0]] = opened[1]
        found.variables |= {
            name: interpolate(value) for name, value in variables_in(opened[1]).items()
        }
    listed = content.get("environment") or {}
    pairs = (
        listed.items()
        if isinstance(listed, Mapping)
        else (str(each).partition("=")[::2] for each in as_list(listed))
    )
    found.variables |= {
        str(key): interpolate(str(value)) if value not in ("", None) else f"<{key}>"
        for key, value in pairs
        if str(key).isidentifier()
    }
    devices = read_devices(content)
    if devices:
        found.variables.setdefault(DEVICES, ",".join(devices))
    found.notes += [f"{key} of a service is not read" for key in NOT_READ if content.get(key)]
    return found


def read_devices(content: Mapping[str, Any]) -> list[str]:
    """deploy.resources.reservations.devices[].device_ids"""
    at: Any = content
    for key in ("deploy", "resources", "reservations", "devices"):
        at = at.get(key) if isinstance(at, Mapping) else None
    return [
        interpolate(str(each))
        for device in as_list(at)
        if isinstance(device, Mapping) and device.get("driver") in (None, "nvidia")
        for each in as_list(device.get("device_ids"))
    ]


def service_ports(content: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """(first, how many) of TCP, on all addresses."""
    for entry in as_list(content.get("ports")):
        text = interpolate(str(entry))
        if isinstance(entry, Mapping):
            own = entry.get("host_ip") or entry.get("protocol", "tcp") != "tcp"
            text = "" if own else f"{entry.get('published')}:{entry.get('target')}"
        if found := published_ports(text):
            yield found


def find_machine(file: str, content: Mapping[str, Any]) -> str:
    """Services without a place of their own run on one machine; so do those of a profile."""
    deploy = content.get("deploy")
    if isinstance(deploy, Mapping) and deploy.get("placement"):
        return ""
    return " ".join([file, *sorted(map(str, as_list(content.get("profiles"))))])


def as_list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return [] if value is None else [value]


def interpolate(word: str) -> str:
    """${NAME:-default} of a compose file."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return "$" if name is None else match[2] if match[2] is not None else f"<{name}>"

    return INTERPOLATED.sub(value, word)
