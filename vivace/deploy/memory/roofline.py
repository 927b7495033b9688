"""The least time that a device needs: no program is faster than its peak rates."""

from __future__ import annotations

from vivace.deploy.case import Case
from vivace.deploy.memory.weights import PRECISIONS, Precision, weight_precision
from vivace.deploy.server_plan import ServerPlan


def get_precision(case: Case, server: ServerPlan) -> Precision:
    return PRECISIONS[weight_precision(server, case.deployment.model.quantization, case.model)[0]]


def prompt_milliseconds(case: Case, server: ServerPlan) -> float:
    """Least time of the longest prompt: its products, at the devices' peak. What other prompts
    share with it is taken from the cache."""
    shared = case.workload.prefix_share if server.caches_prefixes else 0.0
    tokens = (case.load.input or 0) * (1 - shared)
    device, precision = case.known_device, get_precision(case, server)
    quantized = min(precision.experts, precision.linear) < 2
    rate = max(device.bf16_tflops, device.int8_tops if quantized else 0.0)
    devices = server.parallelism.tp * server.parallelism.pp
    return 1000 * 2 * case.known_model.parameters(active=True) * tokens / (devices * rate * 1e12)


def token_milliseconds(case: Case, server: ServerPlan) -> float:
    """Least time of a token: a step reads the weights of one token at least; drafts come along."""
    precision = get_precision(case, server)
    size = case.known_model.parameters(active=True) * min(precision.experts, precision.linear)
    seconds = size / (server.parallelism.tp * case.known_device.bandwidth_gbs * 1e9)
    return 1000 * seconds / server.draft_tokens
