"""Rules about settings that SGLang changes at start-up: what they become."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from vivace.config.releases.tables import row_at
from vivace.deploy.case import Case
from vivace.deploy.memory.defaults import default_chunk, graph_default
from vivace.deploy.rules.rule import ARGS, Issue, Rule, ServerCheck, server_rule
from vivace.deploy.server_plan import ServerPlan
from vivace.deploy.startup import TOLD, rewritten
from vivace.models.attention_shapes import LatentAttention

ASCEND_BACKEND = "0.5.6.post1"  # hardware_backend/npu/utils.py
OVERLAPPED = "0.5.11"
"""from here on speculation overlaps unless SGLANG_ENABLE_SPEC_V2 is 0"""


def rewrite(name: str, *about: str, **facts: Any) -> Callable[[ServerCheck], Rule]:
    facts["reason"] = "SGLang changes the setting at start-up, sometimes without a log line."
    return server_rule(name, "note", *about, source=f"{ARGS}, 0.5.10", engine="sglang", **facts)


@rewrite("becomes-ep", "ep_size")
def expert_ranks(server: ServerPlan, case: Case) -> Iterator[str]:
    """--ep-size equals --tp-size with an all-to-all backend."""
    ep_size, ep = server.number("ep_size") or 1, server.parallelism.ep
    if ep != ep_size and server.has("ep_size"):
        yield f"ep {ep_size} becomes {ep}: {server.value('moe_a2a_backend')} uses all tp ranks"


@rewrite("becomes-chunk", "chunked_prefill_size")
def chunk_by_dp(server: ServerPlan, case: Case) -> Iterator[str]:
    """dp attention divides --chunked-prefill-size."""
    chunk, layout = server.number("chunked_prefill_size"), server.parallelism
    if layout.dp_attention and server.has("chunked_prefill_size") and chunk and chunk > 0:
        each, dp = chunk // layout.dp, layout.dp
        yield f"--chunked-prefill-size {chunk} becomes {each} per rank: it is divided by dp {dp}"


@rewrite("becomes-conservativeness", "schedule_conservativeness")
def conservativeness(server: ServerPlan, case: Case) -> Iterator[str]:
    """dp attention multiplies --schedule-conservativeness by 0.3."""
    given = server.value("schedule_conservativeness")
    value = given if isinstance(given, int | float) else 1.0
    if server.parallelism.dp_attention and value:
        text = f"--schedule-conservativeness {value} becomes {round(value * 0.3, 3)}: dp attention"
        yield text + " multiplies it by 0.3"


@rewrite("becomes-draft-limits")
def draft_limits(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Speculation limits running requests and turns mixed chunks off."""
    if not server.has("speculative_algorithm"):
        return
    if not server.has("max_running_requests"):
        yield Issue("max_running_requests", "--max-running-requests becomes 48: speculation is on")
    if server.has("enable_mixed_chunk"):
        yield Issue("enable_mixed_chunk", "--enable-mixed-chunk is turned off: speculation is on")
    overlapped = server.enabled("SGLANG_ENABLE_SPEC_V2") or case.target.since(OVERLAPPED)
    if not overlapped and not server.has("disable_overlap_schedule"):
        text = "overlap scheduling is turned off: with speculation it needs SGLANG_ENABLE_SPEC_V2=1"
        yield Issue("speculative_algorithm", text)


@rewrite("becomes-sparse-pages", "page_size", platforms=("cuda",), since="0.5.3")
def sparse_attention(server: ServerPlan, case: Case) -> Iterator[str]:
    """Sparse attention on CUDA uses pages of 64 tokens."""
    attention, page = case.model and case.model.attention, server.number("page_size")
    sparse = isinstance(attention, LatentAttention) and attention.index_heads
    if sparse and page not in (None, 64):
        yield f"--page-size {page} becomes 64: sparse attention (DeepSeek-V3.2) needs it"


@rewrite("becomes-sizes", platforms=("npu",), since="0.5.3.post3")
def ascend_sizes(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """On Ascend, default chunk and graph sizes follow the device memory."""
    device = case.known_device
    if server.prefills and not server.has("chunked_prefill_size"):
        chunk = default_chunk(case)
        text = f"--chunked-prefill-size becomes {chunk}: a device of {device.memory_gib:g} GiB"
        yield Issue("chunked_prefill_size", text)
    if server.decodes and not server.graphs and not server.has("disable_cuda_graph"):
        size, tp = graph_default(server, case, device), server.parallelism.tp
        text = f"--cuda-graph-max-bs becomes {size}: {device.memory_gib:g} GiB of memory, tp {tp}"
        yield Issue("cuda_graph_max_bs", text)


@rewrite("becomes-other")
def by_the_release(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """The target version keeps the values that are given.
    From the release's own source, for what no other rule is about."""
    version, flags = case.target.version, server.role.flags
    if not version:
        return
    typed = {row.name: flag for flag in flags if (row := row_at("--" + flag, version))}
    for row in rewritten(flags, version, case.start_facts).values():
        flag = typed.get(row.name)
        if flag is not None and row.name not in TOLD:
            becomes = row.formula or row.value
            yield Issue("--" + flag, f"SGLang {version} changes --{flag} to {becomes} at start-up")
