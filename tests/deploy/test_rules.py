"""Every rule finds what it is for, and nothing in the same deployment without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deployments import LEAVE_OUT, case, found, mixed, separated

from vivace.deploy.catalogue.flags import FILE, made
from vivace.deploy.disk import packaged
from vivace.deploy.document import DOCS, pages
from vivace.deploy.importing.flags import Remark
from vivace.deploy.rules.case import Remarked
from vivace.deploy.rules.judge import RULES, judge

LONG = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
DISPATCH = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
V2, STREAM = "SGLANG_ENABLE_SPEC_V2", "SGLANG_ENABLE_OVERLAP_PLAN_STREAM"
EAGLE3 = {
    "speculative-algorithm": "EAGLE3",
    "speculative-draft-model-path": "/models/draft",
    "speculative-num-steps": 3,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": 4,
}
NEXTN = {**EAGLE3, "speculative-algorithm": "NEXTN", "speculative-draft-model-path": LEAVE_OUT}
Made = dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """`bad` must be found, `good` must not; `says` stands in the finding."""

    bad: Made
    good: Made
    says: str = ""
    target: str = "sglang"


def flags(bad: Made, good: Made, says: str = "", target: str = "sglang") -> Pair:
    return Pair(mixed(flags=bad), mixed(flags=good), says, target)


def variables(bad: Made, good: Made, says: str = "") -> Pair:
    return Pair(mixed(environment=bad), mixed(environment=good), says)


def benchmarks(bad: Made, good: Made, says: str = "") -> Pair:
    return Pair(mixed(benchmark=bad), mixed(benchmark=good), says)


def decodes(bad: Made, good: Made, says: str = "") -> Pair:
    return Pair(separated(decode=bad), separated(decode=good), says)


def prefills(bad: Made, good: Made, says: str = "") -> Pair:
    return Pair(separated(prefill=bad), separated(prefill=good), says)


def routers(bad: Made, good: Made, says: str = "") -> Pair:
    return Pair(separated(router=bad), separated(router=good), says)


FLAG_PAIRS = {
    "single-dash": benchmarks({"-max-concurrency": 1}, {"max-concurrency": 1}, "one dash"),
    "unknown-flag": flags({"enable-dp-atention": True}, {}, "enable-dp-attention"),
    "own-flag": flags({"cpu-threads": 2}, {}, "flag of Vivace"),
    "flag-version": flags({"enable-deepep-moe": True}, {}, "--moe-a2a-backend deepep"),
    "gone-from-latest": flags(
        {"torchao-config": "int8wo"}, {"cuda-graph-bs": LEAVE_OUT}, "torchao"
    ),
    "abbreviated-flag": flags(
        {"moe-dense-tp": 1}, {"moe-dense-tp-size": 1}, "--moe-dense-tp-size"
    ),
    "ambiguous-flag": flags({}, {"cuda-graph-bs": LEAVE_OUT}, "--cuda-graph-bs-decode",
                            "sglang==0.5.23"),
    "flag-value": flags({"dtype": "bfloat1"}, {"dtype": "bfloat16"}, "did you mean bfloat16"),
    "retired-value": flags(
        {"load-balance-method": "decode_round_robin"},
        {"load-balance-method": "round_robin"},
        "auto",
    ),
    "ascend-flag": flags({"enable-nccl-nvls": True}, {"enable-mixed-chunk": True}, "GPUs"),
    "ascend-value": flags(
        {"grammar-backend": "outlines"}, {"grammar-backend": "xgrammar"}, "xgrammar"
    ),
    "vivace-flag": Pair(
        mixed(flags={"device": "cpu"}, hardware=LEAVE_OUT),
        {"roles": {"mixed": {"kind": "mixed", "flags": {"device": "cpu", "port": 8000}}}},
        "not available",
        "vivace",
    ),
}  # fmt: skip
REFUSED_PAIRS = {
    "host-cache": flags(
        {"enable-hierarchical-cache": True, "disable-radix-cache": True},
        {"enable-hierarchical-cache": True},
    ),
    "multi-item-scoring": flags(
        {"multi-item-scoring-delimiter": 7},
        {
            "multi-item-scoring-delimiter": 7,
            "disable-radix-cache": True,
            "chunked-prefill-size": -1,
        },
    ),
    "priority-policy": flags(
        {"enable-priority-scheduling": True, "schedule-policy": "lpm"},
        {"enable-priority-scheduling": True, "schedule-policy": "fcfs"},
    ),
    "chunk-pages": flags(
        {"chunked-prefill-size": 1000}, {"chunked-prefill-size": 1024}, "page size 128"
    ),
    "tokenizer-batches": flags(
        {"enable-tokenizer-batch-encode": True, "enable-dynamic-batch-tokenizer": True},
        {"enable-tokenizer-batch-encode": True},
    ),
    "served-name": flags({"served-model-name": "a:b"}, {"served-model-name": "a-b"}, "colon"),
    "tls-files": flags(
        {"ssl-keyfile": "/k"}, {"ssl-keyfile": "/k", "ssl-certfile": "/c"}, "--ssl-certfile"
    ),
    "metrics-folder": flags(
        {"export-metrics-to-file": True},
        {"export-metrics-to-file": True, "export-metrics-to-file-dir": "/m"},
    ),
    "topk-pages": flags(
        {**EAGLE3, "speculative-eagle-topk": 4, "speculative-num-draft-tokens": 8}, EAGLE3, "tree"
    ),
    "hybrid-cache": Pair(
        mixed(flags=NEXTN, model={"name": "qwen3-next"}),
        mixed(flags={**NEXTN, "disable-radix-cache": True}, model={"name": "qwen3-next"}),
        "extra buffers",
    ),
    "limits": flags({"mem-fraction-static": 1.2}, {"mem-fraction-static": 0.8}, "between 0 and 1"),
}
LAYOUT_PAIRS = {
    "cards": Pair(
        mixed(hardware={"device": "atlas-800i-a3", "cards": 16}), mixed(), "16 stand idle"
    ),
    "node-capacity": flags({"tp-size": 32, "dp-size": 32}, {}, "a node has 16"),
    "nodes": Pair(separated(decode_role={"hosts": ["10.0.1.1"]}), separated(), "2 are wanted"),
    "nodes-share-ranks": decodes({"tp-size": 33}, {}, "33 ranks"),
    "meeting-point": decodes({"dist-init-addr": LEAVE_OUT}, {}, "--dist-init-addr"),
    "plain-dp-nodes": decodes({"enable-dp-attention": LEAVE_OUT}, {}, "not possible"),
    "dp-divides-tp": flags({"dp-size": 6, "max-running-requests": 252}, {}, "no multiple of dp 6"),
    "running-divides": flags({"max-running-requests": 250}, {}, "240"),
    "heads": flags(
        {"tp-size": 24, "dp-size": 1, "max-running-requests": 250}, {}, "32 attention heads"
    ),
    "kv-copies": flags({"dp-size": 2}, {"dp-size": 4}, "2 times"),
    "experts": flags(
        {"tp-size": 12, "dp-size": 12, "max-running-requests": 252}, {}, "128 experts"
    ),
    "ep-divides-tp": flags(
        {"moe-a2a-backend": LEAVE_OUT, "ep-size": 3}, {"moe-a2a-backend": LEAVE_OUT, "ep-size": 4}
    ),
    "dense-tp": flags({"moe-dense-tp-size": 4}, {"moe-dense-tp-size": 1}, "only 1 and tp (16)"),
    "dp-lm-head": flags(
        {"enable-dp-lm-head": True, "dp-size": 1}, {"enable-dp-lm-head": True}, "dropped"
    ),
    "pipeline": flags({**NEXTN, "pp-size": 2}, NEXTN, "2 stages"),
    "context-parallel": flags(
        {"enable-nsa-prefill-context-parallel": True},
        {"enable-nsa-prefill-context-parallel": True, "attn-cp-size": 2},
    ),
}
EXPERT_PAIRS = {
    "dispatch-tokens": flags(
        {**EAGLE3, "max-running-requests": 576}, {**EAGLE3, "max-running-requests": 512}, "144"
    ),
    "dispatch-fused": Pair(
        mixed(flags={"moe-a2a-backend": "ascend_fuseep"}, environment={DISPATCH: "8"}),
        mixed(flags={"moe-a2a-backend": "ascend_fuseep"}, environment={DISPATCH: "16"}),
        "16 tokens",
    ),
    "dispatch-guide": Pair(
        mixed(environment={DISPATCH: "64"}), mixed(environment={DISPATCH: "256"}), "the guide is "
        "not"
    ),
    "dispatch-limits": variables({DISPATCH: "2048"}, {DISPATCH: "1024"}, "1024"),
    "hccl-buffer": variables({"HCCL_BUFFSIZE": "200"}, {"HCCL_BUFFSIZE": "800"}, "too small"),
    "hccl-waste": variables({"HCCL_BUFFSIZE": "4300"}, {"HCCL_BUFFSIZE": "800"}, "lost"),
    "long-rounds": Pair(
        separated(prefill_environment={
            "DEEPEP_NORMAL_LONG_SEQ_ROUND": "1", "DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS": "256"}),
        separated(prefill_environment={
            "DEEPEP_NORMAL_LONG_SEQ_ROUND": "4", "DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS": "512"}),
        "1 rounds of 256",
    ),
    "deepep-mode": decodes({"deepep-mode": "normal"}, {}, "captured graphs"),
    "fused-mode": Pair(
        mixed(flags={"moe-a2a-backend": "ascend_fuseep"}),
        mixed(
            flags={"moe-a2a-backend": "ascend_fuseep"},
            environment={"SGLANG_NPU_FUSED_MOE_MODE": "1"},
        ),
        "fuse_mode=None",
    ),
    "fused-mode-quantised": Pair(
        mixed(environment={"SGLANG_NPU_FUSED_MOE_MODE": "2"}),
        mixed(
            flags={"quantization": "modelslim"}, environment={"SGLANG_NPU_FUSED_MOE_MODE": "2"}
        ),
        "modelslim",
    ),
}  # fmt: skip
DRAFT_PAIRS = {
    "spec-v2": Pair(
        mixed(flags={**EAGLE3, "speculative-eagle-topk": 4}, environment={V2: "1"}),
        mixed(flags=EAGLE3, environment={V2: "1"}),
    ),
    "plan-stream": variables({V2: "1"}, {V2: "1", STREAM: "1"}),
    "plan-stream-guide": Pair(
        mixed(flags=NEXTN, environment={V2: "1", STREAM: "1"}),
        mixed(flags=EAGLE3, environment={V2: "1", STREAM: "1"}),
    ),
    "draft-quantisation": flags(
        {**EAGLE3, "quantization": "modelslim"},
        {
            **EAGLE3,
            "quantization": "modelslim",
            "speculative-draft-model-quantization": "unquant",
        },
        "inherits",
    ),
    "draft-tokens": flags({**EAGLE3, "speculative-num-draft-tokens": 8}, EAGLE3, "becomes 4"),
    "draft-complete": flags({**EAGLE3, "speculative-num-steps": LEAVE_OUT}, EAGLE3, "assertion"),
    "ngram": flags({"speculative-algorithm": "NGRAM"}, EAGLE3, "CUDA"),
    "adapter-drafts": flags({**EAGLE3, "enable-lora": True}, {"enable-lora": True}, "restrictions"),
    "graph-covers": flags({"cuda-graph-bs": [1, 2, 4, 8]}, {}, "largest captured batch is 8"),
    "graph-unused": flags({"cuda-graph-bs": [1, 2, 4, 8, 16, 32]}, {}, "never used"),
    "graph-padding": flags({"cuda-graph-bs": [8, 16]}, {}, "filled up to 8"),
    "graph-on-prefill": prefills(
        {"disable-cuda-graph": LEAVE_OUT, "cuda-graph-bs": [1, 2]}, {}, "no effect"
    ),
}
SEPARATION_PAIRS = {
    "separation-halves": Pair(separated(drop=("prefill",)), separated(), "nothing runs prefill"),
    "role-mode": flags({"disaggregation-mode": "decode"}, {}, "says decode"),
    "hosts-apart": Pair(
        separated(decode_role={"hosts": ["10.0.0.1", "10.0.1.2"]}), separated(), "10.0.0.1"
    ),
    "hosts-once": Pair(
        separated(decode_role={"hosts": ["10.0.1.1", "10.0.1.1"]}), separated(), "more than once"
    ),
    "router-prefill": routers({"prefill": [["http://10.0.0.1:8000", 8998]]}, {}, "2 prefill"),
    "router-decode": routers({"decode": ["http://a:8001", "http://b:8001"]}, {}, "1 decode"),
    "router-ports": routers({"decode": ["http://10.0.1.1:9001"]}, {}, "listen on 8001"),
    "router-mode": routers({"pd-disaggregation": LEAVE_OUT}, {}, "--pd-disaggregation"),
    "router-missing": Pair(separated(drop=("router",)), separated(), "no router"),
    "handshake": decodes({"page-size": 64}, {}, "64 on decode"),
    "drafts-on-both": decodes(EAGLE3, {}, "EAGLE3"),
    "ports-apart": Pair(
        separated(router={"port": 8000}, prefill_role={"hosts": ["127.0.0.1", "10.0.0.2"]}),
        separated(),
        "is taken by",
    ),
    "port-range": flags({"port": 70000}, {}, "65535"),
    "queue-ignored": decodes({"max-queued-requests": 8}, {}, "ignored"),
}
LOAD_PAIRS = {
    "benchmark-port": benchmarks({"port": 7239}, {}, "go in at 7000"),
    "context": flags({"context-length": 3000}, {}, "3072"),
    "context-model": Pair(
        mixed(flags={"context-length": 65536}),
        mixed(flags={"context-length": 65536}, environment={LONG: "1"}),
        "40960",
    ),
    "admission": benchmarks({"max-concurrency": 512}, {}, "256 are admitted"),
    "prefill-budget": flags(
        {"chunked-prefill-size": -1, "max-prefill-tokens": 1500},
        {"chunked-prefill-size": -1, "max-prefill-tokens": 4096},
        "1500",
    ),
    "chunk-share": flags({"chunked-prefill-size": 16384}, {"chunked-prefill-size": 32768}, "1024"),
    "workload": Pair(
        mixed(workload={"input": 4096, "output": 1024}),
        mixed(workload={"input": 2048, "output": 1024}),
        "4096",
    ),
    "workload-range": Pair(
        mixed(workload={"input": {"low": 1024, "high": 2048}, "output": 1024}),
        mixed(workload={"input": {"low": 2048, "high": 2048}, "output": 1024}),
        "--random-range-ratio 0.50",
    ),
    "range-ratio": benchmarks({"random-range-ratio": LEAVE_OUT}, {}, "default 0"),
    "single-wave": benchmarks({"num-prompts": 256}, {}, "one wave"),
    "quantisation": flags({"quantization": "modelslim"}, {}, "bf16"),
    "weights-fit": Pair(mixed(model={"name": "deepseek-r1"}), mixed(), "nothing is left"),
    "load-fits": Pair(
        mixed(workload={"input": 30000, "output": 8000, "concurrency": 256}), mixed(), "fit at once"
    ),
    "total-tokens": flags({"max-total-tokens": 90000000}, {"max-total-tokens": 1000}, "is used"),
    "outside-fits": flags({"mem-fraction-static": 0.99}, {}, "estimated"),
}
ENVIRONMENT_PAIRS = {
    "unknown-variable": variables({"SGLANG_SET_CPU_AFINITY": "1"}, {}, "SGLANG_SET_CPU_AFFINITY"),
    "dead-variable": variables({"SGLANG_DP_ROUND_ROBIN": "1"}, {}, "reads"),
    "number-variable": variables({"HCCL_BUFFSIZE": "8oo"}, {}, "whole number"),
    "allocator-segments": Pair(mixed(environment={"PYTORCH_NPU_ALLOC_CONF": ""}), mixed()),
    "task-queue": Pair(separated(decode_environment={"TASK_QUEUE_ENABLE": "1"}), separated(), "0"),
    "task-queue-graphs": Pair(
        separated(decode_environment={"TASK_QUEUE_ENABLE": "2"}), separated(), "conflicts"
    ),
    "loopback-nodes": Pair(
        separated(decode_environment={"HCCL_SOCKET_IFNAME": "lo"}), separated(), "cannot reach"
    ),
    "interface-named": Pair(
        separated(decode_environment={"HCCL_SOCKET_IFNAME": LEAVE_OUT}), separated(), "not set"
    ),
    "nz-layout": variables(
        {"SGLANG_USE_FIA_NZ": "1"}, {"SGLANG_USE_FIA_NZ": "1", "SGLANG_NPU_USE_MLAPO": "1"}
    ),
    "skip-all-gather": variables({"SGLANG_SCHEDULER_SKIP_ALL_GATHER": "1"}, {}, "prefills"),
    "hard-coded": decodes({"dist-init-addr": "141.61.105.131:5000"}, {}, "141.61.105.131"),
    "proxy": variables({"http_proxy": "http://proxy:3128"}, {}, "unset"),
    "store-url": Pair(
        separated(decode_environment={"ASCEND_MF_STORE_URL": "tcp://10.0.0.9:24669"}),
        separated(),
        "differs",
    ),
}
BECOMES_PAIRS = {
    "becomes-ep": flags({"ep-size": 4}, {}, "becomes 16"),
    "becomes-dp-attention": flags({"dp-size": 1}, {}, "switched off"),
    "becomes-chunk": flags({"chunked-prefill-size": 32768}, {}, "2048 for a rank"),
    "becomes-conservativeness": flags({}, {"enable-dp-attention": LEAVE_OUT}, "0.3"),
    "becomes-ascend": flags({"page-size": 64}, {"page-size": 128}, "becomes 128"),
    "becomes-draft-path": Pair(
        mixed(flags=NEXTN, model={"name": "deepseek-r1"}),
        mixed(flags=EAGLE3, model={"name": "deepseek-r1"}),
    ),
    "becomes-eagle": flags(NEXTN, EAGLE3, "EAGLE"),
    "becomes-draft-limits": Pair(
        mixed(flags={**EAGLE3, "max-running-requests": LEAVE_OUT}),
        mixed(flags=EAGLE3, environment={V2: "1"}),
        "becomes 48",
    ),
    "becomes-no-overlap": flags({"pp-size": 2}, {}, "overlap"),
    "becomes-no-prefix-cache": decodes({}, {"disable-radix-cache": True}, "prefix cache"),
    "becomes-no-graphs": prefills({"disable-cuda-graph": LEAVE_OUT}, {}, "graphs"),
    "becomes-eager": flags({"deepep-mode": "normal"}, {}, "switched off"),
    "becomes-static-experts": flags({"ep-num-redundant-experts": 16}, {}, "static"),
    "becomes-unfused": flags({"disable-shared-experts-fusion": True}, {}, "changes nothing"),
    "becomes-fcfs": flags(
        {"schedule-policy": "lpm", "disable-radix-cache": True}, {"schedule-policy": "lpm"}
    ),
    "becomes-one-tokenizer": flags(
        {"skip-tokenizer-init": True, "tokenizer-worker-num": 4}, {"tokenizer-worker-num": 4}
    ),
    "becomes-no-symmetric": flags({"enable-symm-mem": True}, {}, "CUDA"),
    "becomes-pytorch-sampling": flags(
        {"enable-deterministic-inference": True, "sampling-backend": "ascend"},
        {"enable-deterministic-inference": True, "sampling-backend": "pytorch"},
    ),
    "becomes-sparse-pages": Pair(
        {
            "model": {"name": "deepseek-v3.2"},
            "hardware": {"device": "h200"},
            "roles": {"mixed": {"kind": "mixed", "flags": {"page-size": 1}}},
        },
        mixed(flags={"page-size": 1}, model={"name": "deepseek-v3.2"}),
        "becomes 64",
    ),
    "becomes-sizes": flags(
        {"cuda-graph-bs": LEAVE_OUT}, {"chunked-prefill-size": 8192}, "becomes 256"
    ),
    "becomes-hicache-layout": flags(
        {
            "enable-hierarchical-cache": True,
            "hicache-mem-layout": "page_first",
            "hicache-io-backend": "direct",
        },
        {
            "enable-hierarchical-cache": True,
            "hicache-mem-layout": "page_first",
            "hicache-io-backend": "kernel",
        },
    ),
}
LOAD = {"input": 2048, "output": 1024}
UNCACHED = {"flags": {**mixed()["roles"]["mixed"]["flags"], "disable-radix-cache": True}}
GOAL_PAIRS = {
    "target-first-token": Pair(
        mixed(targets={"ttft_ms": 0.1}), mixed(targets={"ttft_ms": 2000}), "at the devices' peak"
    ),
    "target-token": Pair(
        mixed(targets={"tpot_ms": 0.1}), mixed(targets={"tpot_ms": 50}), "at the devices' bandwidth"
    ),
    "target-rate": Pair(
        mixed(workload={**LOAD, "rate": 50}, targets={"tpot_ms": 50}),
        mixed(workload={**LOAD, "rate": 5}, targets={"tpot_ms": 50}),
        "2560 at once; 256 are admitted",
    ),
    "shared-prompts": Pair(
        mixed(workload={**LOAD, "prefix_share": 0.5}, role=UNCACHED),
        mixed(workload={**LOAD, "prefix_share": 0.5}),
        "50% of a prompt",
    ),
    "model-path": Pair(
        mixed(model={"name": "qwen3-30b-a3b", "path": "/other"}),
        mixed(model={"name": "qwen3-30b-a3b", "path": "/models/Qwen3-30B-A3B"}),
        "/other",
    ),
    "unread": Pair(
        mixed(workload={**LOAD, "rate": 5}, benchmarks=[]),
        mixed(workload={**LOAD, "rate": 5}),
        "workload.rate",
    ),
}
PAIRS: dict[str, Pair] = {
    **FLAG_PAIRS,
    **REFUSED_PAIRS,
    **LAYOUT_PAIRS,
    **EXPERT_PAIRS,
    **DRAFT_PAIRS,
    **SEPARATION_PAIRS,
    **LOAD_PAIRS,
    **GOAL_PAIRS,
    **ENVIRONMENT_PAIRS,
    **BECOMES_PAIRS,
}
OF_REMARKS = ("not-understood", "flag-given-twice", "stray-word")


def test_every_rule_is_tested_here() -> None:
    assert {rule.name for rule in RULES} == {*PAIRS, *OF_REMARKS}
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", PAIRS)
def test_a_rule_finds_what_it_is_for(rule: str) -> None:
    pair = PAIRS[rule]
    findings = found(pair.bad, rule, pair.target)
    assert findings
    assert any(pair.says in f"{each.text} {each.remedy}" for each in findings), findings
    assert all(each.text and each.source for each in findings)


@pytest.mark.parametrize("rule", PAIRS)
def test_a_rule_finds_nothing_where_nothing_is(rule: str) -> None:
    assert found(PAIRS[rule].good, rule, PAIRS[rule].target) == []


@pytest.mark.parametrize("rule", OF_REMARKS)
def test_remarks_of_an_import_become_findings(rule: str) -> None:
    remarks = (Remarked(Remark(rule, "host", "what was found"), 7),)
    (finding,) = found(mixed(), rule, remarks=remarks)
    assert finding.line == 7 and "what was found" in finding.text
    assert found(mixed(), rule) == []


@pytest.mark.parametrize("made", [mixed, separated])
def test_sound_deployments_have_no_errors_and_no_warnings(made: Callable[[], Made]) -> None:
    findings = judge(case(made())).findings
    assert [each for each in findings if each.severity in ("error", "warning")] == []


def test_rules_that_lack_something_are_named_not_forgotten() -> None:
    bare = {"roles": {"mixed": {"kind": "mixed", "flags": {"tp-size": 2}}}}
    skipped = judge(case(bare)).skipped
    assert "cards" in skipped["cards"] and "heads" in skipped["model"]
    assert {name for names in skipped.values() for name in names} == {
        rule.name for rule in RULES if rule.needs
    }


@pytest.mark.parametrize(
    ("flag", "value", "target", "severity"),
    [
        ("attn-cp-size", 2, "sglang==0.5.8", "error"),
        ("attn-cp-size", 2, "sglang==0.5.10", None),
        ("prefill-round-robin-balance", True, "sglang==0.5.10", None),
        ("prefill-round-robin-balance", True, "sglang==0.5.23", "error"),
        ("enable-deepep-moe", True, "sglang==0.4.6", None),
        ("enable-deepep-moe", True, "sglang==0.5.7", "error"),
        ("disaggregation-mode", "null", "sglang==0.4.6", "warning"),
        ("cp-strategy", "zigzag", "sglang==0.5.10", "error"),
        ("cp-strategy", "zigzag", "sglang==0.5.23", None),
        ("kv-canary", "off", "sglang==0.5.10", "error"),
        ("kv-canary", "off", "sglang==0.5.23", None),
    ],
)
def test_flags_are_judged_by_the_version(
    flag: str, value: Any, target: str, severity: str | None
) -> None:
    findings = [
        each
        for each in found(mixed(flags={flag: value}), "flag-version", target)
        if each.flag == f"--{flag}"
    ]
    assert [each.severity for each in findings] == ([] if severity is None else [severity])


@pytest.mark.parametrize(
    ("target", "severity"), [("sglang==0.5.7", "warning"), ("sglang==0.5.10", "error")]
)
def test_values_are_judged_by_the_version(target: str, severity: str) -> None:
    made = mixed(flags={"load-balance-method": "decode_round_robin"})
    (finding,) = found(made, "retired-value", target)
    assert finding.severity == severity


@pytest.mark.parametrize("name", pages())
def test_the_pages_are_current(name: str) -> None:
    assert (DOCS / name).read_text() == pages()[name], "run `make docs`"


def test_the_table_of_flags_is_current() -> None:
    assert Path(packaged(FILE)).read_bytes() == made(), "run `make docs`"
