"""Rules about spreading experts: dispatch tokens, communication windows, modes."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.deploy.memory import buffers
from vivace.deploy.memory.windows import PER_ROUND, ROUND, prefill_tokens, rounds_of, windows
from vivace.deploy.rules.case import Case
from vivace.deploy.rules.finding import Found, Rule
from vivace.deploy.rules.server import DISPATCH, Server

KERNELS = "sgl-kernel-npu: moe_distribute_dispatch_v2_tiling.cpp"
WASTE = 2
"""times the need from which a buffer counts as wasted"""


def dispatching(case: Case, *modes: str) -> Iterator[tuple[Server, int]]:
    """(role that decodes with spread experts, tokens a rank sends in a step)"""
    for server in case.servers:
        tokens = server.dispatch_tokens
        if server.decodes and server.expert_mode in modes and tokens is not None:
            yield server, tokens


def sum_text(server: Server) -> str:
    layout = server.layout
    return (
        f"{server.running} requests / dp {layout.dp} x {server.draft_tokens} token(s) a step / "
        f"{layout.attention_tp} ranks of a group"
    )


def dispatch(case: Case) -> Iterator[Found]:
    for server, tokens in dispatching(case, "low_latency", "auto"):
        limit = server.dispatch_limit
        if limit and tokens > limit:
            default = "" if server.variable(DISPATCH) else " (the default)"
            yield Found(
                role=server.name,
                flag=DISPATCH,
                text=f"a rank sends up to {tokens} tokens to experts in a decode step "
                f"({sum_text(server)}), the limit is {limit}{default}: the kernel aborts",
                remedy=f"export {DISPATCH}={tokens}, or admit fewer requests",
            )


def dispatch_fused(case: Case) -> Iterator[Found]:
    for server, tokens in dispatching(case, "fused"):
        limit = server.dispatch_limit
        if limit and tokens > limit:
            yield Found(
                role=server.name,
                flag=DISPATCH,
                text=f"a rank sends up to {tokens} tokens in a decode step ({sum_text(server)}), "
                f"the limit is {limit}; the fused kernel sizes its buffer by it",
                remedy=f"export {DISPATCH}={tokens}",
            )


def guide_formula(case: Case) -> Iterator[Found]:
    for server, tokens in dispatching(case, "low_latency", "auto", "fused"):
        limit, running = server.dispatch_limit, server.running or 0
        drafts = server.draft_tokens if server.has("speculative_algorithm") else 0
        claimed = running * (1 + drafts)
        if limit and claimed > limit >= tokens:
            yield Found(
                role=server.name,
                flag=DISPATCH,
                text=f"the parameter guide asks for {running} x (1 + {drafts}) = {claimed} <= "
                f"{limit}; what a rank sends is {tokens}, so {limit} is right and the guide is not",
                remedy="nothing to do",
            )


def dispatch_limits(case: Case) -> Iterator[Found]:
    for server in case.servers:
        mode, limit = server.expert_mode, server.dispatch_limit
        if not mode or not server.decodes:
            continue
        if limit > buffers.MOST_DISPATCH:
            yield limit_found(server, f"{DISPATCH}={limit}", buffers.MOST_DISPATCH, "DeepEP's")
        tokens = server.dispatch_tokens or 0
        if mode in ("low_latency", "auto") and tokens > buffers.MOST_LOW_LATENCY:
            what = f"{tokens} tokens of a rank"
            yield limit_found(server, what, buffers.MOST_LOW_LATENCY, "the low-latency kernel's")
        if mode == "fused" and tokens > buffers.MOST_FUSED:
            yield limit_found(
                server, f"{tokens} tokens of a rank", buffers.MOST_FUSED, "the fused kernel's"
            )


def limit_found(server: Server, what: str, most: int, whose: str) -> Found:
    return Found(
        role=server.name,
        flag=DISPATCH,
        text=f"{what} is above {whose} limit of {most}",
        remedy="admit fewer requests, or more ranks in a group",
    )


def buffer_size(server: Server) -> int:
    """MB"""
    found = server.whole_variable("HCCL_BUFFSIZE")
    return buffers.HCCL_DEFAULT if found is None else found


def buffer_holds(case: Case) -> Iterator[Found]:
    if case.model is None:
        return
    for server in case.servers:
        have = buffer_size(server)
        for window in windows(server, case.model, case.load):
            need = buffers.megabytes(window.size)
            if need > have:
                default = "" if server.variable("HCCL_BUFFSIZE") else " (the default)"
                yield Found(
                    role=server.name,
                    flag="HCCL_BUFFSIZE",
                    text=f"HCCL_BUFFSIZE {have}{default} is too small: the {window.name} window "
                    "for "
                    f"{window.why} takes {need} MB",
                    remedy=f"export HCCL_BUFFSIZE={buffers.suggested(window.size)}",
                )


def buffer_waste(case: Case) -> Iterator[Found]:
    if case.model is None:
        return
    for server in case.servers:
        found = windows(server, case.model, case.load)
        need = max((buffers.megabytes(window.size) for window in found), default=0)
        have = server.whole_variable("HCCL_BUFFSIZE")
        if have and need and have > WASTE * max(need, buffers.HCCL_DEFAULT):
            best = buffers.suggested(max(window.size for window in found))
            spare = 2 * (have - best)
            yield Found(
                role=server.name,
                flag="HCCL_BUFFSIZE",
                text=f"HCCL_BUFFSIZE {have} is {have / need:.1f} times what the windows take "
                f"({need} MB): each communicator keeps two, so {spare} MB of device memory are "
                "lost",
                remedy=f"export HCCL_BUFFSIZE={best}",
            )


def long_rounds(case: Case) -> Iterator[Found]:
    for server in case.servers:
        rounds = rounds_of(server)
        if rounds is None or not server.prefills:
            continue
        if not 32 <= rounds.tokens <= 8192 or rounds.count * rounds.tokens > 131072:
            yield Found(
                role=server.name,
                flag=PER_ROUND,
                text=f"{rounds.count} rounds of {rounds.tokens} tokens: a round takes 32 to 8192 "
                "and all together at most 131072",
                remedy="choose values in these limits",
            )
            continue
        tokens = prefill_tokens(server, case.load)
        if case.load.input and tokens and tokens > rounds.count * rounds.tokens:
            yield Found(
                role=server.name,
                flag=ROUND,
                text=f"a rank sends up to {tokens} tokens in a prefill step; {rounds.count} "
                "rounds of "
                f"{rounds.tokens} are {rounds.count * rounds.tokens}",
                remedy=f"export {ROUND}={-(-tokens // rounds.tokens)}",
            )


def mode_of_role(case: Case) -> Iterator[Found]:
    for server in case.of("prefill", "decode"):
        mode = server.expert_mode
        if server.kind == "prefill" and mode == "low_latency":
            yield Found(
                role=server.name,
                flag=server.flag("deepep_mode"),
                text="--deepep-mode low_latency on a prefill role: its kernels take few tokens",
                remedy="--deepep-mode normal",
            )
        if server.kind == "decode" and mode == "normal":
            yield Found(
                role=server.name,
                flag=server.flag("deepep_mode"),
                text="--deepep-mode normal on a decode role turns captured graphs off",
                remedy="--deepep-mode low_latency",
            )


def fused_mode(case: Case) -> Iterator[Found]:
    if case.target.engine == "vivace" or case.target.version == "0.5.23":
        return
    for server in case.servers:
        if server.expert_mode != "fused" or server.variable("SGLANG_NPU_FUSED_MOE_MODE"):
            continue
        exact = case.target.version == "0.5.10"
        yield Found(
            role=server.name,
            flag="SGLANG_NPU_FUSED_MOE_MODE",
            text="--moe-a2a-backend ascend_fuseep without SGLANG_NPU_FUSED_MOE_MODE: 0.5.10 stops "
            'with "Wrong value of fuse_mode=None"',
            remedy="export SGLANG_NPU_FUSED_MOE_MODE=1 (2 with modelslim weights)",
            severity="error" if exact else "note",
        )


def fused_mode_two(case: Case) -> Iterator[Found]:
    for server in case.servers:
        if server.variable("SGLANG_NPU_FUSED_MOE_MODE") != "2":
            continue
        if server.value("quantization") != "modelslim":
            yield Found(
                role=server.name,
                flag="SGLANG_NPU_FUSED_MOE_MODE",
                text="SGLANG_NPU_FUSED_MOE_MODE=2 needs --quantization modelslim",
                remedy="export SGLANG_NPU_FUSED_MOE_MODE=1",
            )


RULES = (
    Rule(
        name="dispatch-tokens",
        severity="error",
        title="A rank may send the tokens of a decode step",
        explanation="A rank sends max-running-requests / dp x draft tokens / attention-tp tokens "
        "to "
        f"experts. {DISPATCH} (default 128) must hold them, or the kernel aborts. The parameter "
        "guide has another formula; this one is exact for the published configurations.",
        source="fitted to the published configurations, six of them exactly",
        check=dispatch,
    ),
    Rule(
        name="dispatch-fused",
        severity="warning",
        title="The fused kernel's buffer holds a decode step",
        explanation="On A3 the fused kernel uses the limit to size its buffer only.",
        source="sgl-kernel-npu: FUSED_DEEP_MOE.md",
        check=dispatch_fused,
    ),
    Rule(
        name="dispatch-guide",
        severity="doc",
        title="What the parameter guide says about dispatch tokens",
        explanation="The guide's max-running-requests x (1 + draft tokens) <= limit leaves out "
        "that "
        "requests are shared out over dp and tokens over a group. It is false for nearly every "
        "published decode role, and for the guide's own example.",
        source="Ascend parameter guide",
        check=guide_formula,
    ),
    Rule(
        name="dispatch-limits",
        severity="error",
        title="Dispatch stays within the kernels' limits",
        explanation="There are three: 1024 (DeepEP), 512 tokens of a rank (low-latency kernel), "
        "256 (fused kernel).",
        source=f"parameter guide; {KERNELS}; fused_deep_moe_tiling.cpp",
        check=dispatch_limits,
    ),
    Rule(
        name="hccl-buffer",
        severity="error",
        title="HCCL_BUFFSIZE holds the dispatch windows",
        explanation="The operators compute the window they need and stop when the buffer is "
        "smaller. Low latency: 2 x N x (align512(2h+44) x experts + align512(2h) x top-k). Normal: "
        "2 x (T x top-k x (align512(2h) x (2 if rounds > 1) + align512(2h+44)) + 208 MiB). Fused: "
        "N x experts x h x 4.",
        source=f"{KERNELS}; cam_moe_dispatch_normal_tiling.cc",
        needs=("model",),
        check=buffer_holds,
    ),
    Rule(
        name="hccl-waste",
        severity="note",
        title="HCCL_BUFFSIZE is not much larger than the windows",
        explanation="Every communicator takes twice the buffer from device memory, outside of "
        "mem-fraction-static.",
        source=f"{KERNELS}; cam_moe_dispatch_normal_tiling.cc",
        needs=("model",),
        check=buffer_waste,
    ),
    Rule(
        name="long-rounds",
        severity="error",
        title="The rounds of a long dispatch hold a prefill step",
        explanation="rounds x tokens of a round >= tokens of a rank; a round has 32 to 8192, all "
        "together at most 131072.",
        source="README of the Ascend DeepEP library",
        check=long_rounds,
    ),
    Rule(
        name="deepep-mode",
        severity="warning",
        title="The dispatch mode suits the role",
        explanation="normal is for many tokens and cannot be captured; low_latency is for few.",
        source="Ascend parameter guide",
        check=mode_of_role,
    ),
    Rule(
        name="fused-mode",
        severity="note",
        title="The fused operator is named",
        explanation="The reader of SGLANG_NPU_FUSED_MOE_MODE in 0.5.10 has no default.",
        source="SGLang 0.5.10",
        check=fused_mode,
    ),
    Rule(
        name="fused-mode-quantised",
        severity="error",
        title="The second fused operator has quantised weights",
        explanation="DISPATCH_FFN_COMBINE works on modelslim weights only.",
        source="Ascend parameter guide",
        check=fused_mode_two,
    ),
)
