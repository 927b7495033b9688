"""Twenty mistakes in launches that no other test changes: four of them were not caught when they
were invented (a small --max-total-tokens, a value that HCCL does not know, a blank beside `=`, an
address without a port)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from vivace.deploy.load_case import Overrides, build_case, open_files
from vivace.deploy.rules.judge import Finding, judge

FOLDER = Path(__file__).parent
NEXT = "qnext-a3-2c-mix-3.5k-1.5k-50ms.yaml"
CODER = "q480b-a3-16c-mix-3.5k-1.5k-50ms.yaml"
PAIR = "r1-a3-32c-pd-6k-1.6k-20ms.yaml"
SCRIPT = "q30.sh"
FACTS = {SCRIPT: Overrides(hardware="a3", cards=1, input=3500, output=1500, concurrency=156)}
MISTAKES = [
    (NEXT, "tp-size: 4", "tp-size: 3", "experts"),
    (NEXT, "      quantization: modelslim", "      quantization: modelslm", "flag-value"),
    (NEXT, "max-total-tokens: 450560", "max-total-tokens: 45056", "load-fits"),
    (NEXT, "watchdog-timeout: 3600", "watchdog-timeout: 1h", "flag-value"),
    (NEXT, "HCCL_OP_EXPANSION_MODE: AIV", "HCCL_OP_EXPANSION_MODE: AVI", "variable-value"),
    (CODER, "node-rank: '{node}'", "node-rank: 0", "node-ranks"),
    (CODER, "[10.0.2.1, 10.0.2.2]", "[10.0.2.1]", "nodes"),
    (CODER, "context-length: 8192", "context-length: 4096", "context"),
    (CODER, "dp-size: 4", "dp-size: 5", "dp-divides-tp"),
    (CODER, "chunked-prefill-size: 114688", "chunked-prefill-size: 112k", "flag-value"),
    (CODER, "max-concurrency: 288", "max-concurrency: 2880", "workload"),
    (CODER, "cards: 16", "cards: 32", "cards"),
    (SCRIPT, "--speculative-draft-model-quantization unquant", "", "draft-quantisation"),
    (SCRIPT, "--cuda-graph-bs 42 ", "--cuda-graph-bs 42,", "flag-value"),
    (SCRIPT, "--mem-fraction-static 0.86", "--mem-fraction-static 0,86", "flag-value"),
    (SCRIPT, "--device npu", "--device cuda", "backend-platform"),
    (SCRIPT, "--attention-backend ascend", "--attention-backend ascned", "flag-value"),
    (SCRIPT, "export HCCL_BUFFSIZE=", "export HCCL_BUFFSIZE = ", "not-understood"),
    (SCRIPT, "--tp-size 2", "\u2014tp-size 2", "stray-word"),
    (PAIR, "tcp://10.0.0.1:24669", "tcp://10.0.0.1", "store-url"),
]


def script() -> str:
    launches = json.loads((FOLDER / "launches_of_ci.json").read_text())
    (part,) = [each["mixed"] for each in launches if each["id"] == "0a6df67f21"]
    exports = "".join(f"export {name}={value}\n" for name, value in part["environment"].items())
    command = "python3 -m sglang.launch_server --model-path /models/Qwen3-30B-A3B-w8a8 "
    return exports + (command + part["arguments"]).replace(" --", " \\\n    --") + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in (FOLDER / "published").glob("*.yaml"):
        shutil.copy(file, tmp_path)
    (tmp_path / SCRIPT).write_text(script())
    return tmp_path


def findings(path: Path) -> list[Finding]:
    case = build_case(open_files([path]), FACTS.get(path.name, Overrides()))
    return [each for each in judge(case).findings if each.severity in ("error", "warning")]


@pytest.mark.parametrize(("name", "before", "after", "rule"), MISTAKES)
def test_a_mistake_is_found_at_its_line(
    folder: Path, name: str, before: str, after: str, rule: str
) -> None:
    path = folder / name
    text = path.read_text()
    sound = {(each.rule, each.text) for each in findings(path)}
    path.write_text(text.replace(before, after))
    new = [each for each in findings(path) if (each.rule, each.text) not in sound]
    there = [each for each in new if each.rule == rule]
    assert there and all(each.remedy and each.file == str(path) and each.line for each in there)


@pytest.mark.parametrize("line", ["export A = 1", "export A= 1", "A=1; export A =1"])
def test_blanks_beside_the_sign_are_told(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.sh"
    path.write_text(f"{line}\npython -m sglang.launch_server --model-path m\n")
    assert [(each.rule, each.line) for each in findings(path)] == [("not-understood", 1)]


@pytest.mark.parametrize("line", ["export A=1 B", "export -n A", "declare -x A=1", "export A"])
def test_other_exports_are_not(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.sh"
    path.write_text(f"{line}\npython -m sglang.launch_server --model-path m\n")
    assert findings(path) == []


def test_addresses_have_ports(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    server = "python -m sglang.launch_server --model-path m --tp 16 --nnodes 2 --node-rank 0"
    wrong = {key: ["meeting-point"] for key in ("10.0.0.1", "localhost:5000", "[::1]:5000")}
    for address, rules in {**wrong, "10.0.0.1:5000": []}.items():
        path.write_text(f"{server} --dist-init-addr {address}\n")
        assert [each.rule for each in findings(path)] == rules
