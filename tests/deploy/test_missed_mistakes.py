"""Mistakes in sound launches that only show where hosts, ranks and halves are compared, and forms
of sound launches that look like them."""

from __future__ import annotations

import pytest
from deployments import case

from vivace.deploy.from_script.script import import_scripts
from vivace.deploy.load_case import Overrides, build_case
from vivace.deploy.rules.judge import Finding, judge

SERVER = "python3 -m sglang.launch_server"
PAIR = f"""\
export ASCEND_MF_STORE_URL=tcp://10.7.1.1:24667
P_IP=(10.7.1.1 10.7.1.2)
D_IP=(10.7.2.1 10.7.2.2)
LOCAL=$(hostname -I | awk '{{print $1}}')
for i in "${{!P_IP[@]}}"; do
  if [[ "$LOCAL" == "${{P_IP[$i]}}" ]]; then
    {SERVER} --model-path /srv/DeepSeek-R1-W8A8 --disaggregation-mode prefill --device npu \\
      --disaggregation-transfer-backend ascend --host ${{P_IP[$i]}} --port 8000 --tp-size 16 \\
      --disaggregation-bootstrap-port $((8998 + i))
  fi
done
for i in "${{!D_IP[@]}}"; do
  if [[ "$LOCAL" == "${{D_IP[$i]}}" ]]; then
    {SERVER} --model-path /srv/DeepSeek-R1-W8A8 --disaggregation-mode decode --device npu \\
      --disaggregation-transfer-backend ascend --host ${{D_IP[$i]}} --port 8001 --tp-size 32 \\
      --dist-init-addr ${{D_IP[0]}}:5000 \\
      --nnodes 2 --node-rank $i
  fi
done
if [[ "$LOCAL" == 10.7.1.1 ]]; then
  python3 -m sglang_router.launch_router --pd-disaggregation --port 6688 --policy cache_aware \\
    --prefill http://10.7.1.1:8000 8998 --prefill http://10.7.1.2:8000 8999 \\
    --decode http://10.7.2.1:8001
fi
"""
NODES = f"""\
ssh n0 "{SERVER} --model-path /a/DeepSeek-V3 --tp 16 --nnodes 2 --node-rank 0 \\
  --dist-init-addr n0:5000"
ssh n1 "{SERVER} --model-path /b/DeepSeek-V3 --tp 16 --nnodes 2 --node-rank 1 \\
  --dist-init-addr n0:5000"
"""
ONE = f"{SERVER} --model-path Qwen/Qwen3-32B-FP8 --tp 4 --quantization fp8\n"


def findings(script: str) -> list[Finding]:
    found = judge(case({"script": script})).findings
    return [each for each in found if each.severity in ("error", "warning")]


@pytest.mark.parametrize(
    ("script", "before", "after", "rule", "severity", "line"),
    [
        (PAIR, " \\\n    --decode http://10.7.2.1:8001", "", "router-entries", "warning", 22),
        (PAIR, "--prefill http://10.7.1.1:8000 8998 --prefill http://10.7.1.2:8000 8999", "",
         "router-entries", "warning", 23),
        (PAIR, "--decode http://10.7.2.1", "--decode http://10.7.2.2", "router-ports", "warning",
         23),
        (PAIR, "--policy cache_aware", "--policy cache-aware", "router-mode", "error", 21),
        (PAIR, "--policy cache_aware", "--decode-policy Round-Robin", "router-mode", "error", 21),
        (PAIR, "${D_IP[0]}:5000", "${D_IPS[0]}:5000", "undefined-variable", "error", 16),
        (PAIR, "${D_IP[0]}:5000", "${DIP[$i]}:5000", "undefined-variable", "error", 16),
        (PAIR, "tcp://10.7.1.1:24667", "tcp://10.7.9.9:24667", "store-url", "warning", 1),
        (PAIR, "tcp://10.7.1.1:24667", "tcp://10.7.1.1:8000", "ports-apart", "error", 1),
        (PAIR, "tcp://10.7.1.1:24667", "tcp://10.7.1.1:8998", "ports-apart", "error", 1),
        (PAIR, "D_IP=(10.7.2.1 10.7.2.2)", "D_IP=(10.7.2.1)", "node-ranks", "warning", 17),
        (PAIR, "D_IP=(10.7.2.1", "D_IP=(10.7.1.1", "hosts-apart", "error", 14),
        (NODES, " --node-rank 1", "", "node-ranks", "warning", 3),
        (NODES, "/b/DeepSeek-V3", "/b/DeepSeek-V3.1", "nodes-agree", "warning", 3),
        (ONE, "--quantization fp8", "--quantization awq", "quantisation", "warning", 1),
        (ONE, "--quantization fp8", "--quantization gptq_marlin", "quantisation", "warning", 1),
        (ONE, "-FP8", "-AWQ", "quantisation", "warning", 1),
    ],
)  # fmt: skip
def test_a_mistake_is_found_at_its_line(
    script: str, before: str, after: str, rule: str, severity: str, line: int
) -> None:
    assert before in script
    assert rule not in {each.rule for each in findings(script)}
    new = findings(script.replace(before, after, 1))
    found = [(each.severity, each.line) for each in new if each.rule == rule]
    assert (severity, line) in found
    if severity == "warning":
        assert not [each for each in new if each.severity == "error"]


@pytest.mark.parametrize(
    ("script", "before", "after"),
    [
        (PAIR, "--policy cache_aware", "--policy consistent_hashing"),
        (PAIR, " \\\n    --decode http://10.7.2.1:8001", " --service-discovery"),
        (PAIR, "--decode http://10.7.2.1", "--decode http://decode.example"),
        (PAIR, "tcp://10.7.1.1:24667", "tcp://store.example:24667"),
        (PAIR, "10.7.1.2)", "10.7.1.2); export ASCEND_MF_STORE_URL=tcp://$MASTER:24667"),
        (ONE, "--quantization fp8", "--quantization w8a8_fp8"),
        (ONE, "-FP8", "-BF16"),
        (ONE.replace("-FP8", "-AWQ"), "--quantization fp8", "--quantization awq_marlin"),
        (NODES, " --node-rank 1", " $EXTRA --node-rank 1"),
        (NODES, "/b/DeepSeek-V3", "/b/DeepSeek-V3/"),
    ],
)
def test_sound_forms_are_not(script: str, before: str, after: str) -> None:
    assert before in script
    rules = {"router-entries", "router-ports", "router-mode", "store-url", "quantisation"}
    rules |= {"undefined-variable", "node-ranks", "nodes-agree", "hosts-apart"}
    assert not rules & {each.rule for each in findings(script.replace(before, after, 1))}


def test_flags_of_one_node_do_not_double_its_instance() -> None:
    """A leader with metrics and workers without are one instance on the same cards."""
    made = import_scripts(
        [("a.sh", NODES.replace("--node-rank 0", "--node-rank 0 --enable-metrics"))]
    )
    found = judge(build_case(made, Overrides(hardware="h200", cards=16))).findings
    assert not {"cards", "nodes-agree"} & {each.rule for each in found}


@pytest.mark.parametrize(("devices", "fraction"), [("h100", False), ("h200", True)])
def test_a_larger_fraction_is_offered_only_where_it_helps(devices: str, fraction: bool) -> None:
    line = f"{SERVER} --model-path deepseek-ai/DeepSeek-V3 --tp 8 --mem-fraction-static 0.5"
    made = import_scripts([("a.sh", line + "\n")])
    found = judge(build_case(made, Overrides(hardware=devices, cards=8))).findings
    (issue,) = [each for each in found if each.rule == "weights-fit"]
    assert ("--mem-fraction-static" in issue.remedy) is fraction
