"""Every rule finds what it is for, and nothing in the same deployment without it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deployments import LEAVE_OUT, case, found, mixed, separated

import vivace.deploy.rules
from vivace.config.releases.tables import releases, status, takers
from vivace.deploy.catalogue.flags import FILE, flags_json
from vivace.deploy.document import DOCS, pages
from vivace.deploy.files import packaged_path
from vivace.deploy.from_script.flags import Remark
from vivace.deploy.rules.combinations import COMBINATION_RULES
from vivace.deploy.rules.judge import RULES, Finding, judge
from vivace.deploy.startup import rewrites_at

LONG = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
PARTITION = "SGLANG_PP_LAYER_PARTITION"
DISPATCH = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
V2 = "SGLANG_ENABLE_SPEC_V2"
EAGLE3 = {
    "speculative-algorithm": "EAGLE3",
    "speculative-draft-model-path": "/models/draft",
    "speculative-num-steps": 3,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": 4,
}
NEXTN = {**EAGLE3, "speculative-algorithm": "NEXTN", "speculative-draft-model-path": LEAVE_OUT}
CUDA = {"device": "cuda", "attention-backend": "fa3", "model-path": "MiniMaxAI/MiniMax-M2.5"}
Made = dict[str, Any]
SERVER = "python -m sglang.launch_server --model-path m"
CHECKED = f"FROM a\nHEALTHCHECK CMD curl -f localhost:{{}}/health\nCMD {SERVER} --port 8000\n"
MEETING = "".join(
    f"ssh {host} '{SERVER} --tp 16 --nnodes 2 --node-rank {rank} --dist-init-addr {{0}}:5000'\n"
    for rank, host in enumerate("ab")
)
LOOP = f"for ((i = 0; i < COUNT; i++)); do\n  {SERVER} --port {{}} &\ndone\n"
ENCODERS = f"""CUDA_VISIBLE_DEVICES=1 {SERVER} --encoder-only --port 30001 &
CUDA_VISIBLE_DEVICES=0 {SERVER} --language-only --encoder-urls http://127.0.0.1:{{port}} &
"""


class Pair:
    """The rule finds `bad` at `place` (role and flag), and nothing in `good`; `values` stand in
    the finding: numbers, flags and names, no prose."""

    def __init__(
        self, bad: Made, good: Made, place: str, *values: str, target: str = "sglang"
    ) -> None:
        self.bad, self.good, self.place = bad, good, place
        self.values, self.target = values, target


def flags(bad: Made, good: Made, *expected: str, target: str = "sglang") -> Pair:
    return Pair(mixed(flags=bad), mixed(flags=good), *expected, target=target)


def variables(bad: Made, good: Made, *expected: str) -> Pair:
    return Pair(mixed(environment=bad), mixed(environment=good), *expected)


def benchmarks(bad: Made, good: Made, *expected: str) -> Pair:
    return Pair(mixed(benchmark=bad), mixed(benchmark=good), *expected)


def scripts(bad: str, good: str, *expected: str) -> Pair:
    return Pair({"script": bad}, {"script": good}, *expected)


def decodes(bad: Made, good: Made, *expected: str) -> Pair:
    return Pair(separated(decode=bad), separated(decode=good), *expected)


def prefills(bad: Made, good: Made, *expected: str) -> Pair:
    return Pair(separated(prefill=bad), separated(prefill=good), *expected)


def routers(bad: Made, good: Made, *expected: str) -> Pair:
    return Pair(separated(router=bad), separated(router=good), *expected)


FLAG_PAIRS = {
    "single-dash": benchmarks(
        {"-max-concurrency": 1}, {"max-concurrency": 1}, "benchmark -max-concurrency"
    ),
    "unknown-flag": flags(
        {"enable-dp-atention": True}, {}, "mixed --enable-dp-atention", "enable-dp-attention"
    ),
    "flag-version": flags(
        {"enable-deepep-moe": True}, {}, "mixed --enable-deepep-moe", "--moe-a2a-backend deepep"
    ),
    "gone-from-latest": flags(
        {"torchao-config": "int8wo"},
        {"cuda-graph-bs": LEAVE_OUT},
        "mixed --cuda-graph-bs",
        "--torchao-config",
    ),
    "abbreviated-flag": flags(
        {"moe-dense-tp": 1}, {"moe-dense-tp-size": 1}, "mixed --moe-dense-tp", "--moe-dense-tp-size"
    ),
    "flag-value": flags({"dtype": "bfloat1"}, {"dtype": "bfloat16"}, "mixed --dtype", "bfloat16"),
    "retired-value": flags(
        {"load-balance-method": "decode_round_robin"},
        {"load-balance-method": "round_robin"},
        "mixed --load-balance-method",
        "auto",
    ),
    "ascend-flag": flags(
        {"enable-nccl-nvls": True}, {"enable-mixed-chunk": True}, "mixed --enable-nccl-nvls"
    ),
    "ascend-value": flags(
        {"grammar-backend": "outlines"},
        {"grammar-backend": "xgrammar"},
        "mixed --grammar-backend",
        "xgrammar",
    ),
    "no-roles": Pair({"name": "base"}, mixed(), "roles"),
    "backend-platform": Pair(
        mixed(flags={"device": "cuda"}, hardware={"device": "h200", "cards": 16}),
        mixed(
            flags={"device": "cuda", "attention-backend": "fa3"},
            hardware={"device": "h200", "cards": 16},
        ),
        "mixed --attention-backend",
        "fa3",
    ),
    "vivace-start": Pair(
        {"roles": {"mixed": {"kind": "mixed", "flags": {"host": "0.0.0.0"}}}},
        {"roles": {"mixed": {"kind": "mixed", "flags": {"host": "::", "api-key": "<$KEY>"}}}},
        "mixed --host",
        "--insecure",
        target="vivace",
    ),
    "lossy-drafts": Pair(
        *(
            {
                "roles": {
                    "mixed": {
                        "kind": "mixed",
                        "flags": {
                            "speculative-algorithm": "NGRAM",
                            "speculative-accept-threshold-acc": threshold,
                        },
                    }
                }
            }
            for threshold in (0.5, 1.0)
        ),
        "mixed --speculative-accept-threshold-acc",
        "leave it out",
        target="vivace",
    ),
    "vivace-flag": Pair(
        mixed(flags={"device": "cpu"}, hardware=LEAVE_OUT),
        {"roles": {"mixed": {"kind": "mixed", "flags": {"device": "cpu", "port": 8000}}}},
        "mixed --attention-backend",
        target="vivace",
    ),
}
REFUSED_PAIRS = {
    "host-cache": flags(
        {"enable-hierarchical-cache": True, "disable-radix-cache": True},
        {"enable-hierarchical-cache": True},
        "mixed --enable-hierarchical-cache",
    ),
    "multi-item-scoring": flags(
        {"multi-item-scoring-delimiter": 7},
        {
            "multi-item-scoring-delimiter": 7,
            "disable-radix-cache": True,
            "chunked-prefill-size": -1,
        },
        "mixed --multi-item-scoring-delimiter",
    ),
    "priority-policy": flags(
        {"enable-priority-scheduling": True, "schedule-policy": "lpm"},
        {"enable-priority-scheduling": True, "schedule-policy": "fcfs"},
        "mixed --schedule-policy",
    ),
    "chunk-pages": flags(
        {"chunked-prefill-size": 1024},
        {"chunked-prefill-size": 2048},
        "mixed --chunked-prefill-size",
        "64",
        "128",
    ),
    "tokenizer-batches": flags(
        {"enable-tokenizer-batch-encode": True, "enable-dynamic-batch-tokenizer": True},
        {"enable-tokenizer-batch-encode": True},
        "mixed --enable-tokenizer-batch-encode",
    ),
    "served-name": flags(
        {"served-model-name": "a:b"}, {"served-model-name": "a-b"}, "mixed --served-model-name"
    ),
    "tls-files": flags(
        {"ssl-keyfile": "/k"},
        {"ssl-keyfile": "/k", "ssl-certfile": "/c"},
        "mixed --ssl-keyfile",
        "--ssl-certfile",
    ),
    "metrics-folder": flags(
        {"export-metrics-to-file": True},
        {"export-metrics-to-file": True, "export-metrics-to-file-dir": "/m"},
        "mixed --export-metrics-to-file",
    ),
    "topk-pages": flags(
        {**EAGLE3, "speculative-eagle-topk": 4, "speculative-num-draft-tokens": 8},
        EAGLE3,
        "mixed --speculative-eagle-topk",
        "4",
    ),
    "hybrid-cache": Pair(
        mixed(flags=NEXTN, model={"name": "qwen3-next"}),
        mixed(flags={**NEXTN, "disable-radix-cache": True}, model={"name": "qwen3-next"}),
        "mixed --speculative-algorithm",
        "extra_buffer",
    ),
    "limits": flags(
        {"mem-fraction-static": 1.2},
        {"mem-fraction-static": 0.8},
        "mixed --mem-fraction-static",
        "1.2",
    ),
}


def serves(content: dict[str, object]) -> Made:
    role = {"kind": "mixed", "flags": {"device": "cpu", **content}}
    return {"model": {"name": "qwen3-30b-a3b"}, "roles": {"mixed": role}}


LAYOUT_PAIRS = {
    "cards": Pair(
        mixed(hardware={"device": "atlas-800i-a3", "cards": 16}), mixed(), "hardware.cards", "16"
    ),
    "node-capacity": flags({"tp-size": 32, "dp-size": 32}, {}, "mixed --nnodes", "16"),
    "nodes": Pair(separated(decode_role={"hosts": ["10.0.1.1"]}), separated(), "decode hosts", "2"),
    "nodes-share-ranks": decodes({"tp-size": 33}, {}, "decode --nnodes", "33"),
    "meeting-point": decodes(
        {"dist-init-addr": LEAVE_OUT}, {}, "decode --dist-init-addr", "--dist-init-addr"
    ),
    "plain-dp-nodes": decodes({"enable-dp-attention": LEAVE_OUT}, {}, "decode --dp-size"),
    "dp-divides-tp": flags({"dp-size": 6, "max-running-requests": 252}, {}, "mixed --dp-size", "6"),
    "running-divides": flags(
        {"max-running-requests": 250}, {}, "mixed --max-running-requests", "240"
    ),
    "heads": flags(
        {"tp-size": 24, "dp-size": 1, "max-running-requests": 250}, {}, "mixed --tp-size", "32"
    ),
    "vivace-layout": Pair(
        serves({"tp-size": 12}), serves({"tp-size": 8}), "mixed --tp-size", "32", target="vivace"
    ),
    "kv-heads": flags(
        {"tp-size": 12, "dp-size": 2, "max-running-requests": 250}, {}, "mixed --tp-size", "4"
    ),
    "kv-copies": flags({"dp-size": 2}, {"dp-size": 4}, "mixed --tp-size", "2"),
    "experts": flags(
        {"tp-size": 12, "dp-size": 12, "max-running-requests": 252}, {}, "mixed --ep-size", "128"
    ),
    "weight-blocks": Pair(
        mixed(
            model={"name": "minimax-m2.5"},
            hardware={"device": "h200", "cards": 8},
            flags={**CUDA, "tp-size": 8, "dp-size": 8, "moe-a2a-backend": LEAVE_OUT},
        ),
        mixed(
            model={"name": "minimax-m2.5"},
            hardware={"device": "h200", "cards": 8},
            flags={**CUDA, "tp-size": 8, "dp-size": 8, "moe-a2a-backend": "deepep"},
        ),
        "mixed --tp-size",
        "192",
        "128",
    ),
    "ep-divides-tp": flags(
        {"moe-a2a-backend": LEAVE_OUT, "ep-size": 3},
        {"moe-a2a-backend": LEAVE_OUT, "ep-size": 4},
        "mixed --ep-size",
    ),
    "dense-tp": flags(
        {"moe-dense-tp-size": 4}, {"moe-dense-tp-size": 1}, "mixed --moe-dense-tp-size", "16"
    ),
    "dp-lm-head": flags(
        {"enable-dp-lm-head": True, "dp-size": 1},
        {"enable-dp-lm-head": True},
        "mixed --enable-dp-lm-head",
    ),
    "pipeline": flags({**NEXTN, "pp-size": 2}, NEXTN, "mixed --speculative-algorithm", "2"),
    "pipeline-layers": Pair(
        mixed(flags={"pp-size": 2}, environment={PARTITION: "24,25"}),
        mixed(flags={"pp-size": 2}, environment={PARTITION: "24,24"}),
        f"mixed {PARTITION}",
        "48",
    ),
    "pipeline-partition": Pair(
        mixed(flags={"pp-size": 2}, environment={PARTITION: "16,16,16"}),
        mixed(flags={"pp-size": 2}, environment={PARTITION: "24,24"}),
        f"mixed {PARTITION}",
        "3",
        "2",
    ),
    "context-parallel": flags(
        {"enable-nsa-prefill-context-parallel": True},
        {"enable-nsa-prefill-context-parallel": True, "attn-cp-size": 2},
        "mixed --enable-nsa-prefill-context-parallel",
    ),
}
EXPERT_PAIRS = {
    "dispatch-tokens": flags(
        {**EAGLE3, "max-running-requests": 576},
        {**EAGLE3, "max-running-requests": 512},
        f"mixed {DISPATCH}",
        "144",
    ),
    "dispatch-fused": Pair(
        mixed(flags={"moe-a2a-backend": "ascend_fuseep"}, environment={DISPATCH: "8"}),
        mixed(flags={"moe-a2a-backend": "ascend_fuseep"}, environment={DISPATCH: "16"}),
        f"mixed {DISPATCH}",
        "16",
    ),
    "dispatch-guide": Pair(
        mixed(environment={DISPATCH: "64"}),
        mixed(environment={DISPATCH: "256"}),
        f"mixed {DISPATCH}",
    ),
    "dispatch-limits": variables(
        {DISPATCH: "2048"}, {DISPATCH: "1024"}, f"mixed {DISPATCH}", "1024"
    ),
    "hccl-buffer": variables(
        {"HCCL_BUFFSIZE": "200"}, {"HCCL_BUFFSIZE": "800"}, "mixed HCCL_BUFFSIZE", "200"
    ),
    "hccl-waste": variables(
        {"HCCL_BUFFSIZE": "4300"}, {"HCCL_BUFFSIZE": "800"}, "mixed HCCL_BUFFSIZE", "4300"
    ),
    "long-rounds": Pair(
        separated(
            prefill_environment={
                "DEEPEP_NORMAL_LONG_SEQ_ROUND": "1",
                "DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS": "256",
            }
        ),
        separated(
            prefill_environment={
                "DEEPEP_NORMAL_LONG_SEQ_ROUND": "4",
                "DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS": "512",
            }
        ),
        "prefill DEEPEP_NORMAL_LONG_SEQ_ROUND",
        "256",
    ),
    "deepep-mode": decodes({"deepep-mode": "normal"}, {}, "decode --deepep-mode"),
    "fused-mode": Pair(
        mixed(flags={"moe-a2a-backend": "ascend_fuseep"}),
        mixed(
            flags={"moe-a2a-backend": "ascend_fuseep"},
            environment={"SGLANG_NPU_FUSED_MOE_MODE": "1"},
        ),
        "mixed SGLANG_NPU_FUSED_MOE_MODE",
        "fuse_mode=None",
    ),
    "fused-mode-quantised": Pair(
        mixed(environment={"SGLANG_NPU_FUSED_MOE_MODE": "2"}),
        mixed(flags={"quantization": "modelslim"}, environment={"SGLANG_NPU_FUSED_MOE_MODE": "2"}),
        "mixed SGLANG_NPU_FUSED_MOE_MODE",
        "modelslim",
    ),
}
DRAFT_PAIRS = {
    "spec-v2": Pair(
        mixed(flags={**EAGLE3, "speculative-eagle-topk": 4}, environment={V2: "1"}),
        mixed(flags=EAGLE3, environment={V2: "1"}),
        "mixed --speculative-eagle-topk",
    ),
    "draft-quantisation": flags(
        {**EAGLE3, "quantization": "modelslim"},
        {
            **EAGLE3,
            "quantization": "modelslim",
            "speculative-draft-model-quantization": "unquant",
        },
        "mixed --quantization",
    ),
    "draft-tokens": flags(
        {**EAGLE3, "speculative-num-draft-tokens": 8},
        EAGLE3,
        "mixed --speculative-num-draft-tokens",
        "4",
    ),
    "draft-complete": flags(
        {**EAGLE3, "speculative-num-steps": LEAVE_OUT}, EAGLE3, "mixed --speculative-eagle-topk"
    ),
    "multi-layer-mtp": Pair(
        mixed(flags={**NEXTN, "enable-multi-layer-eagle": True}, model={"name": "deepseek-r1"}),
        mixed(flags=NEXTN, model={"name": "deepseek-r1"}),
        "mixed --speculative-num-steps",
        "3 steps",
        "1",
    ),
    "ngram": flags({"speculative-algorithm": "NGRAM"}, EAGLE3, "mixed --enable-dp-attention"),
    "adapter-drafts": flags(
        {**EAGLE3, "enable-lora": True}, {"enable-lora": True}, "mixed --enable-lora"
    ),
    "graph-covers": flags({"cuda-graph-bs": [1, 2, 4, 8]}, {}, "mixed --cuda-graph-bs", "8"),
    "graph-sizes": flags(
        {"cuda-graph-bs": [1, 2, 4, 8, 16, 32]}, {}, "mixed --cuda-graph-bs", "32"
    ),
}
SEPARATION_PAIRS = {
    "separation-halves": Pair(
        separated(drop=("prefill",)), separated(), "decode --disaggregation-mode"
    ),
    "role-mode": flags(
        {"disaggregation-mode": "decode"}, {}, "mixed --disaggregation-mode", "decode"
    ),
    "hosts-apart": Pair(
        separated(decode_role={"hosts": ["10.0.0.1", "10.0.1.2"]}),
        separated(),
        "decode hosts",
        "10.0.0.1",
    ),
    "router-entries": routers(
        {"decode": ["http://a:8001", "http://b:8001"]}, {}, "router --decode", "1"
    ),
    "encoder-ports": scripts(
        ENCODERS.format(port=30002),
        ENCODERS.format(port=30001),
        "mixed --encoder-urls",
        "30001",
    ),
    "router-ports": routers({"decode": ["http://10.0.1.1:9001"]}, {}, "router --decode", "8001"),
    "router-mode": routers(
        {"pd-disaggregation": LEAVE_OUT}, {}, "router --pd-disaggregation", "--pd-disaggregation"
    ),
    "router-missing": Pair(separated(drop=("router",)), separated(), ""),
    "handshake": decodes({"page-size": 64}, {}, "decode --page-size", "64"),
    "drafts-on-both": Pair(
        separated(prefill=EAGLE3, decode=NEXTN),
        separated(prefill=EAGLE3, decode=EAGLE3),
        "decode --speculative-algorithm",
        "EAGLE3",
    ),
    "ports-apart": Pair(
        separated(router={"port": 8000}, prefill_role={"hosts": ["127.0.0.1", "10.0.0.2"]}),
        separated(),
        "router --port",
        "8000",
    ),
    "port-answered": Pair(
        {"script": CHECKED.format(8001)}, {"script": CHECKED.format(8000)}, "port", "8001", "8000"
    ),
    "meeting-host": Pair(
        {"script": MEETING.format("c")},
        {"script": MEETING.format("a")},
        "mixed --dist-init-addr",
        "c",
        "a",
    ),
    "port-in-loop": Pair(
        {"script": LOOP.format("30000")},
        {"script": LOOP.format("$((30000 + i))")},
        "mixed --port",
        "30000",
    ),
    "node-ranks": decodes({"node-rank": 0}, {}, "decode --node-rank", "10.0.1.1", "10.0.1.2"),
    "nodes-agree": Pair(
        separated(decode_role={"each": [{}, {"flags": {"dist-init-addr": "10.0.1.2:5000"}}]}),
        separated(),
        "decode --dist-init-addr",
        "10.0.1.1:5000",
        "10.0.1.2:5000",
    ),
    "devices-apart": scripts(
        f"{SERVER} --tp 2 --port 8001 &\n{SERVER} --tp 2 --port 8002 --base-gpu-id 1 &\n",
        f"{SERVER} --tp 2 --port 8001 &\n{SERVER} --tp 2 --port 8002 --base-gpu-id 2 &\n",
        "mixed-2 --base-gpu-id",
        "1",
    ),
    "devices-there": flags({"base-gpu-id": 1}, {"base-gpu-id": 0}, "mixed --base-gpu-id", "16"),
    "queue-ignored": decodes({"max-queued-requests": 8}, {}, "decode --max-queued-requests"),
}
LOAD_PAIRS = {
    "benchmark-port": benchmarks({"port": 7239}, {}, "benchmark --port", "7000"),
    "context": flags({"context-length": 3000}, {}, "mixed --context-length", "3072"),
    "context-model": Pair(
        mixed(flags={"context-length": 65536}),
        mixed(flags={"context-length": 65536}, environment={LONG: "1"}),
        "mixed --context-length",
        "40960",
    ),
    "admission": benchmarks({"max-concurrency": 512}, {}, "mixed --max-running-requests", "256"),
    "prefill-budget": flags(
        {"chunked-prefill-size": -1, "max-prefill-tokens": 1500},
        {"chunked-prefill-size": -1, "max-prefill-tokens": 4096},
        "mixed --max-prefill-tokens",
        "1500",
    ),
    "chunk-share": flags(
        {"chunked-prefill-size": 16384},
        {"chunked-prefill-size": 32768},
        "mixed --chunked-prefill-size",
        "1024",
    ),
    "workload": Pair(
        mixed(workload={"input": 4096, "output": 1024}),
        mixed(workload={"input": 2048, "output": 1024}),
        "benchmark --random-input-len",
        "4096",
    ),
    "range-ratio": benchmarks(
        {"random-range-ratio": LEAVE_OUT}, {}, "benchmark --random-range-ratio", "0"
    ),
    "single-wave": benchmarks({"num-prompts": 256}, {}, "benchmark --num-prompts", "256"),
    "quantisation": flags({"quantization": "modelslim"}, {}, "mixed --quantization", "bf16"),
    "weights-fit": Pair(
        mixed(model={"name": "deepseek-r1"}), mixed(), "mixed --mem-fraction-static", "0.7"
    ),
    "host-pool": flags(
        {"enable-hierarchical-cache": True, "hicache-ratio": 0.5},
        {"enable-hierarchical-cache": True, "hicache-ratio": 1.5},
        "mixed --hicache-ratio",
        "0.5",
    ),
    "load-fits": Pair(
        mixed(workload={"input": 30000, "output": 8000, "concurrency": 256}),
        mixed(),
        "mixed --mem-fraction-static",
    ),
    "states-fit": Pair(
        mixed(model={"name": "qwen3-next"}, flags={"max-running-requests": 4096}),
        mixed(model={"name": "qwen3-next"}, flags={"max-running-requests": 64}),
        "mixed --max-running-requests",
        "256",
        target="vivace",
    ),
    "total-tokens": flags(
        {"max-total-tokens": 90000000},
        {"max-total-tokens": 1000},
        "mixed --max-total-tokens",
        "90000000",
    ),
    "outside-fits": flags({"mem-fraction-static": 0.99}, {}, "mixed --mem-fraction-static", "0.99"),
}
ENVIRONMENT_PAIRS = {
    "unknown-variable": variables(
        {"SGLANG_SET_CPU_AFINITY": "1"},
        {},
        "mixed SGLANG_SET_CPU_AFINITY",
        "SGLANG_SET_CPU_AFFINITY",
    ),
    "dead-variable": variables({"SGLANG_DP_ROUND_ROBIN": "1"}, {}, "mixed SGLANG_DP_ROUND_ROBIN"),
    "number-variable": variables({"HCCL_BUFFSIZE": "8oo"}, {}, "mixed HCCL_BUFFSIZE", "8oo"),
    "variable-value": variables(
        {"HCCL_OP_EXPANSION_MODE": "AVI"},
        {"HCCL_OP_EXPANSION_MODE": "AIV", V2: "True"},
        "mixed HCCL_OP_EXPANSION_MODE",
        "AIV",
    ),
    "allocator-segments": Pair(
        mixed(environment={"PYTORCH_NPU_ALLOC_CONF": ""}), mixed(), "mixed PYTORCH_NPU_ALLOC_CONF"
    ),
    "task-queue": Pair(
        separated(decode_environment={"TASK_QUEUE_ENABLE": "1"}),
        separated(),
        "decode TASK_QUEUE_ENABLE",
        "0",
    ),
    "loopback-nodes": Pair(
        separated(decode_environment={"HCCL_SOCKET_IFNAME": "lo"}),
        separated(),
        "decode HCCL_SOCKET_IFNAME",
    ),
    "interface-named": Pair(
        separated(decode_environment={"HCCL_SOCKET_IFNAME": LEAVE_OUT}),
        separated(),
        "decode HCCL_SOCKET_IFNAME",
        "HCCL_SOCKET_IFNAME",
    ),
    "nz-layout": variables(
        {"SGLANG_USE_FIA_NZ": "1"},
        {"SGLANG_USE_FIA_NZ": "1", "SGLANG_NPU_USE_MLAPO": "1"},
        "mixed SGLANG_USE_FIA_NZ",
    ),
    "skip-all-gather": variables(
        {"SGLANG_SCHEDULER_SKIP_ALL_GATHER": "1"}, {}, "mixed SGLANG_SCHEDULER_SKIP_ALL_GATHER"
    ),
    "hard-coded": decodes(
        {"dist-init-addr": "141.61.105.131:5000"}, {}, "decode --dist-init-addr", "141.61.105.131"
    ),
    "proxy": variables({"http_proxy": "http://proxy:3128"}, {}, "mixed http_proxy", "http_proxy"),
    "store-url": Pair(
        separated(decode_environment={"ASCEND_MF_STORE_URL": "tcp://10.0.0.9:24669"}),
        separated(),
        "prefill ASCEND_MF_STORE_URL",
        "tcp://10.0.0.9:24669",
    ),
}
BECOMES_PAIRS = {
    "becomes-ep": flags({"ep-size": 4}, {}, "mixed --ep-size", "16"),
    "becomes-dp-attention": flags({"dp-size": 1}, {}, "mixed --enable-dp-attention"),
    "becomes-chunk": flags(
        {"chunked-prefill-size": 32768}, {}, "mixed --chunked-prefill-size", "2048"
    ),
    "becomes-conservativeness": flags(
        {}, {"enable-dp-attention": LEAVE_OUT}, "mixed --schedule-conservativeness", "0.3"
    ),
    "becomes-ascend": flags(
        {"attention-backend": "triton"}, {"page-size": 64}, "mixed --attention-backend", "ascend"
    ),
    "becomes-other": flags(
        {"moe-a2a-backend": "mori", "deepep-mode": "auto"},
        {"moe-a2a-backend": "deepep", "deepep-mode": "auto"},
        "mixed --deepep-mode",
        "normal",
        target="sglang==0.5.10",
    ),
    "becomes-draft-limits": Pair(
        mixed(flags={**EAGLE3, "max-running-requests": LEAVE_OUT}),
        mixed(flags=EAGLE3, environment={V2: "1"}),
        "mixed --max-running-requests",
        "48",
    ),
    "becomes-no-overlap": flags({"pp-size": 2}, {}, "mixed --pp-size"),
    "becomes-no-prefix-cache": decodes(
        {}, {"disable-radix-cache": True}, "decode --disaggregation-mode"
    ),
    "becomes-no-graphs": prefills(
        {"disable-cuda-graph": LEAVE_OUT}, {}, "prefill --disaggregation-mode"
    ),
    "becomes-eager": flags({"deepep-mode": "normal"}, {}, "mixed --deepep-mode"),
    "becomes-static-experts": flags(
        {"ep-num-redundant-experts": 16}, {}, "mixed --ep-num-redundant-experts", "static"
    ),
    "becomes-unfused": flags(
        {"disable-shared-experts-fusion": True}, {}, "mixed --disable-shared-experts-fusion"
    ),
    "becomes-fcfs": flags(
        {"schedule-policy": "lpm", "disable-radix-cache": True},
        {"schedule-policy": "lpm"},
        "mixed --schedule-policy",
    ),
    "becomes-no-symmetric": flags({"enable-symm-mem": True}, {}, "mixed --enable-symm-mem", "CUDA"),
    "becomes-sparse-pages": Pair(
        {
            "model": {"name": "deepseek-v3.2"},
            "hardware": {"device": "h200"},
            "roles": {"mixed": {"kind": "mixed", "flags": {"page-size": 1}}},
        },
        mixed(flags={"page-size": 1}, model={"name": "deepseek-v3.2"}),
        "mixed --page-size",
        "64",
    ),
    "becomes-sizes": flags(
        {"cuda-graph-bs": LEAVE_OUT},
        {"chunked-prefill-size": 8192},
        "mixed --cuda-graph-max-bs",
        "256",
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
        "mixed --hicache-mem-layout",
    ),
}
LOAD = {"input": 2048, "output": 1024}
UNCACHED = {"flags": {**mixed()["roles"]["mixed"]["flags"], "disable-radix-cache": True}}
GOAL_PAIRS = {
    "target-first-token": Pair(
        mixed(targets={"ttft_ms": 0.1}),
        mixed(targets={"ttft_ms": 2000}),
        "mixed targets.ttft_ms",
        "0.1",
    ),
    "target-token": Pair(
        mixed(targets={"tpot_ms": 0.1}),
        mixed(targets={"tpot_ms": 50}),
        "mixed targets.tpot_ms",
        "0.1",
    ),
    "target-rate": Pair(
        mixed(workload={**LOAD, "rate": 50}, targets={"tpot_ms": 50}),
        mixed(workload={**LOAD, "rate": 5}, targets={"tpot_ms": 50}),
        "mixed --max-running-requests",
        "2560",
        "256",
    ),
    "shared-prompts": Pair(
        mixed(workload={**LOAD, "prefix_share": 0.5}, role=UNCACHED),
        mixed(workload={**LOAD, "prefix_share": 0.5}),
        "mixed --disable-radix-cache",
        "50%",
    ),
    "model-path": Pair(
        mixed(model={"name": "qwen3-30b-a3b", "path": "/other"}),
        mixed(model={"name": "qwen3-30b-a3b", "path": "/models/Qwen3-30B-A3B"}),
        "mixed --model-path",
        "/other",
    ),
    "unread": Pair(
        mixed(workload={**LOAD, "rate": 5}, benchmarks=[]),
        mixed(workload={**LOAD, "rate": 5}),
        "workload.rate",
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
OF_REMARKS = (
    "no-model",
    "from-vllm",
    "not-translated",
    "not-understood",
    "other-engine",
    "flag-given-twice",
    "stray-word",
    "left-out",
    "broken-line",
    "undefined-variable",
    "unknown-release",
    "variable-from-outside",
)


def test_every_rule_is_tested_here() -> None:
    names, tested = {rule.name for rule in RULES}, {*PAIRS, *OF_REMARKS}
    assert not names - tested, "each needs a pair above: what it finds, and what it does not"
    assert not tested - names
    assert len({rule.name for rule in RULES}) == len(RULES)


def contains(finding: Finding, value: str) -> bool:
    words = rf"(?<![\w.]){re.escape(value)}(?!\w)"
    return re.search(words, f"{finding.text} {finding.remedy}") is not None


def test_every_rule_says_what_must_hold_and_why() -> None:
    assert [rule.name for rule in RULES if not rule.title or "\n" in rule.title] == []
    assert [rule.name for rule in RULES if not rule.explanation] == []


def test_every_module_with_rules_is_in_the_list() -> None:
    folder = Path(vivace.deploy.rules.__file__).parent
    decorated = re.compile(r"^@\w*(?:rule|refused|rewrite)\(", re.M)
    counts = {file.stem: len(decorated.findall(file.read_text())) for file in folder.glob("*.py")}
    counts["flags"] += len(OF_REMARKS)
    counts["combinations"] = len(COMBINATION_RULES)
    found = Counter(rule.check.__module__.rpartition(".")[2] for rule in RULES)
    assert {name: count for name, count in counts.items() if count} == found


@pytest.mark.parametrize("rule", PAIRS)
def test_a_rule_finds_what_it_is_for(rule: str) -> None:
    pair = PAIRS[rule]
    findings = found(pair.bad, rule, pair.target)
    there = [each for each in findings if f"{each.role} {each.flag}".strip() == pair.place]
    assert any(all(contains(each, value) for value in pair.values) for each in there), findings
    assert all(each.text and each.source for each in findings)


@pytest.mark.parametrize("rule", PAIRS)
def test_a_rule_finds_nothing_where_nothing_is(rule: str) -> None:
    assert found(PAIRS[rule].good, rule, PAIRS[rule].target) == []


@pytest.mark.parametrize("rule", OF_REMARKS)
def test_remarks_of_an_import_become_findings(rule: str) -> None:
    remarks = (Remark(rule, "host", "what was found", line=7),)
    (finding,) = found(mixed(), rule, remarks=remarks)
    assert finding.line == 7 and "what was found" in finding.text
    assert found(mixed(), rule) == []


SAMPLED = ("0.4.6", "0.4.10", "0.5.3", "0.5.7", "0.5.10", "0.5.16", "0.5.23")
"""releases between which most flags came and went"""
OF_WORDS = {*FLAG_PAIRS, *OF_REMARKS}


@pytest.mark.parametrize("release", SAMPLED)
def test_nothing_is_said_of_flags_that_a_release_lacks(release: str) -> None:
    """But that it lacks them."""
    for name in PAIRS.keys() - OF_WORDS:
        for each in found(PAIRS[name].bad, name, f"sglang=={release}"):
            known = status(each.flag, release)[0] != "unknown" or not takers(each.flag)
            assert known or not each.flag.startswith("--"), (name, each)


@pytest.mark.parametrize(
    ("algorithm", "steps", "flag"),
    [
        ("NEXTN", 1, None),
        ("NEXTN", 3, "--speculative-num-steps"),
        ("EAGLE3", 3, "--enable-multi-layer-eagle"),
    ],
)
def test_multi_layer_drafts_have_a_layer_for_each_step(
    algorithm: str, steps: int, flag: str | None
) -> None:
    drafts = {"speculative-algorithm": algorithm, "speculative-num-steps": steps}
    made = mixed(
        flags={**NEXTN, **drafts, "enable-multi-layer-eagle": True}, model={"name": "deepseek-r1"}
    )
    for target in ("sglang", "sglang==0.5.10"):
        findings = found(made, "multi-layer-mtp", target)
        assert [each.flag for each in findings] == ([flag] if flag else [])
    assert found(made, "multi-layer-mtp", "sglang==0.5.3") == []


ON = {"h200": "cuda", "mi300x": "hip", "atlas-800i-a3": "npu"}
ELSEWHERE = {"device": LEAVE_OUT, "attention-backend": LEAVE_OUT, "enable-dp-attention": LEAVE_OUT}


SINCE = {
    "becomes-dp-attention": ("enable_dp_attention", False),
    "becomes-no-overlap": ("disable_overlap_schedule", True),
    "becomes-static-experts": ("ep_dispatch_algorithm", "static"),
}
WHY = {"becomes-no-overlap": [[">", "pp_size", 1]]}


@pytest.mark.parametrize("name", SINCE)
def test_settings_change_from_the_release_on_that_changes_them(name: str) -> None:
    """By the tables that are read out of the releases."""
    (rule,) = [each for each in RULES if each.name == name]
    why = WHY.get(name)
    first = next(
        release
        for release in releases()
        for row in rewrites_at(release)
        if (row.name, row.value) == SINCE[name] and why in (None, row.conditions)
    )
    assert rule.since == first


def test_decode_servers_may_keep_their_prefix_cache() -> None:
    kept = {"disaggregation-decode-enable-radix-cache": True}
    assert found(separated(decode=kept), "becomes-no-prefix-cache") == []
    assert found(separated(), "becomes-no-prefix-cache")


@pytest.mark.parametrize("hardware", ON)
def test_rules_of_gpus_hold_on_those_of_amd_as_far_as_they_say(hardware: str) -> None:
    made = mixed(
        flags={**ELSEWHERE, "speculative-algorithm": "NGRAM", "enable-symm-mem": True},
        hardware={"device": hardware, "cards": 16},
    )
    (drafts, symmetric) = (found(made, name) for name in ("ngram", "becomes-no-symmetric"))
    assert [each.severity for each in drafts] == (["warning"] if ON[hardware] == "npu" else [])
    assert bool(symmetric) == (ON[hardware] != "cuda")


@pytest.mark.parametrize("hardware", ON)
def test_no_flag_of_vivace_works_on_a_platform_that_it_lacks(hardware: str) -> None:
    made = mixed(flags=ELSEWHERE, hardware={"device": hardware, "cards": 16})
    (finding,) = found(made, "vivace-flag", "vivace")
    assert (finding.flag, finding.severity) == ("--device", "error")


def test_a_value_that_needs_a_package_is_said() -> None:
    made = mixed(flags={"device": "cpu", "grammar-backend": "xgrammar"})
    said = {each.flag: each for each in found(made, "vivace-flag", "vivace")}
    finding = said["--grammar-backend"]
    assert finding.severity == "note" and contains(finding, "package xgrammar")


def test_low_latency_dispatch_has_its_limits_on_cuda_too() -> None:
    flags = {"device": "cuda", "attention-backend": "fa3", "max-running-requests": 4096}
    made = mixed(flags=flags, hardware={"device": "h200", "cards": 16})
    (finding,) = found(made, "dispatch-tokens")
    assert contains(finding, "256") and contains(finding, f"export {DISPATCH}=256")
    enough = mixed(
        flags=flags, hardware={"device": "h200", "cards": 16}, environment={DISPATCH: "600"}
    )
    assert found(enough, "dispatch-tokens") == found(enough, "dispatch-limits") == []
    many = mixed(
        flags=flags, hardware={"device": "h200", "cards": 16}, environment={DISPATCH: "2048"}
    )
    assert [each.severity for each in found(many, "dispatch-limits")] == ["error"]


@pytest.mark.parametrize("copies", [0, 3, 5])
def test_the_copies_that_would_be_right_are_named(copies: int) -> None:
    """131 is prime: no number of ranks divides it."""
    own = {"tp-size": 12, "dp-size": 12, "ep-num-redundant-experts": copies}
    (finding,) = found(mixed(flags=own), "experts")
    right = {0: 4, 3: 4, 5: 16}[copies]
    assert f"--ep-num-redundant-experts {right}" in finding.remedy
    own["ep-num-redundant-experts"] = right
    assert found(mixed(flags=own), "experts") == []


def test_buffers_of_groups_are_judged_by_what_each_needs() -> None:
    own = {"HCCL_BUFFSIZE": "200", "DEEPEP_HCCL_BUFFSIZE": "800"}
    assert found(mixed(environment=own), "hccl-waste") == []
    assert found(mixed(environment=own), "hccl-buffer") == []
    for name, size in (("HCCL_BUFFSIZE", "1600"), ("DEEPEP_HCCL_BUFFSIZE", "4300")):
        findings = found(mixed(environment={**own, name: size}), "hccl-waste")
        assert [each.flag for each in findings] == [name]
    assert found(mixed(environment={**own, "DEEPEP_HCCL_BUFFSIZE": "100"}), "hccl-buffer")


def test_zbal_has_memory_of_its_own_for_experts() -> None:
    small = {"HCCL_BUFFSIZE": "8"}
    zbal = {**small, "SGLANG_ZBAL_LOCAL_MEM_SIZE": "61184"}
    assert found(mixed(environment=small), "hccl-buffer")
    assert found(mixed(environment=zbal), "hccl-buffer") == []
    assert found(mixed(environment=zbal), "hccl-waste") == []


@pytest.mark.parametrize(("cp", "wrong"), [(2, False), (4, False), (3, True), (32, True)])
def test_context_parallelism_divides_the_group(cp: int, wrong: bool) -> None:
    made = mixed(flags={"dp-size": 1, "attn-cp-size": cp})
    assert bool(found(made, "dp-divides-tp")) == wrong


@pytest.mark.parametrize(("rounds", "wrong"), [(4, True), (8, False)])
@pytest.mark.parametrize("cp", [1, 8])
def test_context_parallelism_shares_a_long_prompt(cp: int, rounds: int, wrong: bool) -> None:
    """A rank sends an eighth of it, whether heads or tokens are divided."""
    flags = {"tp-size": 8, "dp-size": 1, "attn-cp-size": cp, "chunked-prefill-size": -1}
    variables = {
        "DEEPEP_NORMAL_LONG_SEQ_ROUND": str(rounds),
        "DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS": "1024",
    }
    load = {"input": 65536, "output": 1, "concurrency": 1}
    made = separated(prefill=flags, prefill_environment=variables, workload=load)
    assert bool(found(made, "long-rounds")) == wrong


def test_a_flag_given_twice_with_one_value_is_a_note() -> None:
    for again, severity in (("2", "note"), ("4", "warning")):
        (finding,) = found({"script": f"{SERVER} --tp 2 --tp-size {again}"}, "flag-given-twice")
        assert finding.severity == severity


@pytest.mark.parametrize(("concurrency", "severity"), [(256, "warning"), (128, "note")])
def test_batches_that_the_load_never_makes_need_no_graph(concurrency: int, severity: str) -> None:
    made = mixed(flags={"cuda-graph-bs": [1, 2, 4, 8]}, benchmark={"max-concurrency": concurrency})
    assert [each.severity for each in found(made, "graph-covers")] == [severity]


@pytest.mark.parametrize("made", [mixed, separated])
def test_sound_deployments_have_no_errors_and_no_warnings(made: Callable[[], Made]) -> None:
    findings = judge(case(made())).findings
    assert [each for each in findings if each.severity in ("error", "warning")] == []


def test_rules_that_lack_something_are_named_not_forgotten() -> None:
    bare = {"roles": {"mixed": {"kind": "mixed", "flags": {"tp-size": 2}}}}
    skipped = judge(case(bare)).skipped
    assert "cards" in skipped["cards"] and "heads" in skipped["model"]
    assert {name for names in skipped.values() for name in names} == {
        rule.name
        for rule in RULES
        if (rule.needs or rule.platforms) and rule.engine in ("", "sglang")
    }


@pytest.mark.parametrize(
    ("flag", "value", "target", "severity"),
    [
        ("attn-cp-size", 2, "sglang==0.5.8", "error"),
        ("attn-cp-size", 2, "sglang==0.5.10", None),
        ("prefill-round-robin-balance", True, "sglang==0.5.10", "note"),
        ("prefill-round-robin-balance", True, "sglang==0.5.23", "error"),
        ("enable-deepep-moe", True, "sglang==0.4.6", None),
        ("enable-deepep-moe", True, "sglang==0.5.7", "error"),
        ("disaggregation-mode", "null", "sglang==0.4.6", None),
        ("moe-a2a-backend", "deepep", "sglang==0.4.6", "error"),
        ("enable-flashmla", True, "sglang==0.4.6", "error"),
        ("enable-mfu-metrics", True, "sglang==0.5.10", None),
        ("disable-piecewise-cuda-graph", True, "sglang==0.5.10", None),
        ("enable-prefill-delayer", True, "sglang==0.5.7", "error"),
        ("ssl-certfile", "c", "sglang==0.5.8", "error"),
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
    ("target", "severity"), [("sglang==0.5.7", "note"), ("sglang==0.5.10", "error")]
)
def test_values_are_judged_by_the_version(target: str, severity: str) -> None:
    made = mixed(flags={"load-balance-method": "decode_round_robin"})
    (finding,) = found(made, "retired-value", target)
    assert finding.severity == severity


@pytest.mark.parametrize(
    ("flag", "value", "target", "refused"),
    [
        ("context-length", "64k", "sglang", False),
        ("context-length", "64k", "sglang==0.5.7", True),
        ("context-length", "64k", "sglang==0.5.10", False),
        ("context-length", "64k", "vivace", True),
        ("schedule-policy", "hrrn", "sglang==0.5.10", True),
        ("schedule-policy", "hrrn", "sglang==0.5.23", False),
        ("schedule-policy", "hrrn", "sglang", False),
        ("schedule-policy", "best", "sglang", True),
        ("enable-mfu-metrics", 3, "sglang==0.5.23", True),
        ("moe-a2a-backend", "nixl", "sglang==0.5.7", True),
        ("moe-a2a-backend", "nixl", "sglang==0.5.10", False),
        ("kv-cache-dtype", "fp4_e2m1", "sglang==0.5.10", False),
        ("kv-cache-dtype", "fp4_e2m1", "sglang==0.5.23", True),
        ("mem-fraction-static", 1.5, "vivace", True),
        ("stream-interval", 0, "vivace", True),
    ],
)
def test_choices_and_types_are_those_of_the_version(
    flag: str, value: Any, target: str, refused: bool
) -> None:
    findings = found(mixed(flags={flag: value}), "flag-value", target)
    assert [each.flag for each in findings] == ([f"--{flag}"] if refused else [])


MERGED = [
    (mixed(flags={"cuda-graph-bs": [8, 16]}), "graph-sizes", "sglang", "note --cuda-graph-bs"),
    (separated(prefill={"disable-cuda-graph": LEAVE_OUT, "cuda-graph-bs": [1, 2]}), "graph-sizes",
     "sglang", "note --cuda-graph-bs"),
    (mixed(flags={"port": 70000}), "limits", "sglang", "error --port"),
    (separated(router={"port": 0}), "limits", "sglang", "error --port"),
    (separated(router={"prefill": [["http://10.0.0.1:8000", 8998]]}), "router-entries", "sglang",
     "warning --prefill"),
    (mixed(flags={"cuda-graph-bs": [1]}), "abbreviated-flag", "sglang==0.5.23",
     "error --cuda-graph-bs"),
    (mixed(flags={"cpu-threads": 2}), "unknown-flag", "sglang", "error --cpu-threads"),
    (mixed(flags={"enable-dp-attention": True}), "flag-version", "sglang==0.5.23",
     "note --enable-dp-attention"),
    (separated(decode_role={"hosts": ["10.0.1.1", "10.0.1.1"]}), "hosts-apart", "sglang",
     "error hosts"),
    (mixed(workload={"input": {"low": 1024, "high": 2048}, "output": 1024}), "range-ratio",
     "sglang", "warning --random-range-ratio"),
]  # fmt: skip


@pytest.mark.parametrize(("made", "rule", "target", "expected"), MERGED)
def test_a_rule_finds_every_form_of_its_mistake(
    made: Made, rule: str, target: str, expected: str
) -> None:
    assert expected in [f"{each.severity} {each.flag}" for each in found(made, rule, target)]


@pytest.mark.parametrize(
    ("name", "target", "severity"),
    [
        ("SGLANG_PREFILL_DELAYER_MAX_DELAY_PASSES", "sglang==0.5.7", "warning"),
        ("SGLANG_PREFILL_DELAYER_MAX_DELAY_PASSES", "sglang==0.5.10", "note"),
        ("SGLANG_NPU_FUSED_MOE_MODE", "sglang==0.5.10", None),
        ("SGLANG_NPU_FUSED_MOE_MODE", "sglang==0.5.23", "warning"),
        ("SGLANG_ENABLE_SPEC_V2", "sglang==0.5.10", None),
        ("SGLANG_ENABLE_SPEC_V2", "sglang==0.5.23", "note"),
        ("SGL_ENABLE_SPEC_V2", "sglang==0.5.10", None),
        ("SGLANG_DP_ROUND_ROBIN", "sglang", "warning"),
        ("HCCL_BUFFSIZE", "sglang==0.5.7", None),
    ],
)
def test_variables_are_judged_by_the_version(name: str, target: str, severity: str | None) -> None:
    findings = found(mixed(environment={name: "1"}), "dead-variable", target)
    about = [each.severity for each in findings if each.flag == name]
    assert about == ([] if severity is None else [severity])
    assert name not in {
        each.flag for each in found(mixed(environment={name: "1"}), "unknown-variable", target)
    }


@pytest.mark.parametrize("name", pages())
def test_the_pages_are_current(name: str) -> None:
    assert (DOCS / name).read_text() == pages()[name], "run `make docs`"


def test_the_table_of_flags_is_current() -> None:
    assert Path(packaged_path(FILE)).read_bytes() == flags_json(), "run `make docs`"


OF_DOCUMENTS = (
    {"enable-dsa-prefill-context-parallel": True},
    {"dsa-prefill-cp-mode": "round-robin-split"},
    {"enable-dsa-cache-layer-split": True},
    {"disable-piecewise-cuda-graph": True},
)


@pytest.mark.parametrize("flag", OF_DOCUMENTS, ids=lambda each: next(iter(each)))
def test_flags_of_the_documents_are_errors_only_where_no_release_has_them(flag: Made) -> None:
    (name,) = flag
    with_it = takers("--" + name)
    assert with_it
    names = ("unknown-flag", "flag-version", "flag-value", "abbreviated-flag")
    for target in ("sglang", *(f"sglang=={release}" for release in releases())):
        release = target.partition("==")[2]
        wrong = [
            each
            for rule in names
            for each in found(mixed(flags=flag), rule, target)
            if each.flag == "--" + name and each.severity == "error"
        ]
        assert bool(wrong) == bool(release and release not in with_it), target


def test_a_role_that_lists_a_node_twice_is_told_of_itself_alone() -> None:
    (finding,) = found(separated(prefill_role={"hosts": ["10.0.0.1"] * 2}), "hosts-apart")
    assert finding.role == "prefill"
    assert "'10.0.0.1'" in finding.text and "prefill" not in finding.text
