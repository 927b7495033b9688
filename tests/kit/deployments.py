"""Deployments for the tests of rules: a sound one, and the same with something changed."""

from __future__ import annotations

from typing import Any

from vivace.deploy.case import Case
from vivace.deploy.from_script.flags import Remark
from vivace.deploy.from_script.script import import_scripts
from vivace.deploy.load_case import LoadedDeployment, Overrides, build_case
from vivace.deploy.rules.judge import Finding, find_rule, judge
from vivace.deploy.schema.files import parse_deployment

LEAVE_OUT = object()
"""in place of a value: the key is taken away"""
COMMON_FLAGS = {
    "model-path": "/models/Qwen3-30B-A3B",
    "device": "npu",
    "attention-backend": "ascend",
    "trust-remote-code": True,
}
COMMON_ENVIRONMENT = {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}
SPREAD = {
    "tp-size": 16,
    "dp-size": 16,
    "enable-dp-attention": True,
    "moe-a2a-backend": "deepep",
    "mem-fraction-static": 0.7,
}


def changed(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    found = {**base, **changes}
    return {key: value for key, value in found.items() if value is not LEAVE_OUT}


def mixed(
    flags: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
    benchmark: dict[str, Any] | None = None,
    role: dict[str, Any] | None = None,
    **top: Any,
) -> dict[str, Any]:
    """One server on 8 cards of A3, measured as it is meant to be used."""
    server = {
        "kind": "mixed",
        "flags": changed(
            {
                **COMMON_FLAGS,
                **SPREAD,
                "host": "127.0.0.1",
                "port": 7000,
                "max-running-requests": 256,
                "cuda-graph-bs": [1, 2, 4, 8, 16],
                "context-length": 8192,
            },
            flags or {},
        ),
        "environment": changed({"HCCL_BUFFSIZE": "800"}, environment or {}),
    }
    measured = {
        "dataset-name": "random",
        "host": "127.0.0.1",
        "port": 7000,
        "max-concurrency": 256,
        "num-prompts": 1024,
        "random-input-len": 2048,
        "random-output-len": 1024,
        "random-range-ratio": 1,
    }
    content = {
        "model": {"name": "qwen3-30b-a3b", "quantization": "bf16"},
        "hardware": {"device": "atlas-800i-a3", "cards": 8},
        "environment": COMMON_ENVIRONMENT,
        "roles": {"mixed": changed(server, role or {})},
        "benchmarks": [{"flags": changed(measured, benchmark or {})}],
    }
    return changed(content, top)


def separated(
    prefill: dict[str, Any] | None = None,
    decode: dict[str, Any] | None = None,
    router: dict[str, Any] | None = None,
    prefill_environment: dict[str, Any] | None = None,
    decode_environment: dict[str, Any] | None = None,
    prefill_role: dict[str, Any] | None = None,
    decode_role: dict[str, Any] | None = None,
    **top: Any,
) -> dict[str, Any]:
    """Two prefill servers and one decode server of two nodes behind a router: 32 cards of A3."""
    shared = {"ASCEND_MF_STORE_URL": "tcp://10.0.0.1:24669", "HCCL_BUFFSIZE": "800"}
    both = {**COMMON_FLAGS, **SPREAD, "disaggregation-transfer-backend": "ascend"}
    roles = {
        "prefill": {
            "kind": "prefill",
            "instances": 2,
            "hosts": ["10.0.0.1", "10.0.0.2"],
            "flags": changed(
                {
                    **both,
                    "disaggregation-mode": "prefill",
                    "host": "{host}",
                    "port": 8000,
                    "dp-size": 2,
                    "max-running-requests": 8,
                    "disable-cuda-graph": True,
                    "deepep-mode": "normal",
                },
                prefill or {},
            ),
            "environment": changed({**shared, "TASK_QUEUE_ENABLE": "2"}, prefill_environment or {}),
            "each": [
                {"flags": {"disaggregation-bootstrap-port": 8998}},
                {"flags": {"disaggregation-bootstrap-port": 8999}},
            ],
        },
        "decode": {
            "kind": "decode",
            "nodes": 2,
            "hosts": ["10.0.1.1", "10.0.1.2"],
            "flags": changed(
                {
                    **both,
                    "disaggregation-mode": "decode",
                    "host": "{host}",
                    "port": 8001,
                    "nnodes": 2,
                    "node-rank": "{node}",
                    "dist-init-addr": "{first}:5000",
                    "tp-size": 32,
                    "dp-size": 32,
                    "max-running-requests": 512,
                    "cuda-graph-bs": [1, 2, 4, 8, 16],
                    "deepep-mode": "low_latency",
                },
                decode or {},
            ),
            "environment": changed(
                {
                    **shared,
                    "TASK_QUEUE_ENABLE": "0",
                    "HCCL_SOCKET_IFNAME": "eth0",
                    "GLOO_SOCKET_IFNAME": "eth0",
                },
                decode_environment or {},
            ),
        },
        "router": {
            "kind": "router",
            "program": "sglang_router.launch_router",
            "flags": changed(
                {
                    "pd-disaggregation": True,
                    "policy": "random",
                    "prefill": [["http://10.0.0.1:8000", 8998], ["http://10.0.0.2:8000", 8999]],
                    "decode": ["http://10.0.1.1:8001"],
                    "host": "127.0.0.1",
                    "port": 6688,
                },
                router or {},
            ),
        },
    }
    roles["prefill"] |= prefill_role or {}
    roles["decode"] |= decode_role or {}
    dropped = top.pop("drop", ())
    content = {
        "model": {"name": "qwen3-30b-a3b", "quantization": "bf16"},
        "hardware": {"device": "atlas-800i-a3", "cards": 32},
        "environment": COMMON_ENVIRONMENT,
        "roles": {name: role for name, role in roles.items() if name not in dropped},
        "workload": {"input": 3500, "output": 1500, "concurrency": 512},
    }
    return changed(content, top)


def case(content: dict[str, Any], target: str = "sglang", remarks: tuple[Remark, ...] = ()) -> Case:
    """`content`: a deployment, or the text of a `script`."""
    if "script" in content:
        loaded = import_scripts([("made.sh", content["script"])])
    else:
        loaded = LoadedDeployment(parse_deployment(content, "made"), remarks, "made.yaml")
    return build_case(loaded, Overrides(target=target))


def found(
    content: dict[str, Any],
    rule: str,
    target: str = "sglang",
    remarks: tuple[Remark, ...] = (),
) -> list[Finding]:
    """What one rule finds."""
    known = find_rule(rule)
    assert known is not None, rule
    return list(judge(case(content, target, remarks), (known,)).findings)
