"""Rules about expert parallelism: dispatch tokens, communication buffers, modes."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.deploy.case import Case
from vivace.deploy.memory import buffers
from vivace.deploy.memory.windows import (
    HCCL,
    PER_ROUND,
    ROUND,
    buffer_variable,
    get_rounds,
    prefill_tokens,
    windows,
)
from vivace.deploy.rules.rule import ARGS, GUIDE, Issue, server_rule
from vivace.deploy.server_plan import DISPATCH, FUSED_MODE, ServerPlan, if_known

README = "README of the Ascend DeepEP library"
FITTED = "fitted to the published configurations, six of them exactly"
KERNELS = "sgl-kernel-npu: moe_distribute_dispatch_v2_tiling.cpp"
LIMITS = f"parameter guide; {KERNELS}; fused_deep_moe_tiling.cpp"
OPERATORS = f"{KERNELS}; cam_moe_dispatch_normal_tiling.cc"
FUSED_README = "sgl-kernel-npu: FUSED_DEEP_MOE.md"
NO_MODE = ("0.5.10", "0.5.10.post1")
"""releases without a default for the mode of the fused kernel"""
WASTE = 2
"""times the need from which a buffer counts as wasted"""


@server_rule("dispatch-tokens", "error", source=FITTED, platforms=("npu", "cuda"))
def dispatch_tokens(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """The dispatch limit holds the tokens of a decode step.
    A rank sends max-running-requests / dp x draft tokens / attention-tp tokens to experts.
    SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK (default 128) must hold them, or the kernel
    aborts (on CUDA an assertion of DeepEP's low_latency_dispatch). The parameter guide has another
    formula; this one is exact for the published configurations."""
    tokens, limit = server.decode_dispatch("low_latency", "auto"), server.dispatch_limit
    if tokens is not None and limit and tokens > limit:
        default = "" if server.variable(DISPATCH) else " (the default)"
        sent = f"a rank sends {tokens} tokens to experts ({server.dispatch_terms})"
        text = f"{sent}, but the limit is {limit}{default}: the kernel aborts"
        yield Issue(DISPATCH, text, f"export {DISPATCH}={tokens}, or admit fewer requests")


@server_rule("dispatch-fused", "warning", source=FUSED_README, platforms=("npu",))
def dispatch_fused(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """The buffer of the fused kernel holds a decode step.
    On A3 the fused kernel uses the limit only to size its buffer."""
    tokens, limit = server.decode_dispatch("fused"), server.dispatch_limit
    if tokens is not None and limit and tokens > limit:
        text = f"a rank sends {tokens} tokens ({server.dispatch_terms}), the buffer is for {limit}"
        yield Issue(DISPATCH, text, f"export {DISPATCH}={tokens}")


@server_rule("dispatch-guide", "doc", DISPATCH, "nothing to do", source=GUIDE, platforms=("npu",))
def dispatch_guide(server: ServerPlan, case: Case) -> Iterator[str]:
    """The parameter guide overstates dispatch tokens.
    Its formula, max-running-requests x (1 + draft tokens) <= limit, omits that requests are divided
    by dp and tokens by the group. It is false for nearly every published decode role, and for the
    guide's own example."""
    tokens = server.decode_dispatch("low_latency", "auto", "fused")
    limit, running = server.dispatch_limit, server.running or 0
    drafts = server.draft_tokens if server.has("speculative_algorithm") else 0
    claimed = running * (1 + drafts)
    if tokens is not None and limit and claimed > limit >= tokens:
        formula = f"{running} x (1 + {drafts}) = {claimed} <= {limit}"
        yield f"the guide requires {formula}, but a rank sends {tokens}: {limit} is enough"


@server_rule("dispatch-limits", "error", source=LIMITS, platforms=("npu", "cuda"))
def dispatch_limits(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Dispatch tokens are within the limits of the kernels.
    There are three: 1024 (DeepEP), and on Ascend 512 tokens per rank (low-latency kernel) and 256
    (fused kernel); mode 2 of the fused kernel dispatches whole prefills and has none."""
    mode = server.expert_mode
    if not mode or not server.decodes or server.fused_mode == 2:
        return
    limit = if_known(lambda: server.dispatch_limit, 0)
    tokens = if_known(lambda: server.dispatch_tokens, None) or 0
    fused, per_rank = mode == "fused", f"{tokens} tokens per rank"
    low_latency = mode in ("low_latency", "auto") and case.platform == "npu"
    for maximum, kernel, what, value in (
        (buffers.MAX_DISPATCH, "DeepEP", f"{DISPATCH}={limit}", 0 if fused else limit),
        (buffers.MAX_LOW_LATENCY, "the low-latency kernel", per_rank, tokens if low_latency else 0),
        (buffers.MAX_FUSED, "the fused kernel", per_rank, tokens if fused else 0),
    ):
        if value > maximum:
            text = f"{what} exceeds the limit of {kernel}, {maximum}"
            yield Issue(DISPATCH, text, "admit fewer requests, or use more ranks per group")


@server_rule("hccl-buffer", "error", source=OPERATORS, needs=("model",), platforms=("npu",))
def hccl_buffer(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """HCCL_BUFFSIZE holds the dispatch buffers.
    The operators compute the buffer they need and stop when it is smaller. Low latency:
    2 x N x (align512(2h+44) x experts + align512(2h) x top-k). Normal:
    2 x (T x top-k x (align512(2h) x (2 if rounds > 1) + align512(2h+44)) + 208 MiB). Fused:
    N x experts x h x 4. DEEPEP_HCCL_BUFFSIZE, where it is set, is that of the experts' group; with
    zbal the experts' buffers are in its memory (SGLANG_ZBAL_LOCAL_MEM_SIZE)."""
    name = buffer_variable(server)
    variable = server.int_variable(name)
    size = buffers.HCCL_DEFAULT if variable is None else variable
    default = "" if server.variable(name) else " (the default)"
    for window in windows(server, case):
        need = buffers.megabytes(window.size)
        if need > size:
            use = f"the {window.name} buffer for {window.why}"
            text = f"{size} MB{default} are too few: {use} takes {need} MB"
            text += " (if prompts fill a step)" * window.unsure
            remedy = f"export {name}={buffers.suggest_size(window.size)}"
            remedy += "; to be sure: --input (workload)" * window.unsure
            yield Issue(name, text, remedy, "warning" if window.unsure else None)


@server_rule("hccl-waste", "note", source=OPERATORS, needs=("model",), platforms=("npu",))
def hccl_waste(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """HCCL_BUFFSIZE is not much larger than the dispatch buffers.
    Every communicator takes twice the buffer from device memory, outside of mem-fraction-static.
    Where DEEPEP_HCCL_BUFFSIZE is set, only the experts' one needs room for a dispatch; for the
    others the default is enough."""
    found, name = windows(server, case), buffer_variable(server)
    need = max((buffers.megabytes(window.size) for window in found), default=0)
    groups = [(name, need)] if name == HCCL else [(name, need), (HCCL, buffers.HCCL_DEFAULT)]
    for variable, least in groups if need else ():
        size = server.int_variable(variable)
        if size and size > WASTE * max(least, buffers.HCCL_DEFAULT):
            best = buffers.suggest_size(least * buffers.MIB)
            wasted = f"each communicator wastes twice {size - best} MB of device memory"
            text = f"{size} MB are {size / least:.1f} times the need of {least} MB: {wasted}"
            yield Issue(variable, text, f"export {variable}={best}")


@server_rule("long-rounds", "error", source=README, platforms=("npu",))
def long_rounds(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """The rounds of a long dispatch hold a prefill step.
    rounds x tokens per round >= tokens per rank; a round has 32 to 8192 tokens, all rounds together
    at most 131072."""
    rounds = get_rounds(server)
    if rounds is None or not server.prefills:
        return
    total, tokens = rounds.count * rounds.tokens, prefill_tokens(server, case)
    product = f"{rounds.count} rounds of {rounds.tokens} tokens"
    if not 32 <= rounds.tokens <= 8192 or total > 131072:
        text = f"{product}: a round must have 32 to 8192, all together at most 131072"
        yield Issue(PER_ROUND, text, "choose values within these limits")
    elif case.load.input and tokens > total:
        text = f"a rank sends up to {tokens} tokens in a prefill step; {product} hold {total}"
        yield Issue(ROUND, text, f"export {ROUND}={-(-tokens // rounds.tokens)}")


@server_rule("fused-mode", "note", source=ARGS, engine="sglang", platforms=("npu",))
def fused_mode(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """--moe-a2a-backend ascend_fuseep has SGLANG_NPU_FUSED_MOE_MODE.
    0.5.10 and 0.5.10.post1 have no default for it, and stop."""
    stated = server.variable(FUSED_MODE) or "fuseep-mode" in server.role.flags
    version = case.target.version
    if server.expert_mode == "fused" and not stated and version in ("", *NO_MODE):
        stops = f"SGLang {version} stops" if version else f"SGLang {' and '.join(NO_MODE)} stop"
        text = f'{FUSED_MODE} is not set: {stops} with "Wrong value of fuse_mode=None"'
        severity = "error" if version else None
        yield Issue(FUSED_MODE, text, f"export {FUSED_MODE}=1 (2 with modelslim weights)", severity)
