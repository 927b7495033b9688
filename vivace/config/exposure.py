"""Who can reach a server: its address, keys, and what browsers say of themselves."""

from __future__ import annotations

import ipaddress
import re

from vivace.config.config import Options
from vivace.config.errors import ConfigError

NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*", re.I)
ORIGIN = re.compile(r"(https?)://(\[[^]/]*\]|[^]\[:/]*)(?::([1-9][0-9]{0,4}))?", re.I)
DEFAULT_PORTS = {"http": "80", "https": "443"}


def exposure(options: Options) -> list[str]:
    """A server that others can reach needs a key, or somebody who says that it needs none."""
    http = options.http
    name, _, port = http.host.rpartition(":")
    if port.isdecimal() and name and ":" not in name:
        raise ConfigError(f"--host {http.host} has a port; give --host {name} --port {port}")
    if loopback(http.host) or http.keys:
        return []
    if not http.insecure:
        raise ConfigError(
            f"--host {http.host} can be reached from other machines and there is no --api-key; "
            "set one (or --api-key-file), or add --insecure when the network is trusted"
        )
    return [f"--insecure: everybody who reaches {http.host} may use this server without a key"]


def origins(options: Options) -> list[str]:
    """--allowed-origins: scheme, name and port, as browsers write them."""
    for origin in options.http.allowed_origins or ():
        if origin != "*" and (reason := why_no_origin(origin)):
            raise ConfigError(f"--allowed-origins {origin}: {reason}")
    return []


def why_no_origin(text: str) -> str | None:
    parts = ORIGIN.fullmatch(text)
    if parts is None or not is_name(parts[2]):
        return "must be an origin such as https://ui.example:8080, or *"
    if parts[3] == DEFAULT_PORTS[parts[1].lower()]:
        return f"browsers leave the usual port out; so do here: {text.rpartition(':')[0]}"
    return "ports go up to 65535" if int(parts[3] or 0) > 65535 else None


def hosts(options: Options) -> list[str]:
    """--allowed-hosts: names alone, to which a Host header without its port is compared."""
    for host in options.http.allowed_hosts or ():
        if host != "*" and not is_name(host):
            raise ConfigError(
                f"--allowed-hosts {host}: must be a host name such as llm.example, or *, without "
                "scheme, port and path (every port of the name is allowed)"
            )
    return []


def is_name(text: str) -> bool:
    """A name or an address, as it stands in URLs."""
    if not text.startswith("["):
        return NAME.fullmatch(text) is not None
    try:
        return bool(text.endswith("]") and ipaddress.IPv6Address(text[1:-1]))
    except ValueError:
        return False


def loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
