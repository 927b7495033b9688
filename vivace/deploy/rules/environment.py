"""Rules about environment variables, and how nodes reach one another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from vivace.config.releases.tables import latest, readers, variable_at
from vivace.deploy.case import Case
from vivace.deploy.catalogue.flags import tables
from vivace.deploy.catalogue.variables import SWITCH, is_whole, known_values, nearest_variable
from vivace.deploy.processes import STORE, unreached, url_host, url_port
from vivace.deploy.rules.rule import GUIDE, PAGE, Issue, case_rule, server_rule
from vivace.deploy.schema.deployment import KINDS
from vivace.deploy.server_plan import ServerPlan, if_known, placeholder, unknown
from vivace.deploy.target import versions_that_do
from vivace.errors import nearest

SGLANG = ("SGLANG_", "SGL_")
PREFIXES = (*SGLANG, "VIVACE_")
ALIKE, ALMOST = 0.75, 0.9
"""shares of equal letters from which a name is offered, and from which one is taken for another"""
BUILT_IN = {"SGLANG_ENABLE_SPEC_V2": "what it turned on is always on since 0.5.14"}
"""variables that a version may lack without a loss"""
ADDRESS = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b")
HOME = re.compile(r"^/(?:mnt|home|data\d*|root|Users)/")
OWN_ADDRESSES = ("127.0.0.1", "0.0.0.0", "2.2.2.2")
INVENTORY = (
    "SGLang's source, release by release; HCCL, CANN, torch_npu and deep_ep of sgl-kernel-npu"
)
INTERFACES = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
BOUND = {"npu": INTERFACES, "cuda": ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")}
EVERY = (*INTERFACES, "NCCL_SOCKET_IFNAME")


@case_rule("unknown-variable", "warning", source=INVENTORY, once=True)
def unknown_variable(case: Case) -> Iterator[Issue]:
    """Every variable is known.
    Nothing reports a misspelled variable: it has no effect, and its default stays. Of variables
    without the prefix of an engine those are found that differ by a letter or two from one that
    HCCL, CANN, torch, NCCL, DeepEP, Mooncake or a scheduler reads."""
    for role, name, _ in case.variables:
        if name in tables().variables or readers(name):
            continue
        ours = name.startswith(PREFIXES)
        near = nearest_variable(name, ALIKE if ours else ALMOST)
        if ours or (near and not case.sources.use_variable(name)):
            text = f"{name} is not a known variable{near}"
            yield Issue(name, text, "correct the name, or remove it", role=role)


@case_rule("dead-variable", "warning", source=INVENTORY, once=True)
def dead_variable(case: Case) -> Iterator[Issue]:
    """Variables have an effect in the target version.
    Some variables of published scripts belong to changes that were never merged, or were replaced
    by flags. Without a version, those that no version reads are reported."""
    for role, name, _ in case.variables:
        known = tables().variables.get(name)
        if known is not None and known.dead:
            text = f"no version of SGLang or its router reads {name}"
            yield Issue(name, text, "remove it", role=role)
        elif case.target.engine == "sglang":
            yield from version_issues(role, name, case.target.version)


def version_issues(role: str, name: str, version: str) -> Iterator[Issue]:
    """A variable of SGLang that a version does not read, or calls deprecated; without a version,
    that the newest calls deprecated. Others may be read by libraries."""
    where = version or latest()
    row = variable_at(name, where)
    if name in BUILT_IN and row is None:
        if version:
            text = f"SGLang {version} does not read {name}: {BUILT_IN[name]}"
            yield Issue(name, text, role=role, severity="note")
    elif row is not None and row.state == "deprecated":
        today = f": use {row.today}" if row.today else ""
        text = f"SGLang {where} calls {name} deprecated{today}"
        yield Issue(name, text, role=role, severity="note")
    elif version and name.startswith(SGLANG) and version not in (readers(name) or [version]):
        text = f"SGLang {version} does not read {name}{versions_that_do(readers(name))}"
        yield Issue(name, text, "remove it", role=role)


@case_rule("number-variable", "error", source=INVENTORY)
def number_variable(case: Case) -> Iterator[Issue]:
    """Numeric variables have numeric values.
    Libraries read them with parsers of their own: a wrong value stops the start, or is taken for
    another. SGLang keeps its default, with a line in the log: that is a warning."""
    for role, name, value in case.variables:
        if is_whole(name) and not re.fullmatch(r"-?\d+", value.strip()) and not placeholder(value):
            defaults = case.target.engine == "sglang" and name.startswith(SGLANG)
            severity = "warning" if defaults else None
            text = f"{name}={value} is not an integer"
            yield Issue(name, text, "correct the value", severity, role)


@case_rule("variable-value", "warning", source=INVENTORY, once=True)
def variable_value(case: Case) -> Iterator[Issue]:
    """Variables have values that their readers know.
    A switch of SGLang that is neither true nor false keeps its default, with a line in the log;
    other libraries fall back to theirs without one."""
    for role, name, value in case.variables:
        known = known_values(name)
        text = value.strip().lower() if known == SWITCH else value.strip()
        if text and known and "<" not in text and text not in known:
            said = f"{name}={value} is not one of {', '.join(known)}{nearest(text, known)}"
            yield Issue(name, said, "correct the value", role=role)


@server_rule("task-queue", "note", source=GUIDE, platforms=("npu",), roles=("prefill", "decode"))
def task_queue(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """TASK_QUEUE_ENABLE suits the role.
    Level 2 fuses kernel launches, which helps prefill; decode needs 0: a captured graph replays the
    launches it recorded, and level 2 with graphs is a warning."""
    value, best = server.variable("TASK_QUEUE_ENABLE"), "2" if server.kind == "prefill" else "0"
    if value != best:
        current = f"is {value}" if value else "is not set (1)"
        captured = server.kind == "decode" and not server.has("disable_cuda_graph")
        reason = ": higher levels interfere with captured graphs, which are on" * captured
        text = f"TASK_QUEUE_ENABLE {current}; {best} is best for {server.kind}{reason}"
        severity = "warning" if captured and value == "2" else None
        yield Issue("TASK_QUEUE_ENABLE", text, f"export TASK_QUEUE_ENABLE={best}", severity)


@server_rule("hard-coded", "note", source=PAGE, roles=KINDS)
def hard_coded(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """No value is specific to somebody else's machine.
    Published scripts contain addresses, directories and network interfaces of their authors."""
    allowed = {*OWN_ADDRESSES, *(host for each in case.all for host in each.role.hosts)}
    for flag, value in server.role.flags.items():
        text = str(value)
        foreign = any(address not in allowed for address in ADDRESS.findall(text))
        named = flag in ("model-path", "model", "tokenizer-path") and "/share/" not in text
        if flag != "host" and (foreign or (not named and HOME.match(text))):
            remedy = "replace it with your own"
            yield Issue("--" + flag, f"--{flag} {text} is specific to one machine", remedy)
    name = server.variable("HCCL_SOCKET_IFNAME")
    if "." in name:
        text = f"HCCL_SOCKET_IFNAME={name} is specific to one machine"
        yield Issue("HCCL_SOCKET_IFNAME", text, "replace it with your own")


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
    HCCL and gloo take the first interface they find, which may be the management network's."""
    for name in INTERFACES if server.role.nodes > 1 else ():
        if not any(node.environment.get(name) for node in server.nodes):
            text = f"{name} is not set: the first interface is used, which may be a slow one"
            yield Issue(name, text, f"export {name}=the interface between the nodes")


@case_rule("proxy", "warning", source=f"{PAGE}, which unset them")
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
    The ascend transport needs one config store that all of them know, on one of their nodes."""
    if not (case.of("prefill") and case.of("decode")):
        return
    backend = "disaggregation_transfer_backend"
    halves = case.of("prefill", "decode")
    users = [each for each in halves if if_known(partial(each.value, backend), "") == "ascend"]
    for server in users:
        url, example = server.environment.get(STORE, "").strip(), "tcp://<first prefill node>:24669"
        if not url:
            text = f"{STORE} is not set: the ascend KV transport does not start"
            yield Issue(STORE, text, f"export {STORE}={example} on every node", role=server.name)
        elif not unknown(url) and url_port(url) is None:
            text = f"{STORE}={url} has no port: nobody can connect to it"
            yield Issue(STORE, text, f"{example} in {STORE}", role=server.name)
    urls = sorted({if_known(partial(each.variable, STORE), "") for each in users} - {""})
    if len(urls) == 1 and [*unreached(urls, None, case, "prefill", "decode")]:
        text = f"{STORE}: {url_host(urls[0])} is none of the nodes (if they have no other address)"
        yield Issue(STORE, text, "the address of the first prefill node", "warning", users[0].name)
    if len(urls) > 1:
        text = f"{STORE} differs between servers: {', '.join(urls)}"
        remedy = "use the same on every prefill and decode node"
        severity = None if all(ADDRESS.search(each) for each in urls) else "warning"
        yield Issue(STORE, text, remedy, severity, users[0].name)
