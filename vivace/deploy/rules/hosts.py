"""Rules about processes before they are seen as roles: nodes, ranks, ports and devices of hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from vivace.deploy.case import DEFAULT_PORT, Case
from vivace.deploy.from_script.roles import StartedServer, flag_value, node_rank
from vivace.deploy.rules.disaggregation import BOOTSTRAP
from vivace.deploy.rules.rule import Issue, case_rule

ARGS = "SGLang's server_args.py"
PORTS = "SGLang's PortArgs"
ZMQ_DELTA = 233
"""from --port to the rendezvous port that dp attention uses where none is given"""
ZMQ_PORTS = 5
"""ports behind the rendezvous port: detokenizer, RPC, metrics, scheduler"""
HCCL_PORTS = 16
ADDRESS = re.compile(r"(.*):(\d{1,5})")
EVERYWHERE = ("0.0.0.0", "::", "[::]")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
VISIBLE = ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES",
           "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")  # fmt: skip
CONTAINED = "NVIDIA_VISIBLE_DEVICES"
IN_COMPOSE = {CONTAINED: "device_ids"}
"""what a variable is called in a compose file"""
NAMED_DEVICES = ("all", "none", "void")
AGREED = ("nnodes", "tp-size", "pp-size", "dp-size", "ep-size", "quantization", "dtype",
          "kv-cache-dtype", "page-size", "speculative-algorithm", "context-length")  # fmt: skip
MAX_COMPARED = 256
"""processes whose ports and devices are compared with one another"""
Instance = list[StartedServer]


def number(process: StartedServer, name: str, default: int = 1) -> int | None:
    """None for a value that only the machine knows."""
    value = flag_value(process.flags, name)
    if value is None:
        return default
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def nnodes(process: StartedServer) -> int:
    return max(1, number(process, "nnodes") or 1)


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
        whole = all(len(each) == size for each in by_address.values())
        found += [members] if len(members) <= size and not whole else by_address.values()
    return [each for each in found if max(nnodes(one) for one in each) > 1]


def at(process: StartedServer, case: Case, flag: str) -> dict[str, Any]:
    """Where a flag of a process stands."""
    role, own = find_role(process, case), process.place
    other = case.sources.first(
        IN_COMPOSE.get(flag, flag), own.file, range(max(0, own.line - 1), own.end)
    )
    place = other or case.sources.find(role, flag, process.place)
    return {"line": place.line, "file": place.file, "role": role}


def find_role(process: StartedServer, case: Case) -> str:
    named = process.instance.rpartition(" ")[0]
    if named:
        return named
    roles = case.sources.roles
    return next((name for name in roles if process.place in roles[name]), process.kind)


def where(process: StartedServer) -> str:
    if process.host is not None:
        return process.host
    place = process.place
    return f"{place.file}:{place.line}" if place.line else process.instance or "a node"


@case_rule("node-ranks", "error", source=ARGS)
def node_ranks(case: Case) -> Iterator[Issue]:
    """Each node of an instance is started once, with a rank of its own.
    Ranks wait at the rendezvous until all --nnodes have come: one that nobody starts, or that two
    nodes have, hangs the others without an error."""
    for instance in instances(case):
        count = max(nnodes(each) for each in instance)
        ranks = [node_rank(each.flags) for each in instance]
        if None in ranks:
            yield from task_issues(instance, case)
            continue
        seen: dict[int, StartedServer] = {}
        for process, rank in zip(instance, ranks, strict=True):
            if rank is None:
                continue
            if rank in seen:
                text = (
                    f"--node-rank {rank} is given on {where(seen[rank])} and on {where(process)}: "
                    f"{count} nodes need the ranks 0 to {count - 1}"
                )
                yield Issue(
                    "--node-rank",
                    text,
                    "number the nodes from 0",
                    **at(process, case, "--node-rank"),
                )
            elif not 0 <= rank < count:
                text = f"--node-rank {rank} of --nnodes {count}: the ranks are 0 to {count - 1}"
                remedy = (
                    f"--nnodes {max(r for r in ranks if r is not None) + 1}, or leave the node out"
                )
                yield Issue("--node-rank", text, remedy, **at(process, case, "--node-rank"))
            seen.setdefault(rank, process)
        missing = [rank for rank in range(min(count, 4096)) if rank not in seen]
        if missing and len(seen) == len(instance):
            yield missing_nodes(instance, missing, count, case)


def missing_nodes(instance: Instance, missing: list[int], count: int, case: Case) -> Issue:
    """An error where several nodes of the instance are there and others are not."""
    first = instance[0]
    names = ", ".join(map(str, missing[:8])) + (" .." if len(missing) > 8 else "")
    text = (
        f"--nnodes is {count}, but {len(instance)} of them {'are' if len(instance) > 1 else 'is'} "
    )
    text += f"started here: the others wait for rank {names}"
    if len(instance) > 1:
        return Issue(
            "--nnodes",
            text,
            f"--nnodes {len(instance)}, or start the others",
            **at(first, case, "--nnodes"),
        )
    remedy = "check the scripts of all nodes together"
    return Issue("--nnodes", text, remedy, severity="note", **at(first, case, "--nnodes"))


def task_issues(instance: Instance, case: Case) -> Iterator[Issue]:
    """srun and mpirun start a process for each node."""
    process = instance[0]
    count = nnodes(process)
    if len(instance) == 1 and process.tasks not in (0, count):
        text = f"{process.tasks} processes are started for --nnodes {count}"
        yield Issue("--nnodes", text, "make both the same", **at(process, case, "--nnodes"))


@case_rule("nodes-agree", "error", source=ARGS)
def nodes_agree(case: Case) -> Iterator[Issue]:
    """The nodes of an instance have the same parallelism and meet at the address of rank 0.
    Ranks with other sizes wait for groups that never form; at another address they never meet."""
    for instance in instances(case):
        first = next((each for each in instance if node_rank(each.flags) == 0), instance[0])
        for process in instance:
            for name in (*AGREED, "dist-init-addr"):
                one, other = flag_value(first.flags, name), flag_value(process.flags, name)
                if one != other and "<" not in f"{one}{other}":
                    text = f"--{name} is {one} on {where(first)} and {other} on {where(process)}"
                    remedy = "the nodes of one instance need the same"
                    yield Issue(f"--{name}", text, remedy, **at(process, case, f"--{name}"))
        meeting, host = rendezvous(first), first.host
        others = [each.host for each in instance if each is not first]
        if meeting and node_rank(first.flags) == 0 and host != meeting[0] and meeting[0] in others:
            text = f"--dist-init-addr is on {meeting[0]}, which is not rank 0 ({host})"
            remedy = f"--dist-init-addr {host}:{meeting[1]}"
            yield Issue("--dist-init-addr", text, remedy, **at(first, case, "--dist-init-addr"))


def listeners(process: StartedServer) -> list[tuple[str, int, int]]:
    """(flag, port, how many from it on) that a process listens on."""
    found = [("--port", number(process, "port", DEFAULT_PORT), 1)]
    if process.kind == "router":
        given = number(process, "prometheus-port", 0)
        return known_ports([*found, ("--prometheus-port", given, 1)])
    if process.kind == "prefill":
        bootstrap = number(process, "disaggregation-bootstrap-port", BOOTSTRAP)
        found.append(("--disaggregation-bootstrap-port", bootstrap, 1))
    found.append(("--nccl-port", number(process, "nccl-port", 0), 1))
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


def same_host(one: StartedServer, other: StartedServer) -> bool:
    """Whether both listen on one machine, as far as their addresses or their script say so."""
    if one.contained or other.contained:
        return False
    hosts = one.host or listen_address(one), other.host or listen_address(other)
    if hosts[0] and hosts[0] == hosts[1] and (hosts[0] not in LOOPBACK or one.instance):
        return True
    return one.runs_with(other)


def listen_address(process: StartedServer) -> str:
    """--host where it names one machine."""
    host = str(flag_value(process.flags, "host") or "")
    return "" if "<" in host or "{" in host or host in EVERYWHERE else host


def first_ranks(case: Case) -> list[StartedServer]:
    return [each for each in case.processes if (node_rank(each.flags) or 0) == 0]


@case_rule("ports-apart", "error", source=f"TCP; {PORTS}")
def ports_apart(case: Case) -> Iterator[Issue]:
    """A port has one listener.
    The second server on a host and port stops with `address already in use`. A server listens on
    --port, for prefill on its bootstrap port, at its rendezvous address and, with dp attention, on
    the five ports behind it."""
    seen: list[tuple[StartedServer, str, int, int]] = []
    reported: set[tuple[str, str]] = set()
    for process in first_ranks(case)[:MAX_COMPARED]:
        for flag, port, count in listeners(process):
            for other, its, begin, length in seen:
                if (
                    port < begin + length
                    and begin < port + count
                    and (other is process or same_host(process, other))
                ):
                    key = (find_role(process, case), flag + its)
                    if key not in reported:
                        reported.add(key)
                        yield port_issue(process, flag, max(port, begin), other, its, case)
            seen.append((process, flag, port, count))


def port_issue(
    process: StartedServer, flag: str, port: int, other: StartedServer, its: str, case: Case
) -> Issue:
    owner = "its own" if other is process else f"{find_role(other, case)} ({where(other)})"
    text = f"{flag}: port {port} is already used by {owner} {its}"
    return Issue(flag, text, "choose another port", **at(process, case, flag))


def visible(process: StartedServer) -> tuple[str, list[str]] | None:
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
    sizes = [number(process, name) for name in ("tp-size", "pp-size", "dp-size")]
    if any(size is None or size < 1 for size in sizes):
        return None
    tp, pp, dp = (size or 1 for size in sizes)
    replicas = 1 if flag_value(process.flags, "enable-dp-attention") else dp
    return -(-tp * pp * replicas // nnodes(process))


def used_devices(process: StartedServer) -> list[str]:
    """Names of the devices that a process uses, as its node counts them; empty if unknown."""
    count, base = ranks_here(process), number(process, "base-gpu-id", 0)
    step = number(process, "gpu-id-step")
    if count is None or base is None or not step or count > 4096:
        return []
    indices = [base + rank * step for rank in range(count)]
    seen = visible(process)
    if seen is None:
        return [str(index) for index in indices]
    return [seen[1][index] for index in indices if index < len(seen[1])]


@case_rule("devices-apart", "error", source=ARGS)
def devices_apart(case: Case) -> Iterator[Issue]:
    """A device has one server.
    Ranks take the devices from --base-gpu-id on, or those that are visible; two servers fit on one
    device only where their --mem-fraction-static leave room for both."""
    servers = [each for each in case.processes if each.kind != "router"][:MAX_COMPARED]
    used = [set(used_devices(each)) for each in servers]
    reported: set[str] = set()
    for index, process in enumerate(servers):
        for other, its in zip(servers[:index], used, strict=False):
            if process.instance or not process.runs_with(other):
                continue  # a deployment file's roles that share hosts: hosts-apart
            shared = used[index] & its
            if not shared or shares(process) + shares(other) <= 1 or where(process) in reported:
                continue
            reported.add(where(process))
            names = ", ".join(sorted(shared, key=lambda name: (len(name), name))[:8])
            text = f"device {names} is used by {where(other)} too"
            remedy = "--base-gpu-id, or other visible devices, for one of them"
            flag = (visible(process) or ("--base-gpu-id",))[0]
            yield Issue(flag, text, remedy, **at(process, case, flag))


def shares(process: StartedServer) -> float:
    value = flag_value(process.flags, "mem-fraction-static")
    return value if isinstance(value, float) else 1.0


@case_rule("devices-there", "error", source="SGLang's base_gpu_id; the hardware catalogue")
def devices_there(case: Case) -> Iterator[Issue]:
    """A node has the devices that its ranks ask for.
    Rank r takes device --base-gpu-id + r x --gpu-id-step of those that are visible; one that is not
    there stops the start."""
    hardware, device = case.deployment.hardware, case.device
    limit = None
    if hardware is not None and device is not None:
        limit = (hardware.cards_per_node or device.cards_per_node) * device.devices_per_card
    for process in case.processes:
        count, base = ranks_here(process), number(process, "base-gpu-id", 0)
        step, seen = number(process, "gpu-id-step"), visible(process)
        if process.kind == "router" or count is None or base is None or not step:
            continue
        last = base + (count - 1) * step
        if seen is not None and last >= len(seen[1]):
            text = f"{count} ranks from device {base} on, but {seen[0]} lists {len(seen[1])}"
            remedy = "list a device for each rank"
            yield Issue(seen[0], text, remedy, **at(process, case, seen[0]))
        elif seen is None and limit is not None and base and last >= limit:
            text = (
                f"--base-gpu-id {base} with {count} ranks needs device {last}; a node has {limit}"
            )
            remedy = f"--base-gpu-id {max(0, limit - count * step)}"
            yield Issue("--base-gpu-id", text, remedy, **at(process, case, "--base-gpu-id"))
