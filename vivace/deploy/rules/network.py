"""Rules about how nodes reach one another."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.deploy.rules.case import Case
from vivace.deploy.rules.environment import ADDRESS, GUIDE, variables
from vivace.deploy.rules.finding import Found, Rule

LOOPBACK = ("lo", "localhost")
STORE = "ASCEND_MF_STORE_URL"


def loopback(case: Case) -> Iterator[Found]:
    for server in case.servers:
        if server.role.nodes < 2:
            continue
        for name in ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            for node in server.nodes:
                if node.environment.get(name, "").strip() in LOOPBACK:
                    yield Found(
                        role=server.name,
                        flag=name,
                        text=f"{name}={node.environment[name]} on an instance of "
                        f"{server.role.nodes} nodes: its ranks cannot reach one another",
                        remedy="name the interface that connects the nodes",
                    )
                    break


def no_interface(case: Case) -> Iterator[Found]:
    if case.platform != "npu":
        return
    for server in case.servers:
        for name in ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            if server.role.nodes > 1 and not any(
                node.environment.get(name) for node in server.nodes
            ):
                yield Found(
                    role=server.name,
                    flag=name,
                    text=f"{name} is not set on an instance of {server.role.nodes} nodes: the "
                    "first "
                    "interface found is used, which need not be the fast one",
                    remedy=f"export {name}=the interface between the nodes",
                )


def bootstrap_proxy(case: Case) -> Iterator[Found]:
    for server, name, value in variables(case):
        if name.lower() in ("http_proxy", "https_proxy") and value.strip():
            yield Found(
                role=server.name,
                flag=name,
                text=f"{name}={value}: requests between the servers go to the proxy, and bootstrap "
                "hangs",
                remedy=f"unset {name}",
            )


def store_url(case: Case) -> Iterator[Found]:
    """The KV store of the ascend transport."""
    if not (case.of("prefill") and case.of("decode")):
        return
    halves = case.of("prefill", "decode")
    users = [each for each in halves if each.value("disaggregation_transfer_backend") == "ascend"]
    for server in users:
        if not server.variable(STORE):
            yield Found(
                role=server.name,
                flag=STORE,
                text=f"{STORE} is not set: the ascend KV transport does not start",
                remedy=f"export {STORE}=tcp://<first prefill node>:24669 on every node",
            )
    found = sorted({server.variable(STORE) for server in users} - {""})
    if len(found) > 1:
        yield Found(
            role=users[0].name,
            flag=STORE,
            text=f"{STORE} differs: {', '.join(found)}",
            remedy="give every prefill and decode node the same",
            severity=None if all(ADDRESS.search(each) for each in found) else "warning",
        )


RULES = (
    Rule(
        name="loopback-nodes",
        severity="error",
        title="Nodes of one instance meet over a real interface",
        explanation="The handshakes of HCCL and gloo bind to the named interface; lo does not "
        "leave "
        "the node.",
        source=GUIDE,
        check=loopback,
    ),
    Rule(
        name="interface-named",
        severity="warning",
        title="Instances of several nodes name their interface",
        explanation="Without it a slow or wrong interface may be taken.",
        source=GUIDE,
        check=no_interface,
    ),
    Rule(
        name="proxy",
        severity="warning",
        title="No proxy stands between the servers",
        explanation="Registration and health checks use HTTP clients that honour proxy variables.",
        source="the published configurations, which unset them",
        check=bootstrap_proxy,
    ),
    Rule(
        name="store-url",
        severity="error",
        title="Prefill and decode find the KV store",
        explanation="The ascend transport needs one config store that all of them know.",
        source=GUIDE,
        check=store_url,
    ),
)
