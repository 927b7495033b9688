"""`vivace check --suggest`: the values that a deployment leaves open, from its load and its rest.

What is given stays. The rules themselves decide what is too much: values are derived for the whole
load first, then for smaller prefills, then for fewer requests, until no rule about them objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from vivace.config.all_to_all import MOST_LIMIT
from vivace.config.releases.tables import row_at, variable_at
from vivace.deploy.case import Case
from vivace.deploy.catalogue.hardware import GIB
from vivace.deploy.from_script.flags import find_option
from vivace.deploy.memory import buffers
from vivace.deploy.memory.defaults import default_chunk
from vivace.deploy.memory.plan import MemoryPlan, gib, plan_role
from vivace.deploy.memory.roofline import prompt_milliseconds
from vivace.deploy.memory.windows import USUAL_PREFILL, buffer_variable, windows
from vivace.deploy.rules.judge import Finding, find_rule, judge
from vivace.deploy.server_plan import DISPATCH, ServerPlan, UnknownValue

OF_KERNELS = ("dispatch-tokens", "dispatch-fused", "dispatch-limits", "hccl-buffer", "long-rounds",
              "graph-covers")  # fmt: skip
OF_MEMORY = ("weights-fit", "load-fits", "outside-fits")
LIMITING = OF_KERNELS + OF_MEMORY
"""rules that fewer requests or a smaller prefill satisfy"""
ANY_PAGE = 128
"""tokens, a multiple of all pages, where the page is not known"""
ENDLESS = 1 << 20
SPECULATIVE_STEPS = ((8, 1), (32, 2), (64, 4), (256, 8), (ENDLESS, 16))
PLAIN_STEPS = ((2, 1), (4, 2), (16, 4), (256, 8), (512, 16), (ENDLESS, 32))
"""(up to this batch, step between captured sizes), as SGLang chooses them"""
LARGEST_PREFILL = {"npu": 32768}
"""tokens of an instance at once, as published configurations have them; elsewhere SGLang's own"""
SMALLEST_PREFILL = 4096
"""tokens of a group at once, or SGLang's own where that is less: smaller parts of a prompt keep the
device waiting for the memory that they save"""
MAX_RUNNING = 4096
"""of an instance, where no load is stated"""
RESERVE = 12 * GIB
RESERVED_SHARE = RESERVE / (64 * GIB)
"""for driver, runtime and what no estimate knows, beside the estimates; at most this share of a
smaller device"""
LEAST_RESERVED = 1 / 3
"""part of the reserve that also a load which needs the memory does not get"""
SMALLEST_POOL = 0.1
"""share of the memory that KV gets where the estimates allow it"""
# LARGEST_PREFILL, RESERVE and SMALLEST_POOL are chosen, for the published configurations: the table
# in docs/deployments.md says how well they do.


class Suggestion(msgspec.Struct, frozen=True):
    """`place`: "flags" or "environment" of the role."""

    role: str
    place: str
    name: str
    value: Any
    why: str


class BatchLimits(msgspec.Struct, frozen=True):
    """`running`: requests of an attention group; `prefill`: tokens of a group at once; None: not
    to be decided."""

    running: int | None
    prefill: int | None


def suggest(case: Case) -> list[Suggestion]:
    """A value for everything that is open and can be derived."""
    found: list[Suggestion] = []
    for server in case.servers:
        with suppress(UnknownValue):
            found += suggest_role(case, server)
    return found


def find_unresolved(case: Case, found: list[Suggestion]) -> tuple[Finding, ...]:
    """Errors and warnings that are left with the suggestions: of what is given, or because nothing
    fits."""
    result = judge(with_suggestions(case, found))
    return tuple(each for each in result.findings if each.severity in ("error", "warning"))


def changes(found: list[Suggestion]) -> dict[tuple[str, ...], Any]:
    """Path of keys in a deployment file -> value."""
    return {("roles", each.role, each.place, each.name): each.value for each in found}


def with_suggestions(case: Case, found: list[Suggestion]) -> Case:
    roles = dict(case.deployment.roles)
    for each in found:
        role = roles[each.role]
        if each.place == "flags":
            roles[each.role] = replace(role, flags={**role.flags, each.name: each.value})
        else:
            variables = {**role.environment, each.name: each.value}
            roles[each.role] = replace(role, environment=variables)
    return replace(case, deployment=replace(case.deployment, roles=roles))


def suggest_role(case: Case, server: ServerPlan) -> list[Suggestion]:
    """For one role: the whole load, else with smaller prefills, else as much of it as fits."""
    running = wanted_running(case, server)
    prefills = list(prefill_sizes(case, server, running))
    for prefill in prefills:
        found = suggest_values(case, server, BatchLimits(running, prefill))
        if is_accepted(case, server, found):
            return found
    if running is None:
        return suggest_values(case, server, BatchLimits(None, prefills[0]))
    for rules in (LIMITING, OF_KERNELS):  # where memory is too small for any, the kernels remain
        few, many = 0, running + 1
        while many - few > 1:
            middle = (few + many) // 2
            found = suggest_values(case, server, BatchLimits(middle, prefills[-1]))
            few, many = (middle, many) if is_accepted(case, server, found, rules) else (few, middle)
        if few:
            return suggest_values(case, server, BatchLimits(few, prefills[-1]))
    return suggest_values(case, server, BatchLimits(running, prefills[0]))


def is_accepted(
    case: Case, server: ServerPlan, found: list[Suggestion], rules: tuple[str, ...] = LIMITING
) -> bool:
    known = [rule for name in rules if (rule := find_rule(name)) is not None]
    return not any(
        each.role == server.name and each.severity in ("error", "warning")
        for each in judge(with_suggestions(case, found), known).findings
    )


def suggest_values(case: Case, server: ServerPlan, limits: BatchLimits) -> list[Suggestion]:
    """All values of a role that are open, each from those before it."""
    found: list[Suggestion] = []
    for step in (running_limit, prefill_chunk, graph_sizes, dispatch_limit, buffer, static_share):
        made = with_suggestions(case, found)
        current = next(each for each in made.servers if each.name == server.name)
        suggestion = step(made, current, limits)
        if suggestion is not None:
            found.append(suggestion)
    return found


def wanted_running(case: Case, server: ServerPlan) -> int | None:
    """Concurrent requests of an attention group by the stated load; None if that is given, or
    nothing says it."""
    load, dp = case.load, server.parallelism.dp
    if server.has("max_running_requests"):
        return None
    stated = load.concurrency or concurrency_of_rate(case)
    if stated is None and (case.lacks("model") or case.lacks("device") or case.lacks("load")):
        return None
    whole = -(-(stated or MAX_RUNNING) // (server.role.instances * dp))
    if server.kind == "prefill":
        limit = largest_prefill(case, server)
        return max(1, min(whole, limit // load.input)) if load.input else None
    return whole if stated else max(1, min(whole, running_in_time(case, server)))


def concurrency_of_rate(case: Case) -> int | None:
    """Little's law: requests that arrive while one is served."""
    rate, targets, output = case.workload.rate, case.targets, case.load.output
    if rate is None or targets.tpot_ms is None or output is None:
        return None
    return -int(-rate * (output * targets.tpot_ms + (targets.ttft_ms or 0)) // 1000)


def running_in_time(case: Case, server: ServerPlan) -> int:
    """Requests of a group whose KV a device can read, beside the weights, in a step that keeps
    targets.tpot_ms."""
    target, plan = case.targets.tpot_ms, plan_role(case, server)
    if target is None or plan is None or not plan.tokens_each or not plan.token_bytes:
        return MAX_RUNNING
    held = sum(p.size for p in plan.parts if p.kind == "static" and p.name != "KV cache")
    readable = plan.device.bandwidth_gbs * 1e6 * target * server.draft_tokens
    return int(max(0.0, readable - held) // (plan.tokens_each * plan.token_bytes))


def largest_prefill(case: Case, server: ServerPlan) -> int:
    """Tokens of a group at once."""
    return LARGEST_PREFILL.get(case.platform, USUAL_PREFILL) // server.parallelism.attention_dp


def prefill_sizes(case: Case, server: ServerPlan, running: int | None) -> Iterator[int | None]:
    """Tokens of a group at once, the largest first: whole prompts, then parts of one."""
    prompt = case.load.input
    if prompt is None or not server.prefills or server.has("chunked_prefill_size"):
        yield None
        return
    page = server.page_tokens(case.platform, ANY_PAGE)
    whole = -(-prompt // page) * page
    requests = running or server.running_per_rank
    room = max(page, sent_beside(server, requests or 0) // page * page)
    limit = min(largest_prefill(case, server), room)
    prompts = min(limit // whole, requests or ENDLESS)
    target = case.targets.ttft_ms
    if target is not None and not case.lacks("model") and not case.lacks("device"):
        each = prompt_milliseconds(case, server)
        prompts = min(prompts, int(target / each) if each else prompts)
    while prompts > 1:
        yield prompts * whole
        prompts //= 2
    size = min(whole, max(limit, USUAL_PREFILL), room)
    yield size
    least = min(SMALLEST_PREFILL, default_chunk(case)) // server.parallelism.attention_dp
    while size > max(least, page):  # a part is whole pages
        size = max(least, -(-size // 2 // page) * page)
        yield size


def sent_beside(server: ServerPlan, requests: int) -> int:
    """Tokens of prompts that a step of low latency has room for beside these requests."""
    if not sends_prompts(server):
        return ENDLESS
    limit = server.int_variable(DISPATCH) or MOST_LIMIT
    return limit * server.parallelism.attention_tp - requests * server.draft_tokens


def sends_prompts(server: ServerPlan) -> bool:
    """Whether prompts travel to their experts as requests do."""
    return server.expert_mode == "low_latency" and server.prefills and server.decodes


def running_limit(case: Case, server: ServerPlan, limits: BatchLimits) -> Suggestion | None:
    if limits.running is None:
        return None
    layout, stated = server.parallelism, case.load.concurrency or concurrency_of_rate(case)
    if server.kind == "prefill":
        limit = largest_prefill(case, server)
        why = f"prompts of {case.load.input} tokens that a prefill of {limit} holds in a group"
    elif stated is None:
        why = "as many as memory and targets allow"
    else:
        why = f"{stated} at a time"
        why += f" on {server.role.instances} instances" if server.role.instances > 1 else ""
        if limits.running * layout.dp * server.role.instances < stated:
            why += ", of which no more fit"
    return flag(case, server, "max_running_requests", limits.running * layout.attention_dp, why)


def prefill_chunk(case: Case, server: ServerPlan, limits: BatchLimits) -> Suggestion | None:
    if limits.prefill is None:
        return None
    dp = server.parallelism.attention_dp
    page = server.page_tokens(case.platform, ANY_PAGE)
    count = limits.prefill // (-(-(case.load.input or 1) // page) * page)
    what = f"{count} prompts" if count > 1 else "a prompt" if count else "a part of a prompt"
    why = f"{what} of {case.load.input} tokens at once" + (f", divided by dp {dp}" * (dp > 1))
    return flag(case, server, "chunked_prefill_size", limits.prefill * dp, why)


def graph_sizes(case: Case, server: ServerPlan, limits: BatchLimits) -> Suggestion | None:
    rank = server.running_per_rank
    off = case.platform == "cpu" or server.has("disable_cuda_graph") or server.graphs
    if rank is None or off or not server.decodes or server.expert_mode == "normal":
        return None
    sizes = captured_sizes(rank, drafts=server.draft_tokens > 1)
    return flag(
        case, server, "cuda_graph_bs", sizes, f"up to {rank} requests of a rank run at once"
    )


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


def dispatch_limit(case: Case, server: ServerPlan, limits: BatchLimits) -> Suggestion | None:
    tokens, mode = server.dispatch_tokens, server.expert_mode
    sends = server.decodes and mode in ("low_latency", "auto", "fused") and server.fused_mode != 2
    if tokens is None or not sends or server.variable(DISPATCH):
        return None
    if case.target.version and variable_at(DISPATCH, case.target.version) is None:
        return None
    terms, prompts = server.dispatch_terms, limits.prefill
    if prompts is not None and sends_prompts(server):
        tokens += -(-prompts // server.parallelism.attention_tp)
        terms += f", and {prompts} tokens of prompts"
    return Suggestion(server.name, "environment", DISPATCH, str(tokens), terms)


def buffer(case: Case, server: ServerPlan, limits: BatchLimits) -> Suggestion | None:
    given = server.variable(buffer_variable(server))
    if case.model is None or case.platform != "npu" or given:
        return None
    found = windows(server, case)
    largest = max(found, key=lambda window: window.size, default=None)
    if largest is None or buffers.megabytes(largest.size) <= buffers.HCCL_DEFAULT:
        return None
    why = f"the {largest.name} window for {largest.why} takes {buffers.megabytes(largest.size)} MB"
    size = str(buffers.suggest_size(largest.size))
    return Suggestion(server.name, "environment", "HCCL_BUFFSIZE", size, why)


def static_share(case: Case, server: ServerPlan, limits: BatchLimits) -> Suggestion | None:
    plan = plan_role(case, server)
    if plan is None or plan.chosen:
        return None
    reserve = min(RESERVE, RESERVED_SHARE * plan.usable)
    outside = plan.total("outside")
    comfortable, largest = (
        int(100 * (1 - (outside + part * reserve) / plan.usable)) / 100
        for part in (1, LEAST_RESERVED)
    )
    needed = needed_share(plan, whole_load=case.load.concurrency is not None)
    share = max(0.01, min(largest, max(comfortable, needed)))
    why = f"leaves {gib(plan.usable * (1 - share))}: about {gib(outside)} for activations, graphs "
    why += "and communicators, the rest for driver and runtime"
    return flag(case, server, "mem_fraction_static", share, why)


def needed_share(plan: MemoryPlan, *, whole_load: bool) -> float:
    """For weights and a small pool, or the KV of the stated load."""
    held = plan.total("static") - max(0, plan.pool)
    pool = int(SMALLEST_POOL * plan.usable)
    if whole_load and plan.needed is not None:
        tokens = plan.needed + plan.page
        pool = max(pool, tokens * plan.token_bytes + (plan.running or 0) * plan.state_bytes)
    return -int(-100 * (held + pool) // plan.usable) / 100


def flag(case: Case, server: ServerPlan, name: str, value: Any, why: str) -> Suggestion:
    """The option as the target spells it."""
    option = find_option(name.replace("_", "-"))
    spelled = option.flags if option is not None else ("--" + name.replace("_", "-"),)
    version = case.target.version
    taken = (each for each in spelled if not version or row_at(each, version) is not None)
    return Suggestion(server.name, "flags", next(taken, spelled[0])[2:], value, why)
