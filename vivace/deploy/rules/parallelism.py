"""Rules about how the ranks of an instance share cards, nodes, heads and experts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vivace.config.parallelism import (
    dense_tp,
    dp_divides_tp,
    ep_divides_tp,
    nodes_share_ranks,
    plain_dp_nodes,
)
from vivace.deploy.case import Case
from vivace.deploy.from_script.roles import flag_value
from vivace.deploy.memory.weights import dense_ranks, weight_precision
from vivace.deploy.processes import instances, role_name
from vivace.deploy.rules.rule import ARGS, PAGE, Issue, case_rule, server_rule
from vivace.deploy.schema.nodes import without_address
from vivace.deploy.server_plan import PARTITION, ServerPlan, placeholder
from vivace.models.attention_shapes import GroupedAttention

PP_INDICES = "SGLang's get_pp_indices and make_layers"
CONFIG = "the model's config.json"
ATTENTION = "SGLang's model files; the model's config.json"
BLOCKS = "SGLang's fp8.py, 0.4.6 to 0.5.23"
LOOPBACK = re.compile(r"(tcp://)?(localhost|127(\.\d+){3}|\[::1\]):\d+")
MOST_TRIED = 1024
"""ranks, of which a remedy tries fewer"""
SHARING = {"enable-ep-moe", "moe-dp-size", "moe-data-parallel-size"}
"""flags that share experts in another way"""
CATALOGUE = "hardware catalogue"


@case_rule("cards", "error", source=f"{PAGE}; {CATALOGUE}", needs=("cards",))
def cards(case: Case) -> Iterator[Issue]:
    """The ranks use exactly the stated cards.
    instances x tp (x pp x replicas) = cards x devices per card. An A3 card has two dies, each of
    them a device; an A2 card is one."""
    device, stated = case.device, case.cards
    if device is None or stated is None or not case.servers:
        return
    parts = {each.name: each.role.instances * each.parallelism.devices for each in case.servers}
    for instance in instances(case):  # its nodes may have flags of their own
        names = [role_name(each, case) for each in instance]
        parts = {name: parts[name] for name in parts if name not in names[1:] or name == names[0]}
    available, used = stated * device.devices_per_card, sum(parts.values())
    if used == available:
        return
    parts_text = " + ".join(f"{count} for {name}" for name, count in parts.items())
    kind = "dies" if device.devices_per_card > 1 else "devices"
    left = available - used
    rest = f"{left} unused" if left > 0 else f"{-left} missing"
    text = f"{used} {kind} used ({parts_text}), {stated} cards have {available}: {rest}"
    remedy = "change --tp-size, the number of instances or the number of cards"
    yield Issue("hardware.cards", text, remedy, "warning" if left > 0 else None)


@server_rule("node-capacity", "error", source=CATALOGUE, needs=("device",))
def node_capacity(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """A node has enough devices for its ranks.
    tp x pp / nnodes ranks run on one node."""
    devices, nodes = server.parallelism.devices, server.positive("nnodes")
    each, limit = -(-devices // nodes), case.devices_per_node
    if limit is not None and each > limit:
        text = f"{devices} devices on {nodes} node(s) are {each} per node; a node has {limit}"
        remedy = f"--nnodes {-(-devices // limit)} or a smaller --tp-size"
        if server.parallelism.replicas > 1:
            why = "without it each of the dp replicas has devices of its own"
            remedy = f"--enable-dp-attention: {why}"
        yield Issue("nnodes", text, remedy)


@server_rule("nodes", "error", source=ARGS)
def nodes(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """--nnodes is the number of nodes of an instance.
    The servers wait forever for a node that nobody starts."""
    role = server.role
    hosts, expected = len(role.hosts), role.nodes * role.instances
    by_ray = bool(role.flags.get("use-ray"))
    if hosts and hosts != expected and not (by_ray and hosts == role.instances):
        text = f"{hosts} hosts for {role.instances} instance(s) of {role.nodes} node(s)"
        yield Issue("hosts", f"{text}: expected {expected}", "list one host per node")
    flag, name = without_address(server.nodes)
    if flag:
        text = f"{flag} has {name}, an address, and the role's hosts have none for it"
        remedy = "list one host per node (`render --to kubernetes` needs none: pods are told)"
        yield Issue(flag, text, remedy, "warning")
    if (nnodes := server.positive("nnodes")) != role.nodes:
        text = f"--nnodes is {nnodes}, but an instance of this role has {role.nodes} node(s)"
        yield Issue("nnodes", text, "make both the same")


@server_rule("nodes-share-ranks", "error", source=ARGS)
def ranks_per_node(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """tp x pp is a multiple of the nodes.
    Every node starts tp x pp / nnodes ranks; SGLang asserts that the division leaves nothing."""
    if fault := nodes_share_ranks(server.parallelism):
        yield Issue("nnodes", fault, "choose a tp that is a multiple of the nodes")


@server_rule("meeting-point", "error", source=ARGS)
def meeting_point(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Instances of several nodes set --dist-init-addr.
    Its default is an address of the node itself, so each node would wait for ranks that never
    come; so is a loopback address. With --use-ray the first node finds one and tells the
    others."""
    nnodes = server.positive("nnodes")
    given = [flag_value(node.flags, "dist-init-addr") for node in server.nodes]
    by_ray = any(flag_value(node.flags, "use-ray") for node in server.nodes)
    if nnodes > 1 and not all(given) and not by_ray:
        text = f"--dist-init-addr is not set for {nnodes} nodes: each of them waits for itself"
        yield Issue("--dist-init-addr", text, "--dist-init-addr <first node>:5000 on every node")
    for address in dict.fromkeys(map(str, filter(None, given))) if nnodes > 1 else ():
        if not placeholder(address) and not address.rpartition(":")[2].isdecimal():
            text = f"--dist-init-addr {address} has no port"
            yield Issue("dist_init_addr", text, f"--dist-init-addr {address}:5000")
        elif LOOPBACK.fullmatch(address):
            text = f"--dist-init-addr {address}: each machine takes that for itself, so the "
            text += f"{nnodes} nodes only meet when all of them are on one"
            remedy = "the address of the first node"
            yield Issue("dist_init_addr", text, remedy, "warning")


@server_rule("plain-dp-nodes", "error", source=ARGS)
def nodes_of_replicas(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Data parallelism over several nodes uses dp attention.
    Replicas without it are whole servers on one node; SGLang stops when they would span nodes."""
    if fault := plain_dp_nodes(server.parallelism):
        remedy = "--enable-dp-attention, or one instance per replica behind a router"
        yield Issue("dp_size", fault, remedy)


@server_rule("dp-divides-tp", "error", "dp_size", "choose a dp (x cp) that divides tp", source=ARGS)
def attention_groups(server: ServerPlan, case: Case) -> Iterator[str]:
    """With dp attention or context parallelism, tp is a multiple of dp x cp.
    An attention group has tp / (dp x cp) ranks, and all groups have the same size."""
    if fault := dp_divides_tp(server.parallelism):
        yield fault


@server_rule("running-divides", "warning", source=ARGS)
def running_divides(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """--max-running-requests is a multiple of dp with dp attention.
    It is divided by dp, and the remainder is lost; replicas admit all of them each."""
    limit, dp = server.number("max_running_requests"), server.parallelism.attention_dp
    each = server.running_per_rank
    if limit and each and limit % dp:
        text = f"{limit} is not a multiple of dp {dp}: each rank admits {each}, all {each * dp}"
        yield Issue("max_running_requests", text, f"use {each * dp}")


@server_rule("heads", "error", source=CONFIG, engine="sglang", needs=("model",))
def heads(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """The number of attention heads is a multiple of the ranks of a group (attention-tp).
    Each rank computes whole heads, and all ranks compute as many; on CPUs SGLang pads them."""
    count, ranks = case.known_model.attention.heads, server.parallelism.attention_tp
    if count % ranks and case.platform != "cpu":
        text = f"{count} attention heads cannot be divided by {ranks} ranks"
        yield Issue("tp_size", text, f"choose tp and dp so that tp/dp divides {count}")


@server_rule("kv-heads", "error", source=ATTENTION, engine="sglang", needs=("model",))
def kv_heads(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """The number of KV heads is a multiple of the ranks of a group (attention-tp), or divides it.
    Ranks have as many whole heads, or several share one, each with a copy; models of SGLang assert
    it."""
    model, ranks = case.known_model, server.parallelism.attention_tp
    grouped = [
        each for each in (model.attention, model.sliding) if isinstance(each, GroupedAttention)
    ]
    for count in dict.fromkeys(each.kv_heads for each in grouped):
        if count % ranks and ranks % count and case.platform != "cpu":
            text = f"{ranks} ranks cannot share {count} KV heads evenly"
            remedy = f"choose tp and dp so that tp/dp divides {count} or is a multiple of it"
            yield Issue("tp_size", text, remedy)


@server_rule("kv-copies", "note", source=CONFIG, needs=("model",))
def kv_copies(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """KV heads are not replicated.
    With more ranks than KV heads each head is stored several times."""
    attention, ranks = case.known_model.attention, server.parallelism.attention_tp
    if not isinstance(attention, GroupedAttention) or ranks <= attention.kv_heads:
        return
    copies, rest = divmod(ranks, attention.kv_heads)
    if rest == 0:
        text = f"{ranks} ranks share {attention.kv_heads} KV heads: "
        text += f"every head is stored {copies} times"
        remedy = "more data parallelism in attention (--dp-size) stores fewer copies"
        yield Issue("tp_size", text, remedy)


@server_rule("experts", "error", source=CONFIG, engine="sglang", needs=("model",))
def experts(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """The number of experts is a multiple of ep.
    Each rank of a group holds as many experts; redundant ones count."""
    routed = case.known_model.experts
    if routed is None:
        return
    redundant, ep = server.number("ep_num_redundant_experts") or 0, server.parallelism.ep
    count = routed.count + redundant
    if count % ep:
        with_copies = f" ({redundant} of them redundant)" if redundant else ""
        text = f"{count} experts{with_copies} cannot be divided by ep {ep}"
        wanted = redundant + -count % ep
        remedy = f"--ep-num-redundant-experts {wanted}, or an ep that divides {count}"
        yield Issue("ep_size", text, remedy)


@server_rule(
    "weight-blocks",
    "error",
    source=BLOCKS,
    engine="sglang",
    needs=("model",),
    assumes=("blocks", "gpu"),
)
def weight_blocks(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Ranks share the blocks of FP8 weights evenly.
    A block, of 128 x 128 weights mostly, has one scale. SGLang stops where the parts of an MLP or
    an expert are not whole blocks; experts are padded with flashinfer_trtllm, Blackwell's
    default."""
    model, layout, quantization = case.known_model, server.parallelism, server.value("quantization")
    precision = weight_precision(server, case.deployment.model.quantization, model)[0]
    if precision != "fp8" or quantization not in (None, "fp8") or case.platform in ("cpu", "npu"):
        return
    runner = server.value("moe_runner_backend")
    padded = "trtllm" in str(runner) or (runner == "auto" and case.start_facts.on("sm100"))
    shared = [("an MLP", model.dense_width, dense_ranks(server), 0)] if model.dense_layers else []
    if (routed := model.experts) and not padded and not SHARING & server.role.flags.keys():
        shared.append(("an expert", routed.width, max(1, layout.tp // layout.ep), routed.count))
    for what, width, ranks, count in shared:
        if not model.blocks.divide(width, ranks):
            part = f"{what} of {width} on {ranks} ranks is {width / ranks:g} each"
            fewer = range(1, min(ranks, MOST_TRIED))
            fits = [each for each in fewer if ranks % each == count % (ranks // each) == 0]
            best = max((each for each in fits if model.blocks.divide(width, each)), default=1)
            remedy = f"--ep-size {layout.tp // best}" if count else f"--tp-size {best}"
            yield Issue("tp_size", f"{part}, no multiple of {model.blocks.rows}, a block", remedy)


@server_rule("ep-divides-tp", "error", "ep_size", "choose an ep that divides tp", source=ARGS)
def expert_groups(server: ServerPlan, case: Case) -> Iterator[str]:
    """tp is a multiple of ep.
    The experts of a layer are divided among groups of tp / ep ranks."""
    if fault := ep_divides_tp(server.parallelism):
        yield fault


@server_rule("dense-tp", "error", "moe_dense_tp_size", "use 1, or remove it", source=ARGS)
def dense_groups(server: ServerPlan, case: Case) -> Iterator[str]:
    """--moe-dense-tp-size is unset or 1, from 0.5.13 on also tp.
    The dense layers of an expert model are replicated or divided among all ranks."""
    stated = server.number("moe_dense_tp_size") is not None
    if stated and (fault := dense_tp(server.parallelism, whole=not case.target.before("0.5.13"))):
        yield fault


@server_rule("pipeline-partition", "error", source=PP_INDICES)
def pipeline_partition(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """SGLANG_PP_LAYER_PARTITION has a number for each pipeline rank.
    Otherwise every rank stops when it loads the model. From 0.5.19 on one rank ignores it."""
    counts, pp = server.stage_layers, server.parallelism.pp
    if counts and len(counts) != pp and not (pp == 1 and case.target.since("0.5.19")):
        text = f"{PARTITION} has {len(counts)} numbers for --pp-size {pp}"
        severity = None if pp > 1 or case.target.version else "warning"
        yield Issue(PARTITION, text, f"{pp} numbers, or --pp-size {len(counts)}", severity)


@server_rule("pipeline-layers", "error", source=PP_INDICES, engine="sglang", needs=("model",))
def pipeline_layers(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Pipeline ranks have layers, and SGLANG_PP_LAYER_PARTITION has all of them together.
    make_layers asserts that there are not more ranks than layers."""
    pp, layers = server.parallelism.pp, case.known_model.layers
    if pp > layers:
        text = f"--pp-size {pp} for {layers} layers: ranks without a layer stop at an assertion"
        yield Issue("pp_size", text, f"--pp-size {layers} or less")
    elif (counts := server.stage_layers) and len(counts) == pp and sum(counts) != layers:
        text = f"{PARTITION} has {sum(counts)} layers, the model {layers}"
        yield Issue(PARTITION, text, f"numbers with the sum {layers}")
