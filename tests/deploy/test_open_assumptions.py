"""What only a release, a name or another script decides is a warning that says how to settle it;
what holds whatever they are is an error."""

from __future__ import annotations

from typing import Any

import pytest
from deployments import case, found, mixed, separated
from test_rules import NEXTN, PARTITION

from vivace.deploy.case import Case
from vivace.deploy.from_script.script import import_command, import_scripts
from vivace.deploy.load_case import Overrides, build_case, open_command
from vivace.deploy.memory.defaults import CHUNKS, default_chunk
from vivace.deploy.memory.windows import prefill_tokens
from vivace.deploy.rules.judge import Finding, judge

SERVER = "python -m sglang.launch_server"
HOST_CACHE = {"enable-hierarchical-cache": True}


def script(text: str, **overrides: Any) -> Case:
    return build_case(import_scripts([("run.sh", text)]), Overrides(**overrides))


def of(rule: str, judged: Case) -> list[Finding]:
    return [each for each in judge(judged).findings if each.rule == rule]


def severity(rule: str, judged: Case) -> str:
    return next((each.severity for each in of(rule, judged)), "")


@pytest.mark.parametrize(
    ("target", "flags", "expected"),
    [
        ("sglang==0.4.6", {"hicache-ratio": 0.5}, "error"),
        ("sglang==0.5.14", {"hicache-ratio": 0.5}, "error"),
        ("sglang==0.5.15", {"hicache-ratio": 0.5}, "warning"),
        ("sglang==0.5.23", {"hicache-ratio": 0.99}, "warning"),
        ("sglang", {"hicache-ratio": 0.5}, "warning"),
        ("sglang", {"hicache-ratio": 0.5, "hicache-size": 500}, ""),
        ("sglang==0.5.14", {"hicache-ratio": 1.2}, ""),
        ("sglang", {"hicache-size": 1}, "warning"),
        ("sglang==0.5.23", {"hicache-ratio": 0.5, "hicache-host-memory-mode": "buffer_only"}, ""),
    ],
)
def test_a_host_cache_is_larger_than_the_pool(
    target: str, flags: dict[str, Any], expected: str
) -> None:
    issues = found(mixed(flags={**HOST_CACHE, **flags}), "host-pool", target)
    assert [each.severity for each in issues] == [expected][: len(expected)]
    assert all(each.flag[2:] in flags for each in issues)
    assert found(mixed(flags=flags), "host-pool", target) == []


@pytest.mark.parametrize(
    ("flags", "partition", "rule", "named", "guessed"),
    [
        ("--pp-size 2", "30,33", "pipeline-layers", "error", "warning"),
        ("--pp-size 2", "30,34", "pipeline-layers", "", ""),
        ("--pp-size 65", "", "pipeline-layers", "error", "warning"),
        ("--pp-size 64", "", "pipeline-layers", "", ""),
        ("--pp-size 2", "20,20,24", "pipeline-partition", "error", "error"),
    ],
)
def test_layers_are_certain_where_the_model_is_named(
    flags: str, partition: str, rule: str, named: str, guessed: str
) -> None:
    line = f"{PARTITION}={partition} {SERVER} --model-path /w/my-qwen3-32b-tuned {flags}\n"
    assert severity(rule, script(line, model="qwen3-32b")) == named
    assert severity(rule, script(line)) == guessed
    assert all("(if the model is" in each.text for each in of("pipeline-layers", script(line)))


@pytest.mark.parametrize(
    ("target", "expected"), [("sglang==0.5.18", "error"), ("sglang", "warning")]
)
def test_a_partition_without_a_pipeline_is_read_up_to_0_5_18(target: str, expected: str) -> None:
    made = mixed(environment={PARTITION: "24,24"})
    assert [each.severity for each in found(made, "pipeline-partition", target)] == [expected]
    assert found(made, "pipeline-partition", "sglang==0.5.19") == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (SERVER, "error"),
        (f"{SERVER} --tp-size 2 --port 30001", "error"),
        ("sglang serve --tp-size 2", "error"),
        (f"docker run image {SERVER} --tp-size 2", "error"),
        (f"{SERVER} --port $PORT", "warning"),
        (f"{SERVER} --tp-size 2 ${{EXTRA:-}}", ""),
        (f'{SERVER} --tp-size 2 "$@"', ""),
        (f"{SERVER} --tp-size 2 $ARGS", ""),
        (f"{SERVER} --tp-size 2 $(cat arguments)", ""),
        (f"{SERVER} --config server.yaml", ""),
        (f"{SERVER} --model m", ""),
        (f"{SERVER} --model-path=m", ""),
        ("sglang serve m --tp-size 2", ""),
        ("vllm serve", ""),
        ("vivace serve --port 30001", ""),
        ("python -m vivace.launch_server --port 30001", ""),
    ],
)
def test_servers_of_sglang_have_a_model(line: str, expected: str) -> None:
    assert severity("no-model", script(line + "\n")) == expected
    assert of("stray-word", script(line + "\n")) == []


def test_a_command_and_a_file_without_a_model_are_found() -> None:
    typed = build_case(import_command(SERVER.split()), Overrides())
    assert severity("no-model", typed) == "error"
    made = mixed()
    made["roles"]["mixed"]["flags"].pop("model-path", None)
    assert [each.severity for each in found(made, "model-path")] == ["error"]
    assert all(each.severity != "error" for each in found(made, "model-path", "vivace"))


@pytest.mark.parametrize(
    ("flag", "target", "expected"),
    [
        ("max-runing-requests", "sglang", "error"),
        ("prot", "sglang", "error"),
        ("cuda-graph-bs-tomorrow", "sglang", "warning"),
        ("quantum-leap", "sglang", "warning"),
        ("quantum-leap", "sglang==0.5.23", "error"),
        ("quantum-leap", "vivace", "error"),
    ],
)
def test_a_flag_that_no_release_has_may_be_of_another(
    flag: str, target: str, expected: str
) -> None:
    (issue,) = found(mixed(flags={flag: 1}), "unknown-flag", target)
    assert issue.severity == expected
    assert (expected == "warning") == ("--target sglang==VERSION" in issue.remedy)


def test_the_flags_of_a_program_that_nobody_knows_are_its_own() -> None:
    made = mixed(flags={"quantum-leap": 1})
    made["roles"]["mixed"]["program"] = "our.launcher"
    (issue,) = found(made, "unknown-flag", "sglang==0.5.23")
    assert issue.severity == "warning" and "sglang.launch_server" in issue.remedy


@pytest.mark.parametrize(
    ("server", "port", "expected"),
    [
        (f"{SERVER} --model-path m", 30000, ""),
        (f"{SERVER} --model-path m", 8000, "warning"),
        (f"{SERVER} --model-path m --port 8000", 8000, ""),
        ("vllm serve m", 8000, ""),
        ("vllm serve m --port 9000", 9000, ""),
        ("python -m sglang.srt.disaggregation.mini_lb --prefill http://a:1", 8000, ""),
        ("python -m sglang_router.launch_router --worker-urls http://a:1", 30000, ""),
    ],
)
def test_a_benchmark_calls_the_port_of_what_is_started(
    server: str, port: int, expected: str
) -> None:
    text = f"{server} &\npython -m sglang.bench_serving --backend sglang --port {port}\n"
    assert severity("benchmark-port", script(text)) == expected


def test_a_deployment_file_is_the_whole() -> None:
    (issue,) = found(mixed(benchmark={"port": 7239}), "benchmark-port")
    assert issue.severity == "error"


@pytest.mark.parametrize(
    ("device", "target", "tokens"),
    [
        ("h100", "sglang==0.4.6", 8192),
        ("h100", "sglang", 8192),
        ("b200", "sglang", 16384),
        ("h200", "sglang==0.4.7", 16384),
        ("h200", "sglang", 8192),
        ("l40s", "sglang==0.5.2", 8192),
        ("l40s", "sglang", 4096),
        ("rtx-4090", "sglang==0.5.19", 2048),
        ("rtx-4090", "sglang==0.5.20", 4096),
        ("atlas-800i-a3", "sglang==0.5.6", 32768),
        ("atlas-800i-a3", "sglang==0.5.6.post2", 32768),
        ("atlas-800i-a3", "sglang==0.5.7", 8192),
        ("atlas-800i-a3", "sglang", 8192),
    ],
)
def test_default_chunks_are_those_of_the_release(device: str, target: str, tokens: int) -> None:
    text = f"{SERVER} --model-path m\n"
    it = script(text, hardware=device, target=target)
    assert default_chunk(it) == tokens
    assert prefill_tokens(it.servers[0], it) == tokens
    assert CHUNKS[0][:2] == ("0.4.6", "")


def test_one_finding_for_one_mistake_of_the_task_queue() -> None:
    for value, expected in (("2", "warning"), ("1", "note"), ("0", "")):
        made = separated(decode_environment={"TASK_QUEUE_ENABLE": value})
        issues = [
            each
            for each in judge(case(made)).findings
            if each.flag == "TASK_QUEUE_ENABLE" and each.role == "decode"
        ]
        assert [each.severity for each in issues] == [expected][: len(expected)]


@pytest.mark.parametrize(
    ("rule", "before", "since"),
    [
        ("becomes-ascend", "0.5.6", "0.5.6.post1"),
        ("becomes-sizes", "0.5.3.post2", "0.5.3.post3"),
    ],
)
def test_rewrites_hold_from_their_release_on(rule: str, before: str, since: str) -> None:
    flags = {"attention-backend": "triton"} if rule == "becomes-ascend" else {}
    made = mixed(flags=flags)
    made["roles"]["mixed"]["flags"].pop("chunked-prefill-size", None)
    assert found(made, rule, f"sglang=={before}") == []
    assert found(made, rule, f"sglang=={since}") != []


@pytest.mark.parametrize(("steps", "expected"), [(3, 0), (4, 1)])
def test_mtp_layers_that_the_config_does_not_name(steps: int, expected: int) -> None:
    """MiMo-V2-Flash: three MTP layers, each for a step of its own, without being asked."""
    drafts = {**NEXTN, "speculative-num-steps": steps, "speculative-num-draft-tokens": steps + 1}
    made = mixed(flags=drafts, model={"name": "mimo-v2-flash"})
    issues = found(made, "multi-layer-mtp")
    assert len(issues) == expected and all("3 MTP layer" in each.text for each in issues)
    assert found(made, "multi-layer-mtp", "sglang==0.5.6") == []


M = "--model-path m --tp 4"
DISPATCH = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
EXPERTS = f"{M} --moe-a2a-backend deepep"


@pytest.mark.parametrize(
    ("line", "rule", "about"),
    [
        (f"{M} --mem-fraction-static <$X> --dp-size 0", "limits", ["--dp-size"]),
        (f"{M} --dp-size <$X> --pp-size 0", "limits", ["--pp-size"]),
        (f"{M} --ep-size <$X> --mem-fraction-static 5", "limits", ["--mem-fraction-static"]),
        ("--model-path m --tp <$X> --pp-size 2 --enable-mixed-chunk", "pipeline",
         ["--enable-mixed-chunk"]),
        ("--model-path m --tp <$X> --dp 4 --enable-dp-attention --max-running-requests 250",
         "running-divides", ["--max-running-requests"]),
        (f"{M} --device <$X> --attention-backend ascend", "backend-platform",
         ["--attention-backend"]),
        (f"{M} --ep-num-redundant-experts <$X> --init-expert-location x",
         "becomes-static-experts", ["--init-expert-location"]),
        (f"{M} --speculative-num-steps <$X> --enable-multi-layer-eagle", "multi-layer-mtp",
         ["--enable-multi-layer-eagle"]),
        (f"{EXPERTS} --max-running-requests <$X>", "dispatch-limits", [DISPATCH]),
        (f"{EXPERTS} --max-running-requests 8 --dp <$X> --enable-dp-attention",
         "dispatch-limits", [DISPATCH]),
    ],
)  # fmt: skip
def test_a_value_that_is_not_known_silences_only_what_needs_it(
    line: str, rule: str, about: list[str]
) -> None:
    words = [f"{DISPATCH}=2048", "python", "-m", "sglang.launch_server", *line.split()]
    overrides = Overrides(hardware="h100", model="deepseek-r1")
    findings = judge(build_case(open_command(words), overrides)).findings
    assert [each.flag for each in findings if each.rule == rule] == about


def test_an_unknown_store_silences_only_its_own_role() -> None:
    store, backend = "ASCEND_MF_STORE_URL", {"disaggregation-transfer-backend": "<$X>"}
    made = separated()
    for name in ("decode-2", "decode-3"):
        made["roles"][name] = {**made["roles"]["decode"]}
    made["roles"]["decode"]["environment"] = {store: "<$URL>"}
    made["roles"]["decode-2"]["environment"] = {store: "tcp://10.0.0.9:1"}
    other = made["roles"]["decode-3"]
    other["flags"] = {**other["flags"], **backend}
    assert [each.flag for each in found(made, "store-url")] == [store]
    made["roles"]["decode-2"]["environment"] = {store: "tcp://10.0.0.9"}
    assert {each.role for each in found(made, "store-url")} >= {"decode-2"}


def test_an_unknown_value_of_a_pair_silences_only_that_comparison() -> None:
    made = separated(decode={"page-size": 64, "dtype": "<$X>"})
    assert [each.flag for each in found(made, "handshake")] == ["--page-size"]
