"""Rules about prefill and decode apart, the router in front, and who listens where."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from vivace.deploy.rules.case import Case
from vivace.deploy.rules.finding import Found, Rule
from vivace.deploy.rules.server import Server

PAGE = "the published configurations"
PD = "SGLang's disaggregation: handshake and router"
PORT = re.compile(r":(\d{1,5})(?:/|$)")
BOOTSTRAP = 8998
DEFAULT_PORT = 30000
HANDSHAKE = ("page_size", "kv_cache_dtype", "dtype", "disaggregation_transfer_backend")


def halves(case: Case) -> Iterator[Found]:
    prefill, decode = case.of("prefill"), case.of("decode")
    if bool(prefill) == bool(decode):
        return
    alone = (prefill or decode)[0]
    missing = "decode" if prefill else "prefill"
    yield Found(
        role=alone.name,
        flag=alone.flag("disaggregation_mode"),
        text=f"--disaggregation-mode {alone.kind}, but nothing runs {missing}: the server waits "
        "for "
        "KV that never comes"
        if missing == "prefill"
        else f"--disaggregation-mode {alone.kind}, but nothing runs {missing}: nobody takes the KV",
        remedy=f"leave --disaggregation-mode out, or add the {missing} role",
    )


def kind_and_mode(case: Case) -> Iterator[Found]:
    for server in case.servers:
        mode = server.value("disaggregation_mode")
        said = "mixed" if mode in (None, "null") else mode
        if server.kind in ("mixed", "prefill", "decode") and said != server.kind:
            yield Found(
                role=server.name,
                flag=server.flag("disaggregation_mode"),
                text=f"the role is {server.kind}, its --disaggregation-mode says {said}",
                remedy="make both the same",
            )


def own_hosts(case: Case) -> Iterator[Found]:
    owners: dict[str, list[str]] = {}
    for server in case.of("mixed", "prefill", "decode", "encoder"):
        for host in dict.fromkeys(server.role.hosts):
            owners.setdefault(host, []).append(server.name)
    shared = {host: names for host, names in owners.items() if len(names) > 1}
    if shared:
        names = next(iter(shared.values()))
        listed = ", ".join(repr(host) for host in shared)
        yield Found(
            role=names[-1],
            flag="hosts",
            text=f"{' and '.join(names)} are to run on the same nodes ({listed}): a node runs the "
            "first of them only",
            remedy="name other nodes for one of them",
        )


def repeated_hosts(case: Case) -> Iterator[Found]:
    for server in case.servers:
        twice = [host for host, count in Counter(server.role.hosts).items() if count > 1]
        if twice:
            yield Found(
                role=server.name,
                flag="hosts",
                text=f"{', '.join(map(repr, twice))} stand more than once among the hosts",
                remedy="name every node once",
            )


def bootstrap_ports(case: Case) -> list[Any]:
    """Of every prefill instance."""
    ports: list[Any] = []
    for server in case.of("prefill"):
        for node in server.nodes:
            if node.rank == 0:
                ports.append(node.flags.get("disaggregation-bootstrap-port", BOOTSTRAP))
    return ports


def router_prefills(case: Case) -> Iterator[Found]:
    ports = bootstrap_ports(case)
    for router in case.of("router"):
        entries = router.role.flags.get("prefill")
        if not isinstance(entries, list) or not ports:
            continue
        named = [
            entry[1] if isinstance(entry, list) and len(entry) > 1 else None for entry in entries
        ]
        if len(entries) != len(ports):
            yield Found(
                role=router.name,
                flag="--prefill",
                text=f"{len(entries)} --prefill entries (bootstrap ports {shown(named)}) for "
                f"{len(ports)} prefill instance(s) (bootstrap ports {shown(ports)})",
                remedy="one --prefill URL PORT for each instance; of several nodes, the first",
            )
        elif any(one != other for one, other in zip(named, ports, strict=True) if one is not None):
            yield Found(
                role=router.name,
                flag="--prefill",
                text=f"the router's bootstrap ports are {shown(named)}, the prefill servers' "
                f"{shown(ports)}",
                remedy="make them the same, in the same order",
            )


def shown(ports: list[Any]) -> str:
    return ", ".join("none" if port is None else str(port) for port in ports)


def router_decodes(case: Case) -> Iterator[Found]:
    wanted = sum(server.role.instances for server in case.of("decode"))
    for router in case.of("router"):
        entries = router.role.flags.get("decode")
        if isinstance(entries, list) and wanted and len(entries) != wanted:
            yield Found(
                role=router.name,
                flag="--decode",
                text=f"{len(entries)} --decode entries for {wanted} decode instance(s)",
                remedy="one --decode URL for each instance; of several nodes, the first",
            )


def router_ports(case: Case) -> Iterator[Found]:
    """Ports of the router's URLs against those the servers listen on."""
    for router in case.of("router"):
        for flag, kind in (("prefill", "prefill"), ("decode", "decode"), ("worker-urls", "mixed")):
            listening = {server.number("port") or DEFAULT_PORT for server in case.of(kind)}
            for url in urls(router.role.flags.get(flag)):
                port = port_of(url)
                if listening and port is not None and port not in listening:
                    yield Found(
                        role=router.name,
                        flag="--" + flag,
                        text=f"{url}: {kind} servers listen on "
                        f"{', '.join(map(str, sorted(listening)))}",
                        remedy="correct the port",
                    )


def urls(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        return []
    return [str(each[0]) if isinstance(each, list) else str(each) for each in value if each]


def port_of(url: str) -> int | None:
    found = PORT.search(url)
    return int(found.group(1)) if found else None


def router_mode(case: Case) -> Iterator[Found]:
    apart = bool(case.of("prefill", "decode"))
    for router in case.of("router"):
        flags = router.role.flags
        if apart and not flags.get("pd-disaggregation") and "launch_router" in router.role.program:
            yield Found(
                role=router.name,
                flag="--pd-disaggregation",
                text="prefill and decode are apart, and the router is not told so",
                remedy="--pd-disaggregation",
            )
        if flags.get("mini-lb") and flags.get("policy") not in (None, "random"):
            yield Found(
                role=router.name,
                flag="--policy",
                text=f"--mini-lb ignores --policy {flags['policy']}: it takes a random pair",
                remedy="leave out --mini-lb, or --policy",
                severity="note",
            )


def missing_router(case: Case) -> Iterator[Found]:
    if case.of("prefill") and case.of("decode") and not case.of("router"):
        yield Found(
            text="prefill and decode are apart, and no router pairs them: who calls the servers "
            "must "
            "send bootstrap_host, bootstrap_port and bootstrap_room itself",
            remedy="add a router role",
        )


def handshake(case: Case) -> Iterator[Found]:
    for prefill in case.of("prefill"):
        for decode in case.of("decode"):
            for name in HANDSHAKE:
                one, other = prefill.value(name), decode.value(name)
                if one != other:
                    yield Found(
                        role=decode.name,
                        flag=decode.flag(name),
                        text=f"{decode.flag(name)} is {one} on {prefill.name} and {other} on "
                        f"{decode.name}: the handshake refuses it",
                        remedy="make both the same",
                    )


def drafts_on_both(case: Case) -> Iterator[Found]:
    for prefill in case.of("prefill"):
        for decode in case.of("decode"):
            one, other = drafting(prefill), drafting(decode)
            if one != other:
                yield Found(
                    role=decode.name,
                    flag=decode.flag("speculative_algorithm"),
                    text=f"{prefill.name} drafts with {one or 'nothing'}, {decode.name} with "
                    f"{other or 'nothing'}: the draft's KV and hidden state are not transferred",
                    remedy="the same --speculative-algorithm and draft model on both",
                )


def drafting(server: Server) -> str:
    algorithm = server.value("speculative_algorithm")
    return "EAGLE" if algorithm == "NEXTN" else str(algorithm or "")


def ports_apart(case: Case) -> Iterator[Found]:
    """Everything that listens on one host."""
    taken: dict[tuple[str, Any], str] = {}
    for server in case.all:
        for node in server.nodes:
            host = node.host or str(node.flags.get("host", "127.0.0.1"))
            if "<" in host or "{" in host or (node.rank > 0):
                continue
            ports = {"--port": node.flags.get("port", DEFAULT_PORT)}
            if server.kind == "prefill":
                ports["--disaggregation-bootstrap-port"] = node.flags.get(
                    "disaggregation-bootstrap-port", BOOTSTRAP
                )
            for flag, port in ports.items():
                if not isinstance(port, int):
                    continue
                other = taken.setdefault((host, port), f"{server.name} {flag}")
                if other != f"{server.name} {flag}":
                    yield Found(
                        role=server.name,
                        flag=flag,
                        text=f"{flag} {port} on {host} is taken by {other}",
                        remedy="choose another port",
                    )


def port_range(case: Case) -> Iterator[Found]:
    for server in case.all:
        for name in ("port", "disaggregation_bootstrap_port"):
            flag = name.replace("_", "-")
            for node in server.nodes[:1]:
                port = node.flags.get(flag)
                if isinstance(port, int) and not 0 < port < 65536:
                    yield Found(
                        role=server.name,
                        flag="--" + flag,
                        text=f"--{flag} {port}: ports are 1 to 65535",
                        remedy="choose another port",
                    )


def queue_ignored(case: Case) -> Iterator[Found]:
    for server in case.of("prefill", "decode"):
        if server.has("max_queued_requests"):
            yield Found(
                role=server.name,
                flag=server.flag("max_queued_requests"),
                text="--max-queued-requests is ignored where prefill and decode are apart",
                remedy="limit at the router: --max-concurrent-requests, --queue-size",
            )


RULES = (
    Rule(
        name="separation-halves",
        severity="error",
        title="Prefill and decode come together",
        explanation="A server of one mode serves nothing without servers of the other.",
        source=PAGE,
        check=halves,
    ),
    Rule(
        name="role-mode",
        severity="error",
        title="A role's mode is its kind",
        explanation="The kind of a role says what it is for, --disaggregation-mode what it does.",
        source=PAGE,
        check=kind_and_mode,
    ),
    Rule(
        name="hosts-apart",
        severity="error",
        title="Prefill and decode run on nodes of their own",
        explanation="A script that every node runs starts the first server that is for its "
        "address, "
        "in the foreground; the second never comes.",
        source=PAGE,
        check=own_hosts,
    ),
    Rule(
        name="hosts-once",
        severity="error",
        title="A node is named once",
        explanation="Two ranks of one instance cannot be the same node.",
        source=PAGE,
        check=repeated_hosts,
    ),
    Rule(
        name="router-prefill",
        severity="error",
        title="The router knows every prefill server by its bootstrap port",
        explanation="Its --prefill entries are the prefill instances, with the port of each.",
        source=PAGE,
        check=router_prefills,
    ),
    Rule(
        name="router-decode",
        severity="error",
        title="The router knows every decode server",
        explanation="Its --decode entries are the decode instances.",
        source=PAGE,
        check=router_decodes,
    ),
    Rule(
        name="router-ports",
        severity="error",
        title="The router calls ports that are listened on",
        explanation="The ports in its URLs are the servers' --port.",
        source=PAGE,
        check=router_ports,
    ),
    Rule(
        name="router-mode",
        severity="error",
        title="The router works as the servers do",
        explanation="With prefill and decode apart it must pair them; --mini-lb has one policy.",
        source=PD,
        check=router_mode,
    ),
    Rule(
        name="router-missing",
        severity="warning",
        title="Something pairs prefill and decode",
        explanation="Requests need a room on one server of each kind.",
        source=PD,
        check=missing_router,
    ),
    Rule(
        name="handshake",
        severity="error",
        title="Both halves keep KV in the same form",
        explanation="Page size, KV type, model type and transport are compared at the handshake.",
        source=PD,
        check=handshake,
    ),
    Rule(
        name="drafts-on-both",
        severity="error",
        title="Both halves draft, or neither",
        explanation="Prefill runs the draft once so that decode can go on with it.",
        source=PD,
        check=drafts_on_both,
    ),
    Rule(
        name="ports-apart",
        severity="error",
        title="A port has one listener",
        explanation="The second server on a host and port stops with `address already in use`.",
        source="TCP",
        check=ports_apart,
    ),
    Rule(
        name="port-range",
        severity="error",
        title="Ports exist",
        explanation="1 to 65535.",
        source="TCP",
        check=port_range,
    ),
    Rule(
        name="queue-ignored",
        severity="note",
        title="Limits take effect",
        explanation="Prefill and decode servers do not look at --max-queued-requests.",
        source=PD,
        check=queue_ignored,
    ),
)
