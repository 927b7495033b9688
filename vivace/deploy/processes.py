"""Processes as scripts start them: their nodes, the ports they listen on, the devices they use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from vivace.deploy.case import Case
from vivace.deploy.from_script.programs import SERVERS, default_port
from vivace.deploy.from_script.roles import StartedServer, flag_value, node_rank
from vivace.deploy.locations import Location
from vivace.deploy.server_plan import ServerPlan

BOOTSTRAP = 8998
"""port where a prefill server is found, if nothing is given"""
STORE = "ASCEND_MF_STORE_URL"
"""where the first prefill node opens the store of the ascend transport"""
ZMQ_DELTA = 233
"""from --port to the rendezvous port that dp attention uses where none is given"""
ZMQ_PORTS = 5
"""ports behind the rendezvous port: detokenizer, RPC, metrics, scheduler"""
HCCL_PORTS = 16
ADDRESS = re.compile(r"(.*):(\d{1,5})")
PORT = re.compile(r":(\d{1,5})(?:/|$)")
"""of a URL"""
HOST = re.compile(r"(?:\w+://)?(\[[^]]*\]|[^:/]+)")
IN_ADDRESS = re.compile(r":(\d{1,5})\b")
METRICS = 29000
"""port of a router's metrics, if nothing is given"""
PORT_FLAG = re.compile(r"(?:.*-)?port")
NUMERIC = re.compile(r"[\d.]+|[0-9a-fA-F:\[\]]*:[0-9a-fA-F:\[\]]*")
EVERYWHERE = ("0.0.0.0", "::", "[::]")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
VISIBLE = ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES",
           "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")  # fmt: skip
CONTAINED = "NVIDIA_VISIBLE_DEVICES"
IN_COMPOSE = {CONTAINED: "device_ids"}
"""what a variable is called in a compose file"""
PUBLISHING = ("ports", "-p")
"""how compose files and `docker run` call it"""
NAMED_DEVICES = ("all", "none", "void")
Instance = list[StartedServer]


def role_name(process: StartedServer, case: Case) -> str:
    named = process.instance.rpartition(" ")[0]
    if named:
        return named
    roles = case.sources.roles
    return next((name for name in roles if process.place in roles[name]), process.kind)


def where(process: StartedServer) -> str:
    """Its host, else where its command stands."""
    if process.host is not None:
        return process.host
    place = process.place
    return f"{place.file}:{place.line}" if place.line else process.instance or "a node"


def flag_number(process: StartedServer, name: str, default: int = 1) -> int | None:
    """None for a value that only the machine knows."""
    value = flag_value(process.flags, name)
    if value is None:
        return default
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def nnodes(process: StartedServer) -> int:
    return max(1, flag_number(process, "nnodes") or 1)


def rendezvous(process: StartedServer) -> tuple[str, int] | None:
    """(host, port) of --dist-init-addr."""
    found = ADDRESS.fullmatch(str(flag_value(process.flags, "dist-init-addr") or ""))
    return (found[1], int(found[2])) if found else None


def instances(case: Case) -> list[Instance]:
    """The nodes of each instance of several nodes. Those with one rendezvous address belong
    together; where that leaves gaps, all of a kind that make up one instance do."""
    by_kind: dict[tuple[str, ...], Instance] = {}
    for process in case.processes:
        if process.kind != "router" and (nnodes(process) > 1 or process.instance):
            key = process.kind, process.program, process.instance
            by_kind.setdefault(key, []).append(process)
    found: list[Instance] = []
    for members in by_kind.values():
        size = max(nnodes(each) for each in members)
        by_address: dict[str, Instance] = {}
        for each in members:
            address = str(flag_value(each.flags, "dist-init-addr") or "")
            by_address.setdefault(address, []).append(each)
        for address in [name for name, group in by_address.items() if len(group) > size]:
            for each in by_address.pop(address):
                by_address.setdefault(f"{address} {each.stops}", []).append(each)
        whole = all(len(each) == size for each in by_address.values())
        found += [members] if len(members) <= size and not whole else by_address.values()
    return [each for each in found if max(nnodes(one) for one in each) > 1]


def first_ranks(case: Case) -> list[StartedServer]:
    return [each for each in case.processes if (node_rank(each.flags) or 0) == 0]


def networks(case: Case) -> Iterator[tuple[StartedServer, list[tuple[str, int, int]]]]:
    """First ranks with their `listeners`; of a container also what its machine publishes for it."""
    for process in first_ranks(case):
        yield process, listeners(process)
        if process.contained and process.published:
            outside = replace(process, contained=False)
            flag = PUBLISHING[0 if process.network else 1]
            yield outside, [(flag, *each) for each in dict.fromkeys(process.published)]


def listeners(process: StartedServer) -> list[tuple[str, int, int]]:
    """(flag, port, how many from it on) that a process listens on."""
    found = [("--port", flag_number(process, "port", default_port(process.program)), 1)]
    if process.kind == "router":
        given = flag_number(process, "prometheus-port", 0)
        return known_ports([*found, ("--prometheus-port", given, 1)])
    if process.kind == "prefill":
        bootstrap = flag_number(process, "disaggregation-bootstrap-port", BOOTSTRAP)
        found.append(("--disaggregation-bootstrap-port", bootstrap, 1))
        store = process.environment.get(STORE, "")
        if process.host and url_host(store) == process.host:
            found.append((STORE, url_port(store), 1))
    found.append(("--nccl-port", flag_number(process, "nccl-port", 0), 1))
    meeting = rendezvous(process)
    attention = bool(flag_value(process.flags, "enable-dp-attention"))
    if meeting is not None:
        found.append(("--dist-init-addr", meeting[1], 1 + ZMQ_PORTS if attention else 1))
    elif attention and found[0][1] is not None:
        found.append(("--enable-dp-attention", found[0][1] + ZMQ_DELTA, 1 + ZMQ_PORTS))
    base = process.environment.get("HCCL_IF_BASE_PORT", "")
    if base.isdecimal() and len(base) < 6:
        found.append(("HCCL_IF_BASE_PORT", int(base), HCCL_PORTS))
    return known_ports(found)


def known_ports(found: list[tuple[str, int | None, int]]) -> list[tuple[str, int, int]]:
    return [(flag, port, count) for flag, port, count in found if port]


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


def same_host(one: StartedServer, other: StartedServer) -> bool:
    """Whether both listen on one machine, as far as their addresses or their script say so."""
    if one.contained or other.contained or one.stops != other.stops:
        return False
    hosts = one.host or listen_address(one), other.host or listen_address(other)
    if hosts[0] and hosts[0] == hosts[1] and (hosts[0] not in LOOPBACK or one.instance):
        return True
    return one.runs_with(other)


def listen_address(process: StartedServer) -> str:
    """--host where it names one machine."""
    host = str(flag_value(process.flags, "host") or "")
    return "" if "<" in host or "{" in host or host in EVERYWHERE else host


def find_names(process: StartedServer, numeric: bool) -> list[str]:
    """Its addresses, or its names."""
    found = (process.host or "", listen_address(process), *process.names)
    known = (each for each in dict.fromkeys(found) if each and not any(c in each for c in "<{$"))
    return [each for each in known if (NUMERIC.fullmatch(each) is not None) is numeric]


def is_address(host: str) -> bool:
    """Whether a server may listen there; what is not known may be one."""
    bare = host.partition("%")[0]  # fe80::1%eth0
    return NUMERIC.fullmatch(bare) is not None or not re.search(r"[\s,;/:]", host) or "<" in host


def leads_to(host: str, name: str) -> bool:
    """`node-0.set` leads to `node-0.set`, and so does `node-0.set.space.svc`; a short name leads to
    all that begin with it, and the other way round."""
    one, other = host.lower().split("."), name.lower().split(".")
    length = min(len(one), len(other))
    return one[:length] == other[:length]


def visible_devices(process: StartedServer) -> tuple[str, list[str]] | None:
    """(the variable, the devices it lists); None where all are to be seen. A container numbers its
    own from 0."""
    found = {name: split_devices(process.environment.get(name, "")) for name in VISIBLE}
    outer = found.pop(CONTAINED)
    name = next((name for name, devices in found.items() if devices), "")
    if not name:
        return (CONTAINED, outer) if outer else None
    inner = found[name]
    if outer and all(each.isdecimal() and int(each) < len(outer) for each in inner):
        inner = [outer[int(each)] for each in inner]
    return name, inner


def split_devices(value: str) -> list[str]:
    if "<" in value or value in NAMED_DEVICES:
        return []
    return [each.strip() for each in value.split(",") if each.strip()]


def ranks_here(process: StartedServer) -> int | None:
    """Devices that a process uses on its node; None if a size is unknown."""
    sizes = [flag_number(process, name) for name in ("tp-size", "pp-size", "dp-size")]
    if any(size is None or size < 1 for size in sizes):
        return None
    tp, pp, dp = (size or 1 for size in sizes)
    replicas = 1 if flag_value(process.flags, "enable-dp-attention") else dp
    return -(-tp * pp * replicas // nnodes(process))


def used_devices(process: StartedServer) -> list[str]:
    """Names of the devices that a process uses, as its node counts them; empty if unknown."""
    count, base = ranks_here(process), flag_number(process, "base-gpu-id", 0)
    step = flag_number(process, "gpu-id-step")
    if count is None or base is None or not step or count > 4096:
        return []
    indices = [base + rank * step for rank in range(count)]
    seen = visible_devices(process)
    if seen is None:
        return [str(index) for index in indices]
    return [seen[1][index] for index in indices if index < len(seen[1])]


def devices_divided(host: str, case: Case) -> bool:
    """Whether the roles of a deployment file that share a host use different devices of it."""
    here = [each for each in case.processes if each.host == host and each.kind != "router"]
    used = [used_devices(each) for each in here]
    apart = all(used) and len({name for names in used for name in names}) == sum(map(len, used))
    return apart and not case.launches


def memory_share(process: StartedServer) -> float:
    value = flag_value(process.flags, "mem-fraction-static")
    return value if isinstance(value, float) else 1.0


def bootstrap_ports(case: Case) -> list[Any]:
    """Of every prefill instance."""
    return [
        node.flags.get("disaggregation-bootstrap-port", BOOTSTRAP)
        for server in case.of("prefill")
        for node in server.nodes
        if node.rank == 0
    ]


def router_entries(server: ServerPlan, kind: str) -> list[Any] | None:
    """Of --prefill or --decode; none where only the other is given, which the router refuses. None
    where servers come from elsewhere."""
    flags = server.role.flags
    given = flags.get(kind)
    if given is None and (flags.get("prefill") or flags.get("decode")):
        return None if flags.get("service-discovery") else []
    return given if isinstance(given, list) else None


def entry_ports(entries: list[Any], case: Case) -> list[Any]:
    """The bootstrap port of each --prefill entry of a router. Where it names none, decode servers
    take that of their own flag; None where that, or one of the servers', is not known."""
    own = {flag_number(each, "disaggregation-bootstrap-port", BOOTSTRAP)
           for each in case.processes if each.kind == "decode"}  # fmt: skip
    known = len(own) == 1 and all(isinstance(port, int) for port in bootstrap_ports(case))
    default = own.pop() if known else None
    return [each[1] if isinstance(each, list) and len(each) > 1 else default for each in entries]


def unreached(urls: list[str], router: ServerPlan | None, case: Case, *kinds: str) -> Iterator[str]:
    """URLs with the host of none of these servers, where all have addresses that are known, and
    these are what they listen on or another URL has one; with that of the router's own container,
    whose network none of them is in."""
    servers = [each for each in case.processes if each.kind in kinds]
    names = [find_names(each, numeric=True) for each in servers]
    hosts = {name for found in names for name in found}
    told = all(map(listen_address, servers)) or any(url_host(url) in hosts for url in urls)
    own = [each for each in case.processes if router and role_name(each, case) == router.name]
    networks = {"", *(each.network for each in own)}
    inside = bool(own) and all(each.contained for each in own)
    apart = inside and not any(each.network in networks for each in servers)
    for url in urls if servers else ():
        host = url_host(url)
        strange = NUMERIC.fullmatch(host) is not None and host not in (*hosts, *LOOPBACK)
        if (strange and all(names) and (told or router is None)) or (host in LOOPBACK and apart):
            yield url


def entry_place(case: Case, server: ServerPlan, flag: str, url: str) -> Location:
    """Of one URL of many; of the flag where it is not written out."""
    found = case.sources.find(server.name, url)
    written = found != case.sources.role_place(server.name)
    return found if written else case.sources.find(server.name, flag)


def join_ports(ports: list[Any]) -> str:
    return ", ".join("none" if port is None else str(port) for port in ports)


def listens(process: StartedServer, port: int | None) -> bool:
    return (flag_value(process.flags, "port") or default_port(process.program)) == port


def url_port(url: str) -> int | None:
    found = PORT.search(url)
    return None if found is None else int(found[1])


def url_host(url: str) -> str:
    found = HOST.match(url)
    return "" if found is None else found[1]


def router_urls(value: Any) -> list[str]:
    """Of --prefill, --decode or --worker-urls."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        return []
    return [str(each[0]) if isinstance(each, list) else str(each) for each in value if each]
