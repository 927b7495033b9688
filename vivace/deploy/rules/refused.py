"""Rules about settings that SGLang refuses in combination, after minutes or at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from vivace.deploy.case import Case
from vivace.deploy.processes import is_address
from vivace.deploy.rules.rule import ARGS, Issue, Rule, ServerCheck, server_rule
from vivace.deploy.schema.deployment import KINDS
from vivace.deploy.server_plan import ServerPlan, UnknownValue

WITHOUT_HYBRID_HOST_CACHE = ("0.4.6", "0.5.7", "0.5.8", "0.5.10")
BUFFERS_CHOSEN = "0.5.14"
"""from here on SGLang chooses how the states of recurrent layers are cached"""


def refused(name: str, *about: str, **facts: Any) -> Callable[[ServerCheck], Rule]:
    reason = "SGLang checks it at start-up and stops."
    return server_rule(name, "error", *about, source=f"{ARGS}, 0.5.10", reason=reason, **facts)


@refused("chunk-pages", engine="sglang")
def chunk_pages(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """--chunked-prefill-size, divided by dp with dp attention, is a multiple of the page size.
    From 0.5.3 on decode servers are not asked; up to 0.4.9.post3 the undivided size is."""
    chunk, page = server.number("chunked_prefill_size"), server.page_size(case.platform)
    if not (page and chunk and chunk > 0 and server.has("chunked_prefill_size")):
        return
    dp = 1 if case.target.before("0.4.9.post4") else server.parallelism.attention_dp
    if chunk // dp % page and (server.kind != "decode" or case.target.before("0.5.3")):
        each = f"{chunk} / dp {dp} = {chunk // dp}" if dp > 1 else chunk
        text = f"--chunked-prefill-size {each} is not a multiple of the page size {page}"
        size = page * dp
        yield Issue("chunked_prefill_size", text, f"use {max(1, chunk // size) * size}")


@refused(
    "served-name", "served_model_name", "use a name without a colon", since="0.5.7", engine="sglang"
)
def served_name(server: ServerPlan, case: Case) -> Iterator[str]:
    """--served-model-name has no colon."""
    name = server.value("served_model_name")
    if isinstance(name, str) and ":" in name:
        yield f"--served-model-name {name}: a colon introduces the name of a LoRA adapter"


@refused("topk-pages", "speculative_eagle_topk", "--speculative-eagle-topk 1", engine="sglang")
def topk_pages(server: ServerPlan, case: Case) -> Iterator[str]:
    """The attention backend supports draft trees at this page size."""
    topk, page = server.number("speculative_eagle_topk"), server.page_size(case.platform) or 1
    backend = server.value("attention_backend")
    tree = server.has("speculative_algorithm") and topk and topk > 1
    if tree and page > 1 and backend not in ("flashinfer", "fa3", "triton"):
        cause = f"topk {topk} with a page size of {page} needs an attention backend with tree masks"
        yield f"{cause}; {backend or 'the default'} has none"


@refused("hybrid-cache", needs=("model",), engine="sglang")
def hybrid_cache(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Caches and speculation support recurrent layers.
    0.5.10 to 0.5.13.post1 stop where speculation and the prefix cache meet without extra_buffer
    (from 0.5.11 on ROCm turns the cache off instead). From 0.5.14 on `auto` chooses extra_buffer
    where steps overlap; no_buffer stops where they do, with pages above 1 token and trtllm_mha."""
    if case.model is None or not case.model.linear_layers:
        return
    target = case.target
    if server.has("enable_hierarchical_cache") and target.version in WITHOUT_HYBRID_HOST_CACHE:
        text = f"SGLang {target.version} has no host cache for models with recurrent layers"
        yield Issue("enable_hierarchical_cache", text, "remove it")
    strategy = server.value("mamba_scheduler_strategy")
    if server.has("disable_radix_cache") or strategy not in ("auto", "no_buffer", None):
        return
    extra = f"{server.flag('mamba_scheduler_strategy')} extra_buffer"
    refuses = not target.before("0.5.10") and not target.since(BUFFERS_CHOSEN)
    turned_off = case.platform == "hip" and target.since("0.5.11")
    if server.has("speculative_algorithm") and refuses and not turned_off:
        text = "recurrent layers with speculation and the prefix cache need extra buffers"
        since = "" if target.version else f" (from SGLang {BUFFERS_CHOSEN} on it is chosen)"
        severity = None if target.version else "warning"
        yield Issue("speculative_algorithm", text + since, extra, severity)
    if strategy != "no_buffer" or not target.since(BUFFERS_CHOSEN):
        return
    for wrong, needed in (
        (lambda: not server.has("disable_overlap_schedule"), "--disable-overlap-schedule"),
        (lambda: (server.number("page_size") or 1) > 1, "--page-size 1"),
        (lambda: server.value("attention_backend") == "trtllm_mha", "another attention backend"),
    ):
        with suppress(UnknownValue):
            if wrong():
                text = f"SGLang {target.version} stops: no_buffer needs {needed}"
                yield Issue("mamba_scheduler_strategy", text, f"{extra}, or leave it out")


@refused("limits", roles=KINDS)
def limits(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Sizes, fractions and ports are within their limits.
    Port 0 means any free port, which nobody else would know."""
    if case.target.engine == "vivace" and server.kind != "router":
        return
    for name in ("port", "disaggregation-bootstrap-port"):
        port = server.nodes[0].flags.get(name) if server.nodes else None
        if isinstance(port, int) and not 0 < port < 65536:
            text = f"--{name} must be between 1 and 65535, got {port}"
            yield Issue("--" + name, text, "choose another port")
    for node in server.nodes:
        if not is_address(host := str(node.flags.get("host", ""))):
            text = f"--host {host} is no address or name: a server listens on one, at --port"
            yield Issue("--host", text, "the address alone, as 0.0.0.0")
    for name in ("tp_size", "dp_size", "pp_size", "nnodes", "ep_size", "page_size"):
        with suppress(UnknownValue):
            value, flag = server.number(name), server.flag(name)
            if value is not None and value < 1:
                yield Issue(flag, f"{flag} must be at least 1, got {value}", "use 1")
    fraction = server.value("mem_fraction_static")
    if isinstance(fraction, int | float) and not 0 < fraction < 1:
        text = f"--mem-fraction-static must be between 0 and 1, got {fraction}"
        yield Issue("mem_fraction_static", text, "for example 0.8")
