"""Environment variables: the same three states as options."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from vivace.config.option import WORKS, Kind, State, no_effect, not_available

PREFIXES = ("SGLANG_", "SGL_", "VIVACE_")
NPU = no_effect("it concerns Ascend devices, and this version runs on the CPU")
NPU_LIBRARY = no_effect("it is read by Ascend's own libraries")
PD = no_effect("prefill and decode are not apart in this version")
EXPERTS = no_effect("mixture-of-experts models are not in this version")
ALONE = no_effect("there is one rank")
DRAFTS = no_effect("speculative decoding is not in this version")
DEAD = no_effect("no program reads it")
FOREIGN = no_effect("Vivace does not read it")

VARIABLES: dict[str, tuple[State, str]] = {
    "SGLANG_INIT_NEW_TOKEN_RATIO": (WORKS, "first share of the output admission expects"),
    "SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR": (WORKS, "what that share decays to"),
    "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS": (WORKS, "steps of the decay"),
    "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": (WORKS, "longest output admission believes in"),
    "SGLANG_RETRACT_DECODE_STEPS": (WORKS, "decode steps that must fit after a retraction"),
    "SGLANG_REQ_WAITING_TIMEOUT": (WORKS, "seconds a request may wait"),
    "SGLANG_REQ_RUNNING_TIMEOUT": (WORKS, "seconds a request may run"),
    "SGLANG_HEALTH_CHECK_TIMEOUT": (WORKS, "seconds /health_generate waits"),
    "SGLANG_TIMEOUT_KEEP_ALIVE": (WORKS, "seconds an idle connection is kept"),
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": (
        WORKS,
        "allow --context-length above the model's",
    ),
    "SGLANG_RETURN_ORIGINAL_LOGPROB": (WORKS, "log-probabilities before temperature"),
    "SGLANG_TEST_RETRACT": (WORKS, "test aid: retract sequences regularly"),
    "SGLANG_TEST_RETRACT_INTERVAL": (WORKS, "decode steps between those"),
    "VIVACE_EXECUTOR": (WORKS, "test aid: oracle[:seconds] runs no model"),
    "VIVACE_TEST_FAULT": (WORKS, "test aid: make a process fail"),
    "SGLANG_SET_CPU_AFFINITY": (
        not_available("pinning is not in this version", "start the server with taskset"),
        "pin processes to cores",
    ),
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": (
        no_effect("/health looks at the engine's heartbeat, /health_generate generates"),
        "generate for /health",
    ),
    "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK": (EXPERTS, "tokens of a dispatch"),
    "SGLANG_SCHEDULER_SKIP_ALL_GATHER": (ALONE, "do not compare ranks"),
    "SGLANG_SCHEDULER_DECREASE_PREFILL_IDLE": (ALONE, "hold prompts until all ranks have one"),
    "SGLANG_ENABLE_SPEC_V2": (DRAFTS, "overlap with drafts"),
    "SGLANG_ENABLE_OVERLAP_PLAN_STREAM": (DRAFTS, "plan on a second stream"),
    "SGLANG_NPU_USE_MLAPO": (NPU, "fused MLA preparation"),
    "SGLANG_USE_FIA_NZ": (NPU, "KV in NZ layout"),
    "SGLANG_NPU_USE_MULTI_STREAM": (NPU, "experts on two streams"),
    "SGLANG_NPU_FUSED_MOE_MODE": (NPU, "fused expert operator"),
    "SGLANG_USE_AG_AFTER_QLORA": (NPU, "gather after the query's low rank"),
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": (PD, "seconds of a handshake"),
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": (PD, "seconds of waiting for KV"),
    "SGLANG_DP_ROUND_ROBIN": (DEAD, "of a change that was never merged"),
    "DEEP_NORMAL_MODE_USE_INT8_QUANT": (NPU_LIBRARY, "INT8 dispatch"),
    "DEEPEP_NORMAL_LONG_SEQ_ROUND": (NPU_LIBRARY, "rounds of a long dispatch"),
    "DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS": (NPU_LIBRARY, "tokens of a round"),
    "ENABLE_MOE_NZ": (DEAD, "expert weights in NZ layout, presumably"),
    "DISABLE_EAGLE3_QUANT": (DEAD, "unquantised draft head, presumably"),
    "HCCL_BUFFSIZE": (NPU_LIBRARY, "MB of a collective buffer"),
    "HCCL_SOCKET_IFNAME": (NPU_LIBRARY, "network interface of HCCL"),
    "GLOO_SOCKET_IFNAME": (ALONE, "network interface of gloo"),
    "HCCL_OP_EXPANSION_MODE": (NPU_LIBRARY, "where collectives are scheduled"),
    "HCCL_ALGO": (NPU_LIBRARY, "algorithm of collectives"),
    "TASK_QUEUE_ENABLE": (NPU_LIBRARY, "launch queue of torch_npu"),
    "STREAMS_PER_DEVICE": (NPU_LIBRARY, "streams"),
    "PYTORCH_NPU_ALLOC_CONF": (NPU_LIBRARY, "allocator of torch_npu"),
    "ASCEND_MF_STORE_URL": (PD, "store of the KV transport"),
    "ASCEND_LAUNCH_BLOCKING": (NPU_LIBRARY, "synchronous launches"),
    "ASCEND_HOME_PATH": (NPU_LIBRARY, "CANN toolkit"),
    "cann_path": (NPU_LIBRARY, "CANN toolkit"),
    "LD_LIBRARY_PATH": (FOREIGN, "the system's library path"),
    "PATH": (FOREIGN, "the system's program path"),
    "TORCHINDUCTOR_CACHE_DIR": (no_effect("nothing is compiled"), "torch's compile cache"),
    "HF_TOKEN": (no_effect("nothing is downloaded"), "hub token"),
    "http_proxy": (FOREIGN, "proxy; the server calls nobody"),
    "https_proxy": (FOREIGN, "proxy; the server calls nobody"),
    "HTTP_PROXY": (FOREIGN, "proxy; the server calls nobody"),
    "HTTPS_PROXY": (FOREIGN, "proxy; the server calls nobody"),
}
QUIET = frozenset(
    {
        "PATH",
        "LD_LIBRARY_PATH",
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "HF_TOKEN",
    }
)
"""set on many machines for other programs: not worth a line at every start"""


def read_environment(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """(honoured variables, one notice for every other that looks meant for us)."""
    honoured: dict[str, str] = {}
    notices: list[str] = []
    for name, value in sorted(environ.items()):
        known = VARIABLES.get(name)
        if known is not None and known[0].kind is Kind.WORKS:
            honoured[name] = value
        elif known is not None and name not in QUIET:
            notices.append(f"{name}: {known[0].text()}")
        elif known is None and name.startswith(PREFIXES):
            notices.append(f"{name} is not known and has no effect{nearest(name)}")
    return honoured, notices


def nearest(name: str) -> str:
    close = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.75)
    return f"; did you mean {close[0]}?" if close else ""


def switched_on(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").strip().lower() not in ("", "0", "false", "no", "off")
