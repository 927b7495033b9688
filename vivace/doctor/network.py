"""Probes of names, interfaces and proxies."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.doctor.diagnosis import Diagnosis, ProbeOptions
from vivace.doctor.system import System

PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
LOCAL_HOSTS = ("127.0.0.1", "localhost")


def proxies(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    found = [name for name in PROXIES if system.environment.get(name)]
    no_proxy = system.environment.get("no_proxy") or system.environment.get("NO_PROXY") or ""
    if not found:
        yield Diagnosis(name="proxies", state="ok", found="none set")
    elif all(name in no_proxy for name in LOCAL_HOSTS) or no_proxy.strip() == "*":
        yield Diagnosis(
            name="proxies", state="note", found=f"{', '.join(found)}; no_proxy={no_proxy}"
        )
    else:
        yield Diagnosis(
            name="proxies",
            state="warning",
            found=", ".join(f"{name}={system.environment[name]}" for name in found),
            why="calls between servers go to the proxy: registration hangs, health checks fail",
            mend=f"unset {' '.join(found)}",
        )


def host_address(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    name = system.hostname()
    found = system.addresses(name)
    real = [each for each in found if not each.startswith(("127.", "::1"))]
    if real:
        yield Diagnosis(name="address", state="ok", found=f"{name} is {', '.join(real)}")
    else:
        shown = ", ".join(found) or "no address"
        yield Diagnosis(
            name="address",
            state="warning",
            found=f"{name} is {shown}",
            why="other nodes cannot reach a server that binds to its own name",
            mend=f"add the node's address and {name} to /etc/hosts, or give --host the address",
        )


def interfaces(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    present = {path.name: path for path in system.find("/sys/class/net/*")}
    named = {
        name: system.environment.get(name, "")
        for name in ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    }
    wanted = dict.fromkeys([*options.interfaces, *(value for value in named.values() if value)])
    missing = [name for name in wanted if name not in present]
    if missing:
        yield Diagnosis(
            name="interfaces",
            state="error",
            found=f"no {', '.join(missing)}; there are {', '.join(present) or 'none'}",
            why="ranks do not find one another",
            mend="export HCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to one of them",
        )
        return
    up = [name for name in present if link_state(system, name) == "up"]
    shown = ", ".join(f"{name}{link_speed(system, name)}" for name in up)
    yield Diagnosis(name="interfaces", state="ok", found=shown or "only the loopback is up")


def link_state(system: System, name: str) -> str:
    return system.read(f"/sys/class/net/{name}/operstate") or ""


def link_speed(system: System, name: str) -> str:
    """Megabits a second, where the driver says."""
    value = system.read(f"/sys/class/net/{name}/speed") or ""
    return f" ({int(value) / 1000:g} Gbit/s)" if value.isdecimal() and int(value) > 0 else ""


def clock(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    answer = system.run(["timedatectl", "show", "--property", "NTPSynchronized", "--value"])
    if answer == "yes" or system.read("/run/systemd/timesync/synchronized") is not None:
        yield Diagnosis(name="clock", state="ok", found="synchronized")
    elif answer == "no":
        yield Diagnosis(
            name="clock",
            state="warning",
            found="not synchronized",
            why="latencies across nodes and log lines do not fit together",
            mend="timedatectl set-ntp true",
        )
    else:
        yield Diagnosis(name="clock", state="unknown", found="cannot tell (in a container?)")


PROBES = (proxies, host_address, interfaces, clock)
