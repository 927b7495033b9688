"""Rules about addresses and ports at which others look for a server."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vivace.deploy.case import Case
from vivace.deploy.from_script.programs import SERVERS
from vivace.deploy.from_script.roles import AskedPort, StartedServer, flag_value, node_rank
from vivace.deploy.processes import (
    EVERYWHERE,
    LOOPBACK,
    Instance,
    instances,
    listen_address,
    listeners,
    nnodes,
    rendezvous,
    where,
)
from vivace.deploy.rules.hosts import issue_at
from vivace.deploy.rules.rule import Issue, case_rule

KUBERNETES = "Kubernetes and Docker on probes, Services and health checks"
NUMERIC = re.compile(r"[\d.]+|[0-9a-fA-F:\[\]]*:[0-9a-fA-F:\[\]]*")
IN_ADDRESS = re.compile(r":(\d{1,5})\b")
METRICS = 29000
"""port of a router's metrics, if nothing is given"""
PORT_FLAG = re.compile(r"(?:.*-)?port")


@case_rule("port-answered", "error", source=KUBERNETES)
def port_answered(case: Case) -> Iterator[Issue]:
    """Probes and Services ask a port on which the server listens.
    A probe that nobody answers has the container restarted, or never ready; a Service leads to
    connections that are refused. Both come to the pod's address, where a server on 127.0.0.1 (the
    default of SGLang and Vivace) does not listen. Where something else runs beside the server, it
    may be that which answers: a warning."""
    reported: set[AskedPort] = set()
    for asked in case.asked:
        key = AskedPort(asked.asker, asked.port, (), asked.place)
        found = [each for each in case.launches if each.network in asked.networks]
        ports = [open_ports(each) for each in found]
        known = [port for each in ports if each is not None for port in each]
        within = asked.outside and all(map(listens_within, found))
        if not found or None in ports or key in reported or (asked.port in known and not within):
            continue
        reported.add(key)
        listed = ", ".join(map(str, sorted(set(known))[:8]))
        text = f"{asked.asker} asks port {asked.port}, but the server listens on {listed}"
        remedy = f"port {known[0]} there, or --port {asked.port}"
        if asked.port in known:
            text = f"{asked.asker} asks the pod's address, but the server listens on 127.0.0.1 only"
            remedy = "--host 0.0.0.0"
        severity = "warning" if case.shared & set(asked.networks) else None
        place = asked.place
        yield Issue("port", text, remedy, severity, line=place.line, file=place.file)


def listens_within(process: StartedServer) -> bool:
    """Whether it listens on its own machine only: --host, or the default, which no file of
    --config changes."""
    host = flag_value(process.flags, "host")
    if host is None:
        return process.program in SERVERS and not flag_value(process.flags, "config")
    return str(host) in LOOPBACK


def open_ports(process: StartedServer) -> list[int] | None:
    """None where one of them is not known."""
    found = [port + more for _, port, count in listeners(process) for more in range(count)]
    texts = [*process.flags.values(), *process.environment.values()]
    found += [int(port) for text in texts for port in IN_ADDRESS.findall(str(text)[:4096])]
    if process.kind == "router":
        found.append(METRICS)
    for flag, value in process.flags.items():
        if PORT_FLAG.fullmatch(flag):
            if not isinstance(value, int):
                return None
            found.append(value)
    return found


@case_rule("meeting-host", "warning", source="torch.distributed's TCPStore; DNS of Kubernetes")
def meeting_host(case: Case) -> Iterator[Issue]:
    """The host in --dist-init-addr is the node of rank 0.
    All ranks connect to the store that rank 0 opens. A name that leads to another rank, or to
    nobody, hangs them all; a host may have names and addresses that the files do not tell: then it
    is a warning."""
    for instance in instances(case):
        ranks = sorted(rank for each in instance if (rank := node_rank(each.flags)) is not None)
        first = next((each for each in instance if node_rank(each.flags) == 0), None)
        meeting = None if first is None else rendezvous(first)
        if first is None or meeting is None or len(ranks) != nnodes(first):
            continue
        if ranks != list(range(len(ranks))):
            continue
        host = meeting[0]
        if host in (*EVERYWHERE, *LOOPBACK) or any(sign in host for sign in "<{$"):
            continue
        issue = unreachable(first, host, instance, case)
        if issue is not None:
            yield issue


def unreachable(first: StartedServer, host: str, instance: Instance, case: Case) -> Issue | None:
    """What is wrong with the host at which an instance meets; None where it may be right."""
    numeric = NUMERIC.fullmatch(host) is not None
    named = [find_names(each, numeric) for each in instance]
    if not all(named) or any(leads_to(host, name) for name in find_names(first, numeric)):
        return None
    own = ", ".join(find_names(first, numeric))
    remedy = f"--dist-init-addr {find_names(first, numeric)[0]}:PORT"
    for process in instance:
        if first.names and any(leads_to(host, name) for name in find_names(process, numeric)):
            text = f"{host} is rank {node_rank(process.flags)}; rank 0 is {own}"
            return issue_at(first, case, "--dist-init-addr", text, remedy, "error")
    text = f"{host} is no node that is known: rank 0 is {own} ({where(first)})"
    certain = not numeric and all(each.names and each.closed for each in instance)
    severity = "error" if certain else None
    return issue_at(first, case, "--dist-init-addr", text, remedy, severity)


def find_names(process: StartedServer, numeric: bool) -> list[str]:
    """Its addresses, or its names."""
    found = (process.host or "", listen_address(process), *process.names)
    known = (each for each in dict.fromkeys(found) if each and not any(c in each for c in "<{$"))
    return [each for each in known if (NUMERIC.fullmatch(each) is not None) is numeric]


def leads_to(host: str, name: str) -> bool:
    """`node-0.set` leads to `node-0.set`, and so does `node-0.set.space.svc`; a short name leads to
    all that begin with it, and the other way round."""
    one, other = host.lower().split("."), name.lower().split(".")
    length = min(len(one), len(other))
    return one[:length] == other[:length]


@case_rule("port-in-loop", "warning", source="TCP")
def port_in_loop(case: Case) -> Iterator[Issue]:
    """Every round of a loop starts its server on a port of its own.
    From the second round on the server stops with `address already in use`. How many rounds there
    are only the machine knows: a warning."""
    from msgspec.structs import replace

    for process in case.launches:
        again = listeners(replace(process, flags=process.again)) if process.again else []
        for flag, port, _ in listeners(process):
            if process.again and (flag, port) in [each[:2] for each in again]:
                text = f"{flag}: every round of this loop takes port {port}"
                yield issue_at(process, case, flag, text, "count it up with the rounds")
                break
