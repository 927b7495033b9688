"""Rules about prefill/decode disaggregation, the router in front, and ports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from operator import attrgetter

from vivace.deploy.case import Case
from vivace.deploy.from_script.programs import DYNAMO
from vivace.deploy.from_script.roles import node_rank
from vivace.deploy.locations import Location
from vivace.deploy.processes import (
    bootstrap_ports,
    devices_divided,
    entry_place,
    entry_ports,
    join_ports,
    listens,
    router_entries,
    router_urls,
    unreached,
    url_host,
    url_port,
)
from vivace.deploy.rules.rule import PAGE, Issue, case_rule, server_rule
from vivace.deploy.server_plan import ServerPlan, UnknownValue, by_value, join_names
from vivace.errors import nearest

POLICIES = ("random", "round_robin", "cache_aware", "power_of_two")
"""of every router; later ones have more"""
PD = "SGLang's disaggregation: handshake and router"
TRANSFER = "model_path kv_cache_dtype dtype disaggregation_transfer_backend page_size".split()


@case_rule("separation-halves", "error", source=PAGE, assumes=("scripts",))
def prefill_and_decode(case: Case) -> Iterator[Issue]:
    """Prefill and decode servers exist together.
    A server of one mode serves nothing without the other; scripts may be only one half of both."""
    prefill, decode = case.of("prefill"), case.of("decode")
    if bool(prefill) == bool(decode):
        return
    server = (prefill or decode)[0]
    missing = "decode" if prefill else "prefill"
    effect = "nobody takes its KV" if prefill else "it waits for KV that never comes"
    text = f"--disaggregation-mode {server.kind} without a {missing} server: {effect}"
    remedy = f"remove --disaggregation-mode, or add a {missing} role"
    yield Issue(server.flag("disaggregation_mode"), text, remedy, role=server.name)


@server_rule("role-mode", "error", source=PAGE, roles=("mixed", "prefill", "decode"))
def role_mode(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """--disaggregation-mode matches the kind of the role.
    A server of the wrong mode starts, and the router's requests to it fail."""
    mode = server.value("disaggregation_mode")
    kind = "mixed" if mode in (None, "null") else mode
    if kind != server.kind:
        text = f"the kind of the role is {server.kind}, but --disaggregation-mode makes it {kind}"
        yield Issue("disaggregation_mode", text, "make both the same")


@case_rule("hosts-apart", "error", source=PAGE)
def hosts_apart(case: Case) -> Iterator[Issue]:
    """Every role has its own nodes, and lists each of them once.
    A script that every node runs starts the first server for its address, in the foreground; the
    second never starts, and two ranks of a role would take the same devices. Roles of a deployment
    file may share a node where they divide its devices."""
    owners: dict[str, list[str]] = {}
    for server in case.servers:
        for host in server.role.hosts:
            owners.setdefault(host, []).append(server.name)
    shared: dict[tuple[str, ...], list[str]] = {}
    for host, names in owners.items():
        if len(names) > 1 and not (case.together(host) or devices_divided(host, case)):
            shared.setdefault(tuple(names), []).append(repr(host))
    for names, hosts in shared.items():
        several = f"{' and '.join(dict.fromkeys(names))} share nodes"
        what = several if len({*names}) > 1 else "nodes are listed more than once"
        text = f"{what} ({', '.join(hosts)}): a node runs only the first of them"
        yield Issue("hosts", text, "list every node once: use other nodes", role=names[-1])


@server_rule("router-entries", "error", source=PAGE, roles=("router",), assumes=("scripts",))
def router_lists(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """The router's --prefill and --decode entries are the instances and their bootstrap ports.
    An instance that is not listed gets no requests; an entry without a server fails those it gets.
    With another bootstrap port a decode server waits for KV until it times out. The same ports in
    another order are a warning: the URLs may have it too."""
    ports, decodes = bootstrap_ports(case), sum(each.role.instances for each in case.of("decode"))
    for kind, count in (("prefill", len(ports)), ("decode", decodes)):
        entries = router_entries(server, kind)
        if entries is None or not count or len(entries) == count:
            continue
        text = f"{len(entries)} --{kind} entries for {count} {kind} instance(s)"
        remedy = f"one --{kind} URL per instance; of several nodes, the first"
        severity = "warning" if 0 < len(entries) < count else None
        other = "--decode" if kind == "prefill" else "--prefill"
        at = Location() if entries else case.sources.find(server.name, other)
        yield Issue("--" + kind, text, remedy, severity, place=at)
    entries = router_entries(server, "prefill") or []
    listed = entry_ports(entries, case) if len(entries) == len(ports) else []
    for entry, one, other in zip(entries, listed, ports, strict=False):
        if one not in (None, other):
            text = f"bootstrap ports {join_ports(listed)}, but the servers have {join_ports(ports)}"
            turned = Counter(map(str, listed)) == Counter(map(str, ports))
            remedy, url = "use the same ports in the same order", router_urls([entry])[0]
            at = entry_place(case, server, "--prefill", url)
            yield Issue("--prefill", text, remedy, "warning" if turned else None, place=at)
            break


@server_rule("router-ports", "error", source=PAGE, roles=("router",), assumes=("scripts",))
def router_ports(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """The ports in the router's URLs are those of the servers.
    Where no server listens, the router's health checks and requests fail."""
    for flag, kind in (("prefill", "prefill"), ("decode", "decode"), ("worker-urls", "mixed")):
        with suppress(UnknownValue):
            ports, urls = case.ports(kind), router_urls(server.role.flags.get(flag))
            at = partial(entry_place, case, server, "--" + flag)
            yield from wrong_ports(urls, ports, "--" + flag, f"{kind} servers", at)
            yield from follower_issues(urls, "--" + flag, case)
            for url in unreached(urls, server, case, kind):
                text = f"{url}: no {kind} server has this address (if it has no other)"
                yield Issue("--" + flag, text, "the address of a server", "warning", place=at(url))
            for url in urls if not ports else ():
                yield from other_kind_issues(url, kind, case)


@server_rule("encoder-ports", "error", source=PD, roles=("mixed", "prefill", "decode"))
def encoder_ports(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """The ports in --encoder-urls are those of the encoders.
    Images are sent to each of them; where none listens, their requests fail."""
    given = server.value("encoder_urls")
    urls = [str(url) for url in (given if isinstance(given, list | tuple) else [given])]
    at = partial(entry_place, case, server, flag := server.flag("encoder_urls"))
    yield from wrong_ports(urls, case.ports("encoder"), flag, "encoders", at)


def wrong_ports(
    urls: Sequence[str], ports: set[int], flag: str, servers: str, at: Callable[[str], Location]
) -> Iterator[Issue]:
    """URLs at which none of the servers listens, where there are any."""
    for url in urls if ports else ():
        if url_port(url) not in (None, *ports):
            text = f"{url}: {servers} listen on {', '.join(map(str, sorted(ports)))}"
            yield Issue(flag, text, "correct the port", place=at(url))


def follower_issues(urls: Sequence[str], flag: str, case: Case) -> Iterator[Issue]:
    """URLs of nodes with a rank above 0, which take no requests."""
    for url in urls:
        here = [each for each in case.processes if each.host == url_host(url)]
        ranks = [node_rank(each.flags) or 0 for each in here if listens(each, url_port(url))]
        if ranks and all(ranks):
            text = f"{url} is node rank {ranks[0]} of its instance: only rank 0 takes requests"
            yield Issue(flag, text, "the URL of the instance's first node", "warning")


def other_kind_issues(url: str, kind: str, case: Case) -> Iterator[Issue]:
    """Where the router expects a server of a kind that is not there, and another has its port."""
    port = url_port(url)
    others = [each for each in case.processes if each.kind != "router" and listens(each, port)]
    if others:
        other = others[-1]
        mode = kind if kind != "mixed" else "null"
        text = f"the router takes {url} for a {kind} server, but it is {other.kind}"
        flag = "--disaggregation-mode"
        remedy = f"{flag} {mode}, or another entry in the router's list"
        yield Issue(flag, text, remedy, place=case.sources.find("", flag, other.place))


@server_rule("router-mode", "error", source=PD, roles=("router",))
def router_mode(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """The router's mode matches the servers.
    With prefill/decode disaggregation it must pair them; --mini-lb has one policy."""
    flags, is_router = server.role.flags, "launch_router" in server.role.program
    if case.of("prefill", "decode") and not flags.get("pd-disaggregation") and is_router:
        text = "prefill and decode servers are disaggregated, but --pd-disaggregation is not set"
        yield Issue("--pd-disaggregation", text, "--pd-disaggregation")
    for flag in ("policy", "prefill-policy", "decode-policy"):
        policy = str(flags.get(flag, POLICIES[0]))
        meant = policy.lower().replace("-", "_")
        if policy not in POLICIES and (near := nearest(meant, POLICIES, 0.8)):
            text = f"--{flag} {policy} is not a policy of the router{near}"
            yield Issue(f"--{flag}", text, f"one of {', '.join(POLICIES)}")
    if flags.get("mini-lb") and flags.get("policy") not in (None, "random"):
        text = f"--mini-lb ignores --policy {flags['policy']}: it picks a random pair"
        yield Issue("--policy", text, "remove --mini-lb or --policy", "note")


@case_rule("router-missing", "warning", source=PD)
def router_missing(case: Case) -> Iterator[Issue]:
    """Disaggregated servers have a router.
    A request needs a bootstrap room on one server of each kind."""
    paired = any(each.role.program in DYNAMO for each in case.servers)
    if case.of("prefill") and case.of("decode") and not (case.of("router") or paired):
        text = "no router pairs prefill and decode servers: clients must send bootstrap_* fields"
        yield Issue("", text, "add a router role")


@case_rule("handshake", "error", source=PD)
def handshake(case: Case) -> Iterator[Issue]:
    """Prefill and decode servers use the same KV format.
    Page size and KV type are compared at the handshake; another transport cannot connect, and KV of
    another --dtype is read wrong. A --dtype of auto may be the same: that is a warning."""
    for name in TRANSFER:
        value = partial(ServerPlan.handed_over, name=name, platform=case.platform)
        prefills, decodes = by_value(case.of("prefill"), value), by_value(case.of("decode"), value)
        for one, other in product(prefills, decodes):
            if one == other or None in (one, other):
                continue
            for decode in decodes[other]:
                flag, unsettled = decode.flag(name), name == "dtype" and "auto" in (one, other)
                places = f"{one} on {join_names(prefills[one])} and {other} on {decode.name}"
                text = f"{flag} is {places}: KV cannot be handed over"
                severity = "warning" if unsettled else None
                yield Issue(flag, text, "make both the same", severity, decode.name)


@case_rule("drafts-on-both", "error", source=PD)
def drafts_on_both(case: Case) -> Iterator[Issue]:
    """Prefill and decode servers use the same speculative algorithm, or only decode drafts.
    Prefill runs the draft model once so that decode can continue with it; without, decode begins
    with an empty draft cache. The KV of two different drafts does not fit together."""
    prefills, decodes = (
        by_value(case.of(kind), attrgetter("speculative_algorithm"))
        for kind in ("prefill", "decode")
    )
    for one, other in product(prefills, decodes):
        if one != other:
            yield from draft_issues(prefills[one], decodes[other], one, other)


def draft_issues(
    prefills: list[ServerPlan], decodes: list[ServerPlan], one: str, other: str
) -> Iterator[Issue]:
    """Of algorithms that differ."""
    for server in decodes if other else prefills:
        flag, severity = server.flag("speculative_algorithm"), None
        if one and other:
            text = f"{join_names(prefills)} drafts with {one}, {server.name} with {other}"
            text += ": the draft's KV and hidden states do not fit"
            remedy = "the same --speculative-algorithm and draft model on both"
        elif other:
            text = f"only {server.name} drafts ({other}): its first drafts have no context"
            remedy = "nothing, or the same on prefill if measurements show that it helps"
            severity = "note"
        else:
            text = f"{server.name} drafts with {one}, {join_names(decodes)} with nothing"
            text += ": what prefill drafts is not used"
            remedy, severity = "draft on decode, or nowhere", "warning"
        yield Issue(flag, text, remedy, severity, server.name)
