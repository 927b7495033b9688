"""The engine a deployment is for, and the flags each version accepts."""

from __future__ import annotations

from functools import cache
from typing import Literal

import msgspec

from vivace.config.known_flags import NEWER
from vivace.config.sglang import GONE, RENAMED, RETIRED
from vivace.deploy.from_script.flags import server_options

VERSIONS = ("0.4.6", "0.5.7", "0.5.8", "0.5.10", "0.5.23")
LATEST = VERSIONS[-1]
SINCE = {
    "--attn-cp-size": "0.5.10",
    "--attention-context-parallel-size": "0.5.10",
    "--nsa-prefill-cp-mode": "0.5.8",
}
GONE_IN_0_5_10 = frozenset(
    f"--{name}"
    for name in """
disable-tokenizer-batch-encode disaggregation-decode-dp disaggregation-decode-enable-fake-auto
disaggregation-decode-tp mm-max-concurrent-calls mm-per-request-timeout oltp-traces-endpoint
speculative-ngram-branch-length speculative-ngram-max-match-window-size
speculative-ngram-min-match-window-size
""".split()
)
DOCUMENTED_0_4_6 = frozenset(
    f"--{name}"
    for name in """
model-path model tokenizer-path tokenizer-mode load-format trust-remote-code dtype kv-cache-dtype
context-length device chat-template is-embedding revision skip-tokenizer-init
json-model-override-args delete-ckpt-after-loading disable-fast-image-processor port host api-key
file-storage-path enable-cache-report tp-size tp tensor-parallel-size dp-size dp
data-parallel-size load-balance-method enable-ep-moe ep-size ep expert-parallel-size
enable-deepep-moe deepep-mode mem-fraction-static max-running-requests max-total-tokens
chunked-prefill-size max-prefill-tokens schedule-policy schedule-conservativeness cpu-offload-gb
stream-interval random-seed watchdog-timeout download-dir base-gpu-id allow-auto-truncate log-level
log-level-http log-requests log-requests-level show-time-cost enable-metrics decode-log-interval
dist-init-addr nnodes node-rank lora-paths max-loras-per-batch lora-backend attention-backend
sampling-backend grammar-backend constrained-json-whitespace-pattern speculative-draft-model-path
speculative-algorithm speculative-num-steps speculative-num-draft-tokens speculative-eagle-topk
speculative-token-map enable-double-sparsity ds-channel-config-path ds-heavy-channel-num
ds-heavy-token-num ds-heavy-channel-type ds-sparse-decode-threshold disable-radix-cache
disable-cuda-graph disable-cuda-graph-padding disable-outlines-disk-cache
disable-custom-all-reduce disable-mla disable-overlap-schedule enable-nan-detection
enable-p2p-check triton-attention-reduce-in-fp32 enable-mixed-chunk enable-dp-attention
enable-torch-compile torch-compile-max-bs cuda-graph-max-bs cuda-graph-bs torchao-config
triton-attention-num-kv-splits enable-flashinfer-mla flashinfer-mla-disable-ragged quantization
""".split()
)
OURS = frozenset(
    f"--{name}"
    for name in (
        "activation-dtype admin-api-key-file allowed-hosts allowed-origins api-key-file "
        "cpu-threads disable-cpu-kernels insecure"
    ).split()
)
"""flags of Vivace that SGLang never had"""
SPELLED_SHORT = frozenset({"--moe-dense-tp"})
"""spellings that Vivace declares and SGLang takes as the start of a longer one"""
VALUE_VERSIONS = {
    ("load_balance_method", "decode_round_robin"): ("0.5.7",),
    ("load_balance_method", "shortest_queue"): ("0.4.6",),
}
"""values only some versions take"""
Status = Literal["known", "short", "ambiguous", "unknown", "undocumented"]


class Target(msgspec.Struct, frozen=True):
    """`version` is empty for SGLang of any version."""

    engine: Literal["sglang", "vivace"] = "sglang"
    version: str = ""

    @property
    def text(self) -> str:
        return f"{self.engine} {self.version}".strip()


def target_of(text: str) -> Target:
    """From `sglang`, `sglang==0.5.10`, `vivace`. Raises ValueError with the choices."""
    engine, _, version = text.strip().partition("==")
    if engine == "vivace" and not version:
        return Target("vivace")
    if engine == "sglang" and version in ("", *VERSIONS):
        return Target("sglang", version)
    choices = ", ".join(f"sglang=={each}" for each in VERSIONS)
    raise ValueError(f"unknown target {text!r}; available: vivace, sglang, {choices}")


@cache
def flags_of_version(version: str) -> frozenset[str]:
    """Every spelling that a version of SGLang accepts, according to its documentation."""
    if version == "0.4.6":
        return DOCUMENTED_0_4_6
    order = VERSIONS.index(version)
    common = set(server_options()) - OURS - SPELLED_SHORT - set(RENAMED.values())
    found = {flag for flag in common - set(SINCE) if order >= VERSIONS.index("0.5.7")}
    found |= {flag for flag in common & set(SINCE) if order >= VERSIONS.index(SINCE[flag])}
    if order >= VERSIONS.index("0.5.10"):
        found -= GONE_IN_0_5_10
    if version == LATEST:
        found = (found - GONE - set(RENAMED)) | set(RENAMED.values()) | NEWER
    return frozenset(found)


@cache
def status(flag: str, version: str) -> tuple[Status, list[str]]:
    """How argparse of that version reads a flag, and the flags it may mean."""
    known = flags_of_version(version)
    if flag in known:
        return "known", [flag]
    begun = sorted(each for each in known if each.startswith(flag))
    if len({meaning(each) for each in begun}) == 1:
        return "short", begun
    if begun:
        return "ambiguous", begun
    return ("undocumented" if version == "0.4.6" and flag not in RETIRED else "unknown"), []


def meaning(flag: str) -> str:
    option = server_options().get(flag)
    return flag if option is None else option.name


def versions_with(flag: str) -> list[str]:
    """The versions that take the flag as it is written."""
    return [version for version in VERSIONS if flag in flags_of_version(version)]
