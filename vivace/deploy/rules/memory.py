"""Rules about whether it fits."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.deploy.catalogue.hardware import GIB
from vivace.deploy.memory.plan import MemoryPlan, plan_role
from vivace.deploy.rules.case import Case
from vivace.deploy.rules.finding import Found, Rule
from vivace.deploy.rules.server import Server

SOURCE = "computed: vivace check --memory shows the parts"


def plans(case: Case) -> Iterator[tuple[Server, MemoryPlan]]:
    for server in case.servers:
        plan = plan_role(case, server)
        if plan is not None:
            yield server, plan


def gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"


def weights_fit(case: Case) -> Iterator[Found]:
    for server, plan in plans(case):
        if plan.pool > 0:
            continue
        held = plan.total("static")
        yield Found(
            role=server.name,
            flag=server.flag("mem_fraction_static"),
            text=f"weights take {gib(held)} of a device, {plan.fraction} of {gib(plan.usable)} is "
            f"{gib(plan.usable * plan.fraction)}: nothing is left for KV",
            remedy="a larger --tp-size, fewer bits, or a larger --mem-fraction-static",
        )


def load_fits(case: Case) -> Iterator[Found]:
    for server, plan in plans(case):
        needed = plan.needed
        if plan.pool <= 0 or needed is None or needed <= plan.capacity:
            continue
        alone = plan.tokens_each or 0
        impossible = alone > plan.capacity
        yield Found(
            role=server.name,
            flag=server.flag("mem_fraction_static"),
            text=f"{plan.running} requests of {alone} tokens are {needed} in a group; the pool "
            "holds "
            f"{plan.capacity} (weights {gib(plan.total('static') - max(plan.pool, 0))} of "
            f"{gib(plan.usable * plan.fraction)}): "
            + ("not even one fits" if impossible else f"{plan.held} of an instance fit at once"),
            remedy="fewer requests at once, a larger --mem-fraction-static, or more devices",
            severity="error" if impossible else None,
        )


def total_tokens(case: Case) -> Iterator[Found]:
    for server, plan in plans(case):
        asked = server.number("max_total_tokens")
        if asked is not None and plan.pool > 0 and asked > plan.capacity:
            yield Found(
                role=server.name,
                flag=server.flag("max_total_tokens"),
                text=f"--max-total-tokens {asked} is more than the pool holds: {plan.capacity} is "
                "used",
                remedy="leave it out",
            )


def outside_fits(case: Case) -> Iterator[Found]:
    for server, plan in plans(case):
        outside = plan.total("outside")
        if outside > plan.outside_limit:
            largest = max(
                (p for p in plan.parts if p.kind == "outside"), key=lambda part: part.size
            )
            yield Found(
                role=server.name,
                flag=server.flag("mem_fraction_static"),
                text=f"--mem-fraction-static {plan.fraction} leaves {gib(plan.outside_limit)} for "
                f"what is not static; that is estimated at {gib(outside)}, most of it "
                f"{largest.name} ({gib(largest.size)}"
                + (f", {largest.why})" if largest.why else ")"),
                remedy=f"--mem-fraction-static {fraction_for(plan)}",
            )


def fraction_for(plan: MemoryPlan) -> float:
    """The largest share that leaves room for the rest, in hundredths."""
    share = 1 - (plan.total("outside") / plan.usable + 0.005)
    return max(0.01, int(share * 100) / 100)


RULES = (
    Rule(
        name="weights-fit",
        severity="error",
        title="The weights leave room for KV",
        explanation="pool = memory x mem-fraction-static - weights.",
        source=SOURCE,
        needs=("model", "device"),
        check=weights_fit,
    ),
    Rule(
        name="load-fits",
        severity="warning",
        title="The pool holds the load",
        explanation="Requests beyond it are retracted or wait. Tokens needed are those of all "
        "admitted requests at full length; in practice they are not all at their end at once.",
        source=SOURCE,
        needs=("model", "device", "load"),
        check=load_fits,
    ),
    Rule(
        name="total-tokens",
        severity="note",
        title="The pool is as large as it is called",
        explanation="--max-total-tokens can only make the pool smaller.",
        source=SOURCE,
        needs=("model", "device"),
        check=total_tokens,
    ),
    Rule(
        name="outside-fits",
        severity="warning",
        title="What is not static has room",
        explanation="Activations, graphs, logits and communicators come out of what "
        "mem-fraction-static leaves: the origin of most out-of-memory reports. The sizes are "
        "estimates.",
        source=SOURCE,
        needs=("model", "device"),
        check=outside_fits,
    ),
)
