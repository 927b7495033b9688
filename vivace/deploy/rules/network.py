"""Rules about how nodes reach one another."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.deploy.case import Case
from vivace.deploy.processes import url_port
from vivace.deploy.rules.environment import ADDRESS, GUIDE
from vivace.deploy.rules.rule import Issue, case_rule, server_rule
from vivace.deploy.server_plan import ServerPlan

INTERFACES = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
BOUND = {"npu": INTERFACES, "cuda": ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")}
EVERY = (*INTERFACES, "NCCL_SOCKET_IFNAME")
STORE = "ASCEND_MF_STORE_URL"


@server_rule("loopback-nodes", "error", source=GUIDE)
def loopback_nodes(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Instances of several nodes do not use the loopback interface.
    The handshakes of HCCL, NCCL and gloo bind to the given interface; lo does not leave the
    node."""
    for name in BOUND.get(case.platform, EVERY) if server.role.nodes > 1 else ():
        values = [node.environment.get(name, "") for node in server.nodes]
        found = [value for value in values if value.strip() in ("lo", "localhost")]
        if found:
            text = f"{name}={found[0]}: the ranks on {server.role.nodes} nodes cannot connect"
            yield Issue(name, text, "use the interface that connects the nodes")


@server_rule("interface-named", "warning", source=GUIDE, platforms=("npu",))
def interface_named(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Instances of several nodes set their network interface.
    HCCL and gloo take the first interface they find; on a node with several it may be the
    management network."""
    for name in INTERFACES if server.role.nodes > 1 else ():
        if not any(node.environment.get(name) for node in server.nodes):
            text = f"{name} is not set: the first interface is used, which may be a slow one"
            yield Issue(name, text, f"export {name}=the interface between the nodes")


@case_rule("proxy", "warning", source="the published configurations, which unset them")
def proxy(case: Case) -> Iterator[Issue]:
    """No proxy is set between the servers.
    Registration and health checks use HTTP clients that honor proxy variables."""
    for role, name, value in case.variables:
        if name.lower() in ("http_proxy", "https_proxy") and value.strip():
            text = f"{name}={value}: requests between servers use the proxy and may hang"
            yield Issue(name, text, f"unset {name}", role=role)


@case_rule("store-url", "error", source=GUIDE, platforms=("npu",))
def store_url(case: Case) -> Iterator[Issue]:
    """Prefill and decode servers use the same KV store.
    The ascend transport needs one config store that all of them know."""
    if not (case.of("prefill") and case.of("decode")):
        return
    halves = case.of("prefill", "decode")
    users = [each for each in halves if each.value("disaggregation_transfer_backend") == "ascend"]
    for server in users:
        if not server.variable(STORE):
            text = f"{STORE} is not set: the ascend KV transport does not start"
            remedy = f"export {STORE}=tcp://<first prefill node>:24669 on every node"
            yield Issue(STORE, text, remedy, role=server.name)
        elif url_port(server.variable(STORE)) is None:
            text = f"{STORE}={server.variable(STORE)} has no port: nobody can connect to it"
            remedy = f"tcp://<first prefill node>:24669 in {STORE}"
            yield Issue(STORE, text, remedy, role=server.name)
    urls = sorted({server.variable(STORE) for server in users} - {""})
    if len(urls) > 1:
        text = f"{STORE} differs between servers: {', '.join(urls)}"
        remedy = "use the same on every prefill and decode node"
        severity = None if all(ADDRESS.search(each) for each in urls) else "warning"
        yield Issue(STORE, text, remedy, severity, users[0].name)
