"""Rules about processes before they are roles: nodes, ranks, ports, devices, who reaches them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from msgspec.structs import replace

from vivace.deploy.case import Case
from vivace.deploy.from_script.roles import (
    StartedServer,
    TargetPort,
    flag_value,
    model_name,
    node_rank,
)
from vivace.deploy.processes import (
    EVERYWHERE,
    IN_COMPOSE,
    LOOPBACK,
    NUMERIC,
    PUBLISHING,
    STORE,
    Instance,
    find_names,
    flag_number,
    instances,
    leads_to,
    listeners,
    listens_within,
    memory_share,
    networks,
    nnodes,
    open_ports,
    ranks_here,
    rendezvous,
    role_name,
    same_host,
    used_devices,
    visible_devices,
    where,
)
from vivace.deploy.rules.rule import ARGS, Issue, Severity, case_rule

AGREED = tuple(
    """model-path nnodes tp-size pp-size dp-size ep-size quantization dtype kv-cache-dtype page-size
    speculative-algorithm context-length dist-init-addr""".split()
)
"""flags that all nodes of an instance give alike"""
MAX_COMPARED = 256
"""processes whose ports and devices are compared with one another"""
KUBERNETES = "Kubernetes and Docker on probes, Services and health checks"


def issue_at(
    process: StartedServer,
    case: Case,
    flag: str,
    text: str,
    remedy: str,
    severity: Severity | None = None,
) -> Issue:
    """Where the flag of the process stands."""
    role, own = role_name(process, case), process.place
    lines = range(max(0, own.line - 1), own.end)
    other = case.sources.first(IN_COMPOSE.get(flag, flag), own.file, lines)
    published = flag in PUBLISHING  # elsewhere they are another container's
    place = other or (own if published else case.sources.find(role, flag, own))
    return Issue(flag, text, remedy, severity, role, place)


@case_rule("node-ranks", "error", source=ARGS)
def node_ranks(case: Case) -> Iterator[Issue]:
    """Each node of an instance is started once, with a rank of its own.
    Ranks wait at the rendezvous until all --nnodes have come: one that nobody starts, or that two
    nodes have, hangs the others without an error."""
    for instance in instances(case):
        if any(flag_value(each.flags, "use-ray") for each in instance):
            continue  # it starts the others
        count = max(nnodes(each) for each in instance)
        known = [flag_number(each, "node-rank", 0) for each in instance]
        ranks = [rank for rank in known if rank is not None]
        given = [flag_value(each.flags, "node-rank") is not None for each in instance]
        if len(ranks) < len(instance) or given == [False]:
            yield from task_issues(instance, case)
            continue
        seen: dict[int, StartedServer] = {}
        for process, rank, told in zip(instance, ranks, given, strict=True):
            if rank in seen:
                both = f"{where(seen[rank])} and on {where(process)}"
                text = f"--node-rank {rank} is {'given' if told else 'the default'} on {both}: "
                text += f"{count} nodes need the ranks 0 to {count - 1}"
                flag, severity = ("--node-rank", None) if told else ("--nnodes", "warning")
                yield issue_at(process, case, flag, text, "number the nodes from 0", severity)
            elif not 0 <= rank < count:
                text = f"--node-rank {rank} of --nnodes {count}: the ranks are 0 to {count - 1}"
                remedy = f"--nnodes {max(ranks) + 1}, or leave the node out"
                yield issue_at(process, case, "--node-rank", text, remedy)
            seen.setdefault(rank, process)
        missing = [rank for rank in range(min(count, 4096)) if rank not in seen]
        if missing and len(seen) == len(instance):
            yield missing_nodes(instance, missing, count, case)


def missing_nodes(instance: Instance, missing: list[int], count: int, case: Case) -> Issue:
    """An error where several nodes of the instance are there and others are not; a warning where
    the script knows its machines, a note where it runs on others too."""
    names = ", ".join(map(str, missing[:8])) + (" .." if len(missing) > 8 else "")
    several, named = len(instance) > 1, instance[0].host is not None
    started = f"{len(instance)} of them {'are' if several else 'is'} started here"
    text = f"--nnodes is {count}, but {started}: the others wait for rank {names}"
    remedy = "check the scripts of all nodes together"
    if several:
        remedy = f"--nnodes {len(instance)}, or start the others"
    severity = None if several else "warning" if named else "note"
    severity = "note" if any(each.elsewhere for each in instance) else severity
    return issue_at(instance[0], case, "--nnodes", text, remedy, severity)


def task_issues(instance: Instance, case: Case) -> Iterator[Issue]:
    """srun and mpirun start a process for each node."""
    process = instance[0]
    count = nnodes(process)
    if len(instance) == 1 and process.tasks not in (0, count):
        text = f"{process.tasks} processes are started for --nnodes {count}"
        yield issue_at(process, case, "--nnodes", text, "make both the same")


@case_rule("nodes-agree", "error", source=ARGS)
def nodes_agree(case: Case) -> Iterator[Issue]:
    """The nodes of an instance have the same parallelism and meet at the address of rank 0.
    Ranks with other sizes wait for groups that never form; at another address they never meet."""
    for instance in instances(case):
        first = next((each for each in instance if node_rank(each.flags) == 0), instance[0])
        for process in instance:
            for name in AGREED:
                one, other = flag_value(first.flags, name), flag_value(process.flags, name)
                path = name == "model-path"  # nodes may keep their copies in folders of their own
                if path:
                    one, other = model_name(one), model_name(other)
                if one != other and "<" not in f"{one}{other}":
                    text = f"--{name} is {one} on {where(first)} and {other} on {where(process)}"
                    remedy = "the nodes of one instance need the same"
                    severity = "warning" if path else None
                    yield issue_at(process, case, f"--{name}", text, remedy, severity)
        meeting, host = rendezvous(first), first.host
        others = [each.host for each in instance if each is not first]
        if meeting and node_rank(first.flags) == 0 and host != meeting[0] and meeting[0] in others:
            text = f"--dist-init-addr is on {meeting[0]}, which is not rank 0 ({host})"
            remedy = f"--dist-init-addr {host}:{meeting[1]}"
            yield issue_at(first, case, "--dist-init-addr", text, remedy)


@case_rule("ports-apart", "error", source="TCP; SGLang's PortArgs")
def ports_apart(case: Case) -> Iterator[Issue]:
    """A port has one listener.
    The second server on a host and port stops with `address already in use`. A server listens on
    --port, for prefill on its bootstrap port, at its rendezvous address and, with dp attention, on
    the five ports behind it; a machine on the ports that it publishes for containers."""
    seen: list[tuple[StartedServer, str, int, int]] = []
    reported: set[tuple[str, str]] = set()
    for process, ports in islice(networks(case), MAX_COMPARED):
        role = role_name(process, case)
        for flag, port, count in ports:
            for other, its, begin, length in seen:
                apart = port >= begin + length or begin >= port + count
                if apart or flag == its == STORE or (role, flag + its) in reported:
                    continue
                if other is not process and not same_host(process, other):
                    continue
                reported.add((role, flag + its))
                owner = f"{role_name(other, case)} ({where(other)})"
                user = f"{'its own' if other is process else owner} {its}"
                text = f"{flag}: port {max(port, begin)} is already used by {user}"
                yield issue_at(process, case, flag, text, "choose another port")
            seen.append((process, flag, port, count))


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
            if not shared or where(process) in reported:
                continue
            if memory_share(process) + memory_share(other) <= 1:
                continue
            reported.add(where(process))
            names = ", ".join(sorted(shared, key=lambda name: (len(name), name))[:8])
            text = f"device {names} is used by {where(other)} too"
            remedy = "--base-gpu-id, or other visible devices, for one of them"
            flag = (visible_devices(process) or ("--base-gpu-id",))[0]
            yield issue_at(process, case, flag, text, remedy)


@case_rule("devices-there", "error", source="SGLang's base_gpu_id; the hardware catalogue")
def devices_there(case: Case) -> Iterator[Issue]:
    """A node has the devices that its ranks ask for.
    Rank r takes device --base-gpu-id + r x --gpu-id-step of those that are visible; one that is not
    there stops the start."""
    limit = case.devices_per_node
    for process in case.processes:
        count, base = ranks_here(process), flag_number(process, "base-gpu-id", 0)
        step, seen = flag_number(process, "gpu-id-step"), visible_devices(process)
        if process.kind == "router" or count is None or base is None or not step:
            continue
        last = base + (count - 1) * step
        if seen is not None and last >= len(seen[1]):
            text = f"{count} ranks from device {base} on, but {seen[0]} lists {len(seen[1])}"
            yield issue_at(process, case, seen[0], text, "list a device for each rank")
        elif process.devices and count > process.devices:
            text = f"{count} ranks in a container with a limit of {process.devices}"
            yield issue_at(process, case, "--tp-size", text, f"a limit of {count}, or fewer ranks")
        elif seen is None and limit is not None and base and last >= limit:
            needed = f"--base-gpu-id {base} with {count} ranks needs device {last}"
            remedy = f"--base-gpu-id {max(0, limit - count * step)}"
            yield issue_at(process, case, "--base-gpu-id", f"{needed}; a node has {limit}", remedy)


@case_rule("port-answered", "error", source=KUBERNETES)
def port_answered(case: Case) -> Iterator[Issue]:
    """Probes and Services ask a port on which the server listens.
    A probe that nobody answers has the container restarted, or never ready; a Service leads to
    connections that are refused. Both come to the pod's address, where a server on 127.0.0.1 (the
    default of SGLang and Vivace) does not listen. Where something else runs beside the server, it
    may be that which answers: a warning."""
    reported: set[TargetPort] = set()
    for target in case.target_ports:
        key = TargetPort(target.client, target.port, (), target.place)
        found = [each for each in case.launches if each.network in target.networks]
        ports = [open_ports(each) for each in found]
        known = [port for each in ports if each is not None for port in each]
        within = target.outside and all(map(listens_within, found))
        if not found or None in ports or key in reported or (target.port in known and not within):
            continue
        reported.add(key)
        listed = ", ".join(map(str, sorted(set(known))[:8]))
        text = f"{target.client} asks port {target.port}, but the server listens on {listed}"
        remedy = f"port {known[0]} there, or --port {target.port}"
        if target.port in known:
            only = "the server listens on 127.0.0.1 only"
            text, remedy = f"{target.client} asks the pod's address, but {only}", "--host 0.0.0.0"
        severity = "warning" if case.shared & set(target.networks) else None
        yield Issue("port", text, remedy, severity, place=target.place)


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
    return issue_at(first, case, "--dist-init-addr", text, remedy, "error" if certain else None)


@case_rule("port-in-loop", "warning", source="TCP")
def port_in_loop(case: Case) -> Iterator[Issue]:
    """Every round of a loop starts its server on a port of its own.
    From the second round on the server stops with `address already in use`. How many rounds there
    are only the machine knows: a warning."""
    for process in (each for each in case.launches if each.again):
        again = [each[:2] for each in listeners(replace(process, flags=process.again))]
        for flag, port, _ in listeners(process):
            if (flag, port) in again:
                text = f"{flag}: every round of this loop takes port {port}"
                yield issue_at(process, case, flag, text, "count it up with the rounds")
                break
