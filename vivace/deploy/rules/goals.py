"""Rules about goals: targets, rates and shared prompts of the workload."""

from __future__ import annotations

import math
from collections.abc import Iterator

from vivace.deploy.case import Case
from vivace.deploy.from_script.undefined import REQUIRE_MODEL
from vivace.deploy.memory.roofline import prompt_milliseconds, token_milliseconds
from vivace.deploy.rules.rule import Issue, case_rule, server_rule
from vivace.deploy.server_plan import DECODES, PREFILLS, ServerPlan

ROOFLINE = "the device's peak rates: no program is faster"
WEIGHTS = ("model", "device")
PROMPT = (*WEIGHTS, "load")


@server_rule("target-first-token", "warning", source=ROOFLINE, needs=PROMPT, roles=PREFILLS)
def target_first_token(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """targets.ttft_ms is possible.
    It is above the time of a prompt's matrix products at the peak rate of a server's devices; what
    prompts share (workload.prefix_share) is not computed again."""
    target, least = case.targets.ttft_ms, prompt_milliseconds(case, server)
    if target is not None and least > target:
        prompt = f"a prompt of {case.load.input} tokens takes {least:.1f} ms at the peak rate"
        text = f"targets.ttft_ms is {target:g}, but {prompt}"
        remedy = "more devices per server, shorter prompts, or a larger target"
        yield Issue("targets.ttft_ms", text, remedy)


@server_rule("target-token", "warning", source=ROOFLINE, needs=WEIGHTS, roles=DECODES)
def target_token(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """targets.tpot_ms is possible.
    It is above the time in which the devices of a stage read the weights that one token needs."""
    target, least = case.targets.tpot_ms, token_milliseconds(case, server)
    if target is not None and least > target:
        read = f"reading the weights of a token takes {least:.2f} ms at the peak bandwidth"
        text = f"targets.tpot_ms is {target:g}, but {read}"
        remedy = "a larger --tp-size, quantized weights, or a larger target"
        yield Issue("targets.tpot_ms", text, remedy)


@case_rule("target-rate", "warning", source="Little's law", needs=("load",))
def target_rate(case: Case) -> Iterator[Issue]:
    """The servers admit workload.rate.
    workload.rate times the output length times targets.tpot_ms is what runs concurrently."""
    rate, tpot, output = case.workload.rate, case.targets.tpot_ms, case.load.output
    if rate is None or tpot is None or output is None:
        return
    running = math.ceil(rate * output * tpot / 1000)
    servers = [server for server in case.of("mixed", "decode") if server.running is not None]
    admitted = sum((server.running or 0) * server.role.instances for server in servers)
    if servers and running > admitted:
        first = servers[0]
        product = f"{rate:g} requests/s x {output} output tokens x {tpot:g} ms"
        text = f"{product} are {running} requests at a time, {admitted} are admitted"
        remedy = f"--max-running-requests for {running} in total, or more instances"
        yield Issue(first.flag("max_running_requests"), text, remedy, role=first.name)


@server_rule("shared-prompts", "warning", source="SGLang's radix cache", roles=PREFILLS)
def shared_prompts(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Shared prefixes are cached.
    Prompts with a common beginning (workload.prefix_share) are computed once."""
    share = case.workload.prefix_share
    if share > 0 and server.has("disable_radix_cache"):
        text = f"{share:.0%} of a prompt is shared, but recomputed: the prefix cache is off"
        yield Issue("disable_radix_cache", text, "remove --disable-radix-cache")


@server_rule("model-path", "warning", source="Vivace")
def model_path(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """--model-path is set, and matches model.path.
    SGLang does not start without it. Every rule and the memory plan compute with the model of the
    file; the server loads the model of the flag."""
    expected, value = case.deployment.model.path, server.value("model_path")
    if value is None and (case.launches or "config" in server.role.flags):
        return
    if value is None and server.role.program in REQUIRE_MODEL and case.target.engine == "sglang":
        text = f"{server.role.program} without --model-path: it stops at once"
        yield Issue("--model-path", text, f"--model-path {expected or 'FOLDER_OR_NAME'}", "error")
    elif expected is not None and value != expected:
        text = f"--model-path is {value or 'not set'}, but model.path is {expected}"
        yield Issue("model_path", text, "make both the same, or remove model.path")


@case_rule("unread", "note", source="Vivace")
def unread(case: Case) -> Iterator[Issue]:
    """Every key of the deployment file is used.
    A key that no rule, plan or renderer can use beside the others is reported."""
    stated, model = case.workload, case.deployment.model
    measured = bool(case.deployment.benchmarks)
    if stated.rate is not None and case.targets.tpot_ms is None and not measured:
        remedy = "add targets.tpot_ms, or a benchmark to compare it with"
        yield Issue("workload.rate", "workload.rate is not used", remedy)
    if stated.requests is not None and not measured:
        remedy = "add a benchmark to compare it with"
        yield Issue("workload.requests", "workload.requests is not used", remedy)
    if model.draft is not None:
        remedy = "the memory of a draft model is not counted yet"
        yield Issue("model.draft", "model.draft is not used", remedy)
