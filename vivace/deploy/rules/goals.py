"""Rules about what must be reached: targets, rates and shared prompts of the workload."""

from __future__ import annotations

import math
from collections.abc import Iterator

from vivace.deploy.catalogue.architecture import Architecture
from vivace.deploy.memory.weights import PRECISIONS, Precision, precision_name
from vivace.deploy.rules.case import Case
from vivace.deploy.rules.finding import Found, Rule
from vivace.deploy.rules.server import Server
from vivace.deploy.spec.deployment import Targets, Workload

ROOFLINE = "the device's peak rates: no program is faster"
LITTLE = "Little's law"


def targets_of(case: Case) -> Targets:
    return case.deployment.targets or Targets()


def workload_of(case: Case) -> Workload:
    return case.deployment.workload or Workload()


def precision_of(case: Case, server: Server) -> Precision:
    return PRECISIONS[precision_name(server, case.deployment.model.quantization)]


def multiplied(model: Architecture) -> int:
    """Parameters that a token is multiplied with; the embedding is only looked up."""
    return model.parameters(active=True) - (0 if model.tied else model.vocabulary * model.hidden)


def token_milliseconds(case: Case, server: Server) -> float:
    """Least time of a token: a step reads the weights of one token at least; drafts come along."""
    assert case.model is not None and case.device is not None
    precision = precision_of(case, server)
    size = multiplied(case.model) * min(precision.experts, precision.linear)
    seconds = size / (server.layout.tp * case.device.bandwidth_gbs * 1e9)
    return 1000 * seconds / server.draft_tokens


def prompt_milliseconds(case: Case, server: Server) -> float:
    """Least time of the longest prompt: its products, at the devices' peak. What other prompts
    share with it is taken from the cache."""
    assert case.model is not None and case.device is not None
    shared = 0.0 if server.has("disable_radix_cache") else workload_of(case).prefix_share
    tokens = (case.load.input or 0) * (1 - shared)
    device, precision = case.device, precision_of(case, server)
    narrow = min(precision.experts, precision.linear) < 2
    rate = max(device.bf16_tflops, device.int8_tops if narrow else 0.0)
    devices = server.layout.tp * server.layout.pp
    return 1000 * 2 * multiplied(case.model) * tokens / (devices * rate * 1e12)


def first_token(case: Case) -> Iterator[Found]:
    target = targets_of(case).ttft_ms
    for server in case.of("mixed", "prefill"):
        least = prompt_milliseconds(case, server)
        if target is not None and least > target:
            yield Found(
                role=server.name,
                text=f"the first token shall come within {target:g} ms, and the products of a "
                f"prompt of {case.load.input} take {least:.1f} ms at the devices' peak",
                remedy="more devices for each server, shorter prompts, or a later target",
            )


def further_tokens(case: Case) -> Iterator[Found]:
    target = targets_of(case).tpot_ms
    for server in case.of("mixed", "decode"):
        least = token_milliseconds(case, server)
        if target is not None and least > target:
            yield Found(
                role=server.name,
                text=f"a token shall take {target:g} ms, and reading the weights it needs takes "
                f"{least:.2f} ms at the devices' bandwidth",
                remedy="a larger --tp-size, narrower weights, or a later target",
            )


def rate(case: Case) -> Iterator[Found]:
    wanted, each = workload_of(case).rate, targets_of(case).tpot_ms
    output = case.load.output
    if wanted is None or each is None or output is None:
        return
    running = math.ceil(wanted * output * each / 1000)
    servers = [server for server in case.of("mixed", "decode") if server.running is not None]
    admitted = sum((server.running or 0) * server.role.instances for server in servers)
    if servers and running > admitted:
        yield Found(
            role=servers[0].name,
            flag=servers[0].flag("max_running_requests"),
            text=f"{wanted:g} requests a second with answers of {output} tokens at {each:g} ms are "
            f"{running} at once; {admitted} are admitted",
            remedy=f"--max-running-requests for {running} in all, or more instances",
        )


def shared_prompts(case: Case) -> Iterator[Found]:
    share = workload_of(case).prefix_share
    for server in case.of("mixed", "prefill"):
        if share > 0 and server.has("disable_radix_cache"):
            yield Found(
                role=server.name,
                flag=server.flag("disable_radix_cache"),
                text=f"{share:.0%} of a prompt is shared with others, and the prefix cache is off: "
                "it is computed every time",
                remedy="leave --disable-radix-cache out",
            )


def stated_path(case: Case) -> Iterator[Found]:
    wanted = case.deployment.model.path
    for server in case.servers:
        found = server.value("model_path")
        if wanted is not None and found != wanted:
            yield Found(
                role=server.name,
                flag=server.flag("model_path"),
                text=f"--model-path is {found or 'not given'}, and the file's model.path {wanted}",
                remedy="make both the same, or leave model.path out",
            )


def unread(case: Case) -> Iterator[Found]:
    """What the file says and no rule can use beside the rest of it."""
    stated, targets, model = workload_of(case), targets_of(case), case.deployment.model
    measured = bool(case.deployment.benchmarks)
    if stated.rate is not None and targets.tpot_ms is None and not measured:
        yield idle("workload.rate", "add targets.tpot_ms, or a benchmark to compare it with")
    if stated.requests is not None and not measured:
        yield idle("workload.requests", "add a benchmark to compare it with")
    if model.draft is not None:
        yield idle("model.draft", "the memory of a draft model is not counted yet")


def idle(key: str, remedy: str) -> Found:
    return Found(text=f"{key} is stated and nothing reads it", remedy=remedy)


RULES = (
    Rule(
        name="target-first-token",
        severity="warning",
        title="The first token can come in time",
        explanation="targets.ttft_ms is above the time of a prompt's products at the peak rate of "
        "a server's devices; what prompts share (workload.prefix_share) is not computed again.",
        source=ROOFLINE,
        needs=("model", "device", "load"),
        check=first_token,
    ),
    Rule(
        name="target-token",
        severity="warning",
        title="A further token can come in time",
        explanation="targets.tpot_ms is above the time in which the devices of a stage read the "
        "weights that one token needs.",
        source=ROOFLINE,
        needs=("model", "device"),
        check=further_tokens,
    ),
    Rule(
        name="target-rate",
        severity="warning",
        title="The rate is admitted",
        explanation="workload.rate times the length of an answer times targets.tpot_ms is what "
        "runs at once.",
        source=LITTLE,
        needs=("load",),
        check=rate,
    ),
    Rule(
        name="shared-prompts",
        severity="warning",
        title="What prompts share is cached",
        explanation="Prompts with a common beginning (workload.prefix_share) are computed once.",
        source="SGLang's radix cache",
        check=shared_prompts,
    ),
    Rule(
        name="model-path",
        severity="warning",
        title="What is served is what is stated",
        explanation="model.path and the servers' --model-path are the same.",
        source="Vivace",
        check=stated_path,
    ),
    Rule(
        name="unread",
        severity="note",
        title="What is stated is used",
        explanation="A key that no rule, plan or renderer can use is named.",
        source="Vivace",
        check=unread,
    ),
)
