"""Rules about how an instance's ranks are laid out on cards, nodes, heads and experts."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.deploy.catalogue.architecture import Attention
from vivace.deploy.rules.case import Case
from vivace.deploy.rules.finding import Found, Rule

ARGS = "SGLang's server_args.py"


def cards(case: Case) -> Iterator[Found]:
    device, stated = case.device, case.cards
    if device is None or stated is None or not case.servers:
        return
    have = stated * device.devices_per_card
    parts = [
        (server.role.instances * server.layout.devices, server.name) for server in case.servers
    ]
    used = sum(count for count, _ in parts)
    if used == have:
        return
    sum_text = " + ".join(f"{count} of {name}" for count, name in parts)
    kind = "dies" if device.devices_per_card > 1 else "devices"
    left = have - used
    yield Found(
        flag="hardware.cards",
        text=f"{used} {kind} are used ({sum_text}), {stated} cards have {have}: "
        + (f"{left} stand idle" if left > 0 else f"{-left} are missing"),
        remedy="change --tp-size, the number of instances, or the number of cards",
    )


def dp_divides(case: Case) -> Iterator[Found]:
    for server in case.servers:
        layout = server.layout
        groups = layout.dp * layout.cp
        if layout.dp_attention and layout.tp % groups:
            yield Found(
                role=server.name,
                flag=server.flag("tp_size"),
                text=f"tp {layout.tp} is no multiple of dp {layout.dp}"
                + (f" x cp {layout.cp}" if layout.cp > 1 else "")
                + ": attention groups would be of different sizes",
                remedy="let dp (x cp) divide tp",
            )


def running_divides(case: Case) -> Iterator[Found]:
    for server in case.servers:
        most, dp = server.number("max_running_requests"), server.layout.dp
        if most and most > 0 and most % dp:
            yield Found(
                role=server.name,
                flag=server.flag("max_running_requests"),
                text=f"max-running-requests {most} is no multiple of dp {dp}: each rank admits "
                f"{most // dp}, together {most // dp * dp}",
                remedy=f"use {most // dp * dp or dp}",
            )


def heads_divide(case: Case) -> Iterator[Found]:
    if case.model is None:
        return
    heads = case.model.attention.heads
    for server in case.servers:
        ranks = server.layout.attention_tp
        if heads % ranks:
            yield Found(
                role=server.name,
                flag=server.flag("tp_size"),
                text=f"{heads} attention heads cannot be shared by {ranks} ranks",
                remedy=f"choose tp and dp so that tp/dp divides {heads}",
            )


def kv_copies(case: Case) -> Iterator[Found]:
    model = case.model
    if model is None or not isinstance(model.attention, Attention):
        return
    for server in case.servers:
        ranks, heads = server.layout.attention_tp, model.attention.kv_heads
        if ranks > heads:
            yield Found(
                role=server.name,
                flag=server.flag("tp_size"),
                text=f"{ranks} ranks share {heads} KV heads: every head is kept {ranks // heads} "
                "times, and KV memory is lost to copies",
                remedy="more data parallelism in attention (--dp-size) leaves fewer copies",
            )


def experts_divide(case: Case) -> Iterator[Found]:
    if case.model is None or case.model.experts is None:
        return
    for server in case.servers:
        count = case.model.experts.count + (server.number("ep_num_redundant_experts") or 0)
        if count % server.layout.ep:
            yield Found(
                role=server.name,
                flag=server.flag("ep_size"),
                text=f"{count} experts cannot be spread evenly over ep {server.layout.ep}",
                remedy=f"choose an ep that divides {count}, or add --ep-num-redundant-experts",
            )


def ep_divides(case: Case) -> Iterator[Found]:
    for server in case.servers:
        ep, tp = server.number("ep_size") or 1, server.layout.tp
        if ep > 1 and tp % ep and server.layout.ep == ep:
            yield Found(
                role=server.name,
                flag=server.flag("ep_size"),
                text=f"tp {tp} is no multiple of ep {ep}",
                remedy="let ep divide tp",
            )


def nodes_divide(case: Case) -> Iterator[Found]:
    for server in case.servers:
        nnodes, ranks = server.positive("nnodes"), server.layout.tp * server.layout.pp
        if ranks % nnodes:
            yield Found(
                role=server.name,
                flag=server.flag("nnodes"),
                text=f"tp {server.layout.tp} x pp {server.layout.pp} = {ranks} ranks cannot be "
                "shared "
                f"by {nnodes} nodes",
                remedy="choose a tp that is a multiple of the nodes",
            )


def node_capacity(case: Case) -> Iterator[Found]:
    hardware, device = case.deployment.hardware, case.device
    if device is None or hardware is None:
        return
    most = (hardware.cards_per_node or device.cards_per_node) * device.devices_per_card
    for server in case.servers:
        each = -(-server.layout.devices // server.positive("nnodes"))
        if each > most:
            yield Found(
                role=server.name,
                flag=server.flag("nnodes"),
                text=f"{server.layout.devices} devices on {server.positive('nnodes')} node(s) are "
                f"{each} on one; a node has {most}",
                remedy=f"--nnodes {-(-server.layout.devices // most)} or a smaller --tp-size",
            )


def node_count(case: Case) -> Iterator[Found]:
    for server in case.servers:
        nnodes = server.positive("nnodes")
        if nnodes != server.role.nodes:
            yield Found(
                role=server.name,
                flag=server.flag("nnodes"),
                text=f"--nnodes {nnodes}, but the role has {server.role.nodes} node(s) an instance",
                remedy="make both the same",
            )
        hosts, wanted = len(server.role.hosts), server.role.nodes * server.role.instances
        if hosts and hosts != wanted:
            yield Found(
                role=server.name,
                flag="hosts",
                text=f"{hosts} hosts for {server.role.instances} instance(s) of "
                f"{server.role.nodes} node(s): {wanted} are wanted",
                remedy="name one host for each node",
            )


def meeting_point(case: Case) -> Iterator[Found]:
    for server in case.servers:
        if server.positive("nnodes") > 1 and not server.has("dist_init_addr"):
            yield Found(
                role=server.name,
                flag="--dist-init-addr",
                text=f"{server.positive('nnodes')} nodes need an address to meet at: without "
                "--dist-init-addr each of them waits for itself",
                remedy="--dist-init-addr <first node>:5000 on every node",
            )


def plain_dp_nodes(case: Case) -> Iterator[Found]:
    for server in case.servers:
        if (
            server.positive("nnodes") > 1
            and server.layout.dp > 1
            and not server.layout.dp_attention
        ):
            yield Found(
                role=server.name,
                flag=server.flag("dp_size"),
                text=f"dp {server.layout.dp} over {server.positive('nnodes')} nodes without "
                "--enable-dp-attention is not possible",
                remedy="--enable-dp-attention, or one instance for each replica behind a router",
            )


def dense_tp(case: Case) -> Iterator[Found]:
    for server in case.servers:
        size = server.number("moe_dense_tp_size")
        if size is not None and size not in (1, server.layout.tp):
            yield Found(
                role=server.name,
                flag=server.flag("moe_dense_tp_size"),
                text=f"--moe-dense-tp-size {size}: only 1 and tp ({server.layout.tp}) are possible",
                remedy="use 1, or leave it out",
            )


def dp_head(case: Case) -> Iterator[Found]:
    for server in case.servers:
        if not server.has("enable_dp_lm_head") or server.layout.dp_attention:
            continue
        alone = server.layout.dp == 1
        yield Found(
            role=server.name,
            flag=server.flag("enable_dp_lm_head"),
            text="--enable-dp-lm-head needs --enable-dp-attention"
            + (": with dp 1 it is dropped without a word" if alone else ""),
            remedy="leave it out" if alone else "--enable-dp-attention",
            severity="warning" if alone else "error",
        )


def pipeline(case: Case) -> Iterator[Found]:
    for server in case.servers:
        if server.layout.pp < 2:
            continue
        for name, text in (
            ("speculative_algorithm", "speculation"),
            ("enable_mixed_chunk", "--enable-mixed-chunk"),
        ):
            if server.has(name):
                yield Found(
                    role=server.name,
                    flag=server.flag(name),
                    text=f"a pipeline of {server.layout.pp} stages does not go with {text}",
                    remedy=f"leave out {server.flag(name)} or --pp-size",
                )


def context_parallel(case: Case) -> Iterator[Found]:
    for server in case.servers:
        if server.has("enable_nsa_prefill_context_parallel") and server.layout.cp == 1:
            yield Found(
                role=server.name,
                flag=server.flag("enable_nsa_prefill_context_parallel"),
                text="context parallelism is on, but --attn-cp-size is 1: from 0.5.10 nothing is "
                "shared out on Ascend without it",
                remedy=f"--attn-cp-size {server.layout.tp}",
                severity="note",
            )


RULES = (
    Rule(
        name="cards",
        severity="error",
        title="The ranks fill the cards that are named",
        explanation="instances x tp (x pp x replicas) = cards x devices of a card. An A3 card has "
        "two dies, each of them a device; an A2 card is one.",
        source="the published configurations; hardware catalogue",
        needs=("cards",),
        check=cards,
    ),
    Rule(
        name="node-capacity",
        severity="error",
        title="A node has as many devices as its ranks need",
        explanation="tp x pp / nnodes ranks run on one node.",
        source="hardware catalogue",
        needs=("device",),
        check=node_capacity,
    ),
    Rule(
        name="nodes",
        severity="error",
        title="--nnodes is the number of nodes of an instance",
        explanation="A node that nobody starts is waited for for ever.",
        source=ARGS,
        check=node_count,
    ),
    Rule(
        name="nodes-share-ranks",
        severity="error",
        title="Every node has as many ranks as the others",
        explanation="tp x pp must be a multiple of nnodes.",
        source=ARGS,
        check=nodes_divide,
    ),
    Rule(
        name="meeting-point",
        severity="error",
        title="Several nodes have one address to meet at",
        explanation="--dist-init-addr is where the ranks of an instance find one another.",
        source=ARGS,
        check=meeting_point,
    ),
    Rule(
        name="plain-dp-nodes",
        severity="error",
        title="Replicas stay on a node",
        explanation="nnodes > 1 with plain data parallelism is refused.",
        source=ARGS,
        check=plain_dp_nodes,
    ),
    Rule(
        name="dp-divides-tp",
        severity="error",
        title="Attention groups are of equal size",
        explanation="With dp attention, tp % (dp x cp) must be 0.",
        source=ARGS,
        check=dp_divides,
    ),
    Rule(
        name="running-divides",
        severity="error",
        title="Requests are shared out evenly",
        explanation="max-running-requests is divided by dp; what is left over is lost.",
        source=ARGS,
        check=running_divides,
    ),
    Rule(
        name="heads",
        severity="error",
        title="Attention heads can be shared by the ranks of a group",
        explanation="heads % attention-tp must be 0.",
        source="the model's config.json",
        needs=("model",),
        check=heads_divide,
    ),
    Rule(
        name="kv-copies",
        severity="note",
        title="KV heads are not copied",
        explanation="With more ranks than KV heads each head is kept several times.",
        source="the model's config.json",
        needs=("model",),
        check=kv_copies,
    ),
    Rule(
        name="experts",
        severity="error",
        title="Experts can be spread evenly",
        explanation="experts % ep must be 0.",
        source="the model's config.json",
        needs=("model",),
        check=experts_divide,
    ),
    Rule(
        name="ep-divides-tp",
        severity="error",
        title="Expert groups fit into tensor groups",
        explanation="tp % ep must be 0.",
        source=ARGS,
        check=ep_divides,
    ),
    Rule(
        name="dense-tp",
        severity="error",
        title="The dense layers of an expert model are whole or shared by all",
        explanation="--moe-dense-tp-size is unset, 1 or tp.",
        source=ARGS,
        check=dense_tp,
    ),
    Rule(
        name="dp-lm-head",
        severity="error",
        title="A head for attention groups has attention groups",
        explanation="_handle_data_parallelism asserts dp attention; with dp 1 it resets the flag "
        "silently.",
        source=ARGS,
        check=dp_head,
    ),
    Rule(
        name="pipeline",
        severity="error",
        title="A pipeline goes without speculation and mixed chunks",
        explanation="pp > 1 refuses both and turns overlap off.",
        source=ARGS,
        check=pipeline,
    ),
    Rule(
        name="context-parallel",
        severity="note",
        title="Context parallelism has ranks",
        explanation="--attn-cp-size sets its degree.",
        source="SGLang 0.5.10; parameter guide",
        check=context_parallel,
    ),
)
