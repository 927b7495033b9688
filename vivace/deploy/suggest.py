"""`vivace check --suggest`: values that follow from the rest of a deployment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from vivace.deploy.case import Case
from vivace.deploy.memory import buffers
from vivace.deploy.memory.plan import MemoryPlan, plan_role
from vivace.deploy.memory.windows import windows
from vivace.deploy.rules.memory import fraction_for
from vivace.deploy.server_plan import DISPATCH, ServerPlan, UnknownValue

ENDLESS = 1 << 20
SPECULATIVE_STEPS = ((8, 1), (32, 2), (64, 4), (256, 8), (ENDLESS, 16))
PLAIN_STEPS = ((2, 1), (4, 2), (16, 4), (256, 8), (512, 16), (ENDLESS, 32))
"""(up to this batch, step between captured sizes), as SGLang chooses them"""
PAGE = 128
MAX_CHUNK = 16384


class Suggestion(msgspec.Struct, frozen=True):
    """`place`: "flags" or "environment" of the role; `before` is None where nothing is set."""

    role: str
    place: str
    name: str
    before: Any
    value: Any
    why: str


def suggest(case: Case) -> list[Suggestion]:
    """One for each value that can be derived and is not what it would be."""
    found: list[Suggestion] = []
    for server in case.servers:
        with suppress(UnknownValue):
            found += suggestions_of(case, server)
    return [each for each in found if str(each.before) != str(each.value)]


def suggestions_of(case: Case, server: ServerPlan) -> Iterator[Suggestion]:
    """Of flags first: what experts send depends on them."""
    plan = plan_role(case, server)
    of_flags = [*chunk_suggestions(case, server), *graph_suggestions(server)]
    if plan is not None:
        of_flags += memory_suggestions(case, server, plan)
    yield from of_flags
    yield from expert_suggestions(case, with_flags(server, of_flags))


def with_flags(server: ServerPlan, found: Iterable[Suggestion]) -> ServerPlan:
    """The role as it would be."""
    flags = {**server.role.flags, **{each.name: each.value for each in found}}
    role = replace(server.role, flags=flags)
    return ServerPlan(server.name, role, server.environment, server.nodes)


def memory_suggestions(case: Case, server: ServerPlan, plan: MemoryPlan) -> Iterator[Suggestion]:
    fraction = fraction_for(plan)
    if plan.total("outside") > plan.outside_limit or not plan.chosen:
        yield flag(
            server,
            "mem_fraction_static",
            fraction,
            f"what is not static is estimated at {plan.total('outside') / (1 << 30):.1f} GiB of "
            f"{plan.usable / (1 << 30):.1f}",
        )
    held, wanted = plan.held, case.load.concurrency
    if held is None or not server.decodes:
        return
    each = held if wanted is None else min(held, -(-wanted // server.role.instances))
    limit = each // server.parallelism.dp * server.parallelism.dp
    too_many = plan.needed is not None and plan.needed > plan.capacity
    if limit and (server.running is None or too_many):
        why = (
            f"the pool holds {plan.capacity} tokens of a group, a request takes {plan.tokens_each}"
        )
        yield flag(server, "max_running_requests", limit, why)


def graph_suggestions(server: ServerPlan) -> Iterator[Suggestion]:
    rank, graphs = server.running_per_rank, server.graphs
    if rank is None or not server.decodes or server.has("disable_cuda_graph"):
        return
    if not graphs or max(graphs) != rank:
        sizes = captured_sizes(rank, drafts=server.draft_tokens > 1)
        yield flag(server, "cuda_graph_bs", sizes, f"up to {rank} requests of a rank run at once")


def captured_sizes(largest: int, *, drafts: bool) -> list[int]:
    """SGLang's own list up to `largest`, which is always in it."""
    steps = SPECULATIVE_STEPS if drafts else PLAIN_STEPS
    sizes: list[int] = []
    size = 0
    for limit, step in steps:
        while size + step <= min(limit, largest):
            size += step
            sizes.append(size)
    return sizes if sizes and sizes[-1] == largest else [*sizes, largest]


def expert_suggestions(case: Case, server: ServerPlan) -> Iterator[Suggestion]:
    tokens = server.dispatch_tokens
    sends = server.decodes and server.expert_mode in ("low_latency", "auto", "fused")
    before = server.environment.get(DISPATCH)
    if sends and tokens is not None:
        layout = server.parallelism
        yield Suggestion(
            server.name,
            "environment",
            DISPATCH,
            before,
            str(tokens),
            f"{server.running} requests / dp {layout.dp} x {server.draft_tokens} / "
            f"{layout.attention_tp} ranks of a group",
        )
    if case.model is None:
        return
    found = windows(with_dispatch(server, tokens if sends else None), case.model, case.load)
    if found:
        largest = max(found, key=lambda window: window.size)
        size = max(buffers.HCCL_DEFAULT, buffers.suggested(largest.size))
        takes = buffers.megabytes(largest.size)
        why = f"the {largest.name} window for {largest.why} takes {takes} MB"
        before = server.environment.get("HCCL_BUFFSIZE")
        yield Suggestion(server.name, "environment", "HCCL_BUFFSIZE", before, str(size), why)


def with_dispatch(server: ServerPlan, tokens: int | None) -> ServerPlan:
    """The role with the suggested dispatch limit in place of its own."""
    if tokens is None:
        return server
    environment = {**server.environment, DISPATCH: str(tokens)}
    return ServerPlan(server.name, server.role, environment, server.nodes)


def chunk_suggestions(case: Case, server: ServerPlan) -> Iterator[Suggestion]:
    given = case.load.input
    if given is None or server.has("chunked_prefill_size") or not server.prefills:
        return
    dp = server.parallelism.dp if server.parallelism.dp_attention else 1
    whole = -(-given // PAGE) * PAGE
    size = min(whole, MAX_CHUNK) * dp
    why = f"a prompt of {given} tokens at once" + (f", divided by dp {dp}" if dp > 1 else "")
    yield flag(server, "chunked_prefill_size", size, why)


def flag(server: ServerPlan, name: str, value: Any, why: str) -> Suggestion:
    typed = server.given[name][0] if name in server.given else name.replace("_", "-")
    before = server.role.flags.get(typed)
    return Suggestion(server.name, "flags", typed, before, value, why)


def changes(found: Iterable[Suggestion]) -> dict[tuple[str, ...], Any]:
    """Path of keys in a deployment file -> value."""
    return {("roles", each.role, each.place, each.name): each.value for each in found}
