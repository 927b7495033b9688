"""Rules about whether it fits into memory."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.deploy.case import Case
from vivace.deploy.memory.plan import fraction_for, gib, plan_role
from vivace.deploy.rules.rule import Issue, server_rule
from vivace.deploy.server_plan import ServerPlan

SOURCE = "computed: vivace check --memory shows the parts"
PLAN = ("model", "device")
"""what a plan needs to be known"""


@server_rule("weights-fit", "error", source=SOURCE, needs=PLAN, assumes=("precision",))
def weights_fit(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """The weights leave memory for KV.
    pool = memory x mem-fraction-static - weights."""
    plan = plan_role(case, server)
    if plan is not None and plan.pool <= 0:
        static = f"{plan.fraction} of {gib(plan.usable)} is {gib(plan.usable * plan.fraction)}"
        text = f"weights take {gib(plan.total('static'))}, but {static}: nothing is left for KV"
        remedy = "a larger --tp-size, quantized weights, or a larger --mem-fraction-static"
        yield Issue("mem_fraction_static", text, remedy)


@server_rule("load-fits", "warning", source=SOURCE, needs=(*PLAN, "load"), assumes=("precision",))
def load_fits(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """The KV pool holds the load.
    Requests beyond it are retracted or wait. A prompt's shared beginning (workload.prefix_share) is
    kept once where there is a prefix cache. It is a note where only all outputs at full length at
    the same time exceed the pool, and on prefill servers, whose prompts wait for one another
    anyway."""
    plan = plan_role(case, server)
    if plan is None or plan.pool <= 0 or plan.needed is None or plan.needed <= plan.capacity:
        return
    each, usual = plan.tokens_each or 0, plan.usual or 0
    impossible = each > plan.capacity
    shared = f" ({plan.shared} of them shared)" if plan.shared else ""
    needed = f"{plan.running} requests of {each} tokens{shared} need {plan.needed} tokens of KV"
    fits = "not even one request fits" if impossible else f"an instance holds {plan.held} requests"
    text = f"{needed} per group, the pool holds {plan.capacity}: {fits}"
    remedy = "fewer concurrent requests, a larger --mem-fraction-static, or more devices"
    name = "mem_fraction_static"
    if plan.capacity < plan.room:
        name, remedy = "max_total_tokens", f"--max-total-tokens {min(plan.needed, plan.room)}"
    harmless = server.kind == "prefill" or usual <= plan.capacity
    yield Issue(name, text, remedy, "error" if impossible else "note" if harmless else None)


@server_rule("total-tokens", "note", "max_total_tokens", "remove it", source=SOURCE, needs=PLAN)
def total_tokens(server: ServerPlan, case: Case) -> Iterator[str]:
    """--max-total-tokens does not exceed the KV pool.
    --max-total-tokens can only make the pool smaller."""
    plan, limit = plan_role(case, server), server.max_total_tokens
    if plan is not None and limit is not None and plan.pool > 0 and limit > plan.room:
        yield f"--max-total-tokens {limit} exceeds the KV pool: {plan.room} is used"


@server_rule("outside-fits", "warning", source=SOURCE, needs=PLAN)
def outside_fits(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """--mem-fraction-static leaves enough memory for the rest.
    Activations, graphs, logits and communicators come out of what mem-fraction-static leaves: the
    origin of most out-of-memory reports. The sizes are estimates."""
    plan = plan_role(case, server)
    if plan is not None and plan.total("outside") > plan.outside_limit:
        outside = (part for part in plan.parts if part.kind == "outside")
        largest = max(outside, key=lambda part: part.size)
        rest = f"leaves {gib(plan.outside_limit)} for the rest, about {gib(plan.total('outside'))}"
        why = f", {largest.why}" if largest.why else ""
        text = f"{plan.fraction} {rest}, most of it {largest.name} ({gib(largest.size)}{why})"
        yield Issue("mem_fraction_static", text, f"--mem-fraction-static {fraction_for(plan)}")


@server_rule("host-pool", "error", source="SGLang's HostKVCache, 0.4.6 to 0.5.23", engine="sglang")
def host_pool(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """The host cache is larger than the KV pool of the device.
    --hicache-ratio times that pool, or --hicache-size GB of each rank, which overrides it. Up to
    0.5.14 SGLang asserts it and stops; later ones say that the cache is hardly hit."""
    offloads = server.has("disaggregation_decode_enable_offload_kvcache")
    buffer_only = server.role.flags.get("hicache-host-memory-mode") == "buffer_only"
    if buffer_only or not (offloads or server.has("enable_hierarchical_cache")):
        return
    size, ratio = server.number("hicache_size"), server.value("hicache_ratio")
    plan = plan_role(case, server) if size else None
    held = plan.capacity * plan.token_bytes / 1e9 if plan is not None else 0
    name, text, remedy, severity = "hicache_ratio", "", "--hicache-ratio 2", "warning"
    if size and size < held:
        name, text = "hicache_size", f"--hicache-size {size} GB for a pool of about {held:.0f} GB"
    elif not size and isinstance(ratio, int | float) and ratio < 1:
        text = f"--hicache-ratio {ratio}: the host cache is smaller than the KV pool"
        severity = None if case.target.before("0.5.15") else "warning"
        remedy += "" if case.target.version else " (--target says whether it stops)"
    if text:
        text += "; up to 0.5.14 SGLang stops, later it finds little of what is cached"
        yield Issue(name, text, remedy, severity)
