"""49 launches that SGLang's own CI starts on Atlas 800I A3: they run, so no error may be found in
them, and no warning that is not true.

`launches_of_ci.json` has their facts: variables, arguments, cards and load (`prefix_share`: what
prompts have in common); addresses and folders are made up.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from vivace.deploy.case import Case
from vivace.deploy.from_script.script import import_scripts
from vivace.deploy.load_case import Overrides, build_case
from vivace.deploy.memory.plan import plans
from vivace.deploy.rules.judge import CheckResult, judge

FILE = Path(__file__).parent / "launches_of_ci.json"
LAUNCHES = json.loads(FILE.read_text())
UNREAD = "no release reads it: the change that does was never merged"
IGNORED = "SGLang resets the flag without a word: dp is 1"
TRUE_WARNINGS: dict[tuple[str, str], tuple[str, str]] = {
    ("dead-variable", "ENABLE_MOE_NZ"): (
        "91848cce6c 38ec02e49a e250319cf6 112431c0b4", UNREAD
    ),
    ("unknown-variable", "SGLANG_NPU_DEEPEP_USE_FUSED_MOE_DECODE"): (
        "07922e125e b504822dda b35204a74c a2a5d87414", UNREAD
    ),
    ("unknown-variable", "SGLANG_NPU_FUSEEP_DECODE_ONLY"): (
        "07922e125e b504822dda b35204a74c a2a5d87414", UNREAD
    ),
    ("unknown-variable", "SGLANG_NPU_PROFILING"): (
        "8457b95a1e 137972106b fad0766446 ef7cecfefe 70b863c9f7", UNREAD
    ),
    ("variable-value", "SGLANG_SCHEDULER_DECREASE_PREFILL_IDLE"): (
        "67e243907b", "2 is no boolean: 0.5.10 warns in its log and keeps the default, false"
    ),
    ("dp-lm-head", "--enable-dp-lm-head"): (
        "42055e10ac f5fe8a5342 03eadde6aa 5c96560c3b 112431c0b4", IGNORED
    ),
    ("abbreviated-flag", "--max-prefill-token"): (
        "2a58dce525", "it is --max-prefill-tokens as long as no other flag begins like it"
    ),
    ("load-fits", "--mem-fraction-static"): (
        "2bc5a1c1a8 b504822dda b35204a74c a4500a2f01 e250319cf6 112431c0b4",
        "the stated concurrency is never reached: even halfway through their outputs its requests "
        "have more KV than all of the static part holds beside the weights; of the first four even "
        "more than it would hold without any weights",
    ),
}  # fmt: skip
"""(rule, flag) -> the launches that have it, and why it is true and worth a line"""
NO_WEIGHTS = "2bc5a1c1a8 b504822dda b35204a74c a4500a2f01".split()


def own(name: str, part: dict[str, Any], extra: str) -> str:
    exports = "".join(
        f"export {key}={shlex.quote(value)}\n" for key, value in part["environment"].items()
    )
    return f"{exports}python3 -m {name} {part['arguments']} {extra}\n"


def model_flag(launch: dict[str, Any], kind: str) -> str:
    return "" if "--model-path" in launch[kind]["arguments"] else f"--model-path {launch['model']}"


def split_nodes(arguments: str) -> tuple[int, str]:
    """--nnodes, and the arguments without --node-rank."""
    words = arguments.split()
    nodes = int(words[words.index("--nnodes") + 1]) if "--nnodes" in words else 1
    if "--node-rank" in words:
        at = words.index("--node-rank")
        del words[at : at + 2]
    return nodes, " ".join(words)


def halves(
    launch: dict[str, Any], kind: str, network: int
) -> tuple[list[tuple[str, str]], list[str]]:
    """The scripts of every node of a half, and the addresses of its instances."""
    part = dict(launch[kind])
    nodes, part["arguments"] = split_nodes(part["arguments"])
    scripts, firsts = [], []
    for instance in range(part["instances"]):
        first = f"10.{network}.{instance}.1"
        firsts.append(first)
        for rank in range(nodes):
            host = f"10.{network}.{instance}.{rank + 1}"
            extra = f"{model_flag(launch, kind)} --host {host} --port 8000 --node-rank {rank}"
            if nodes > 1:
                extra += f" --dist-init-addr {first}:5000"
            if kind == "prefill":
                extra += f" --disaggregation-bootstrap-port {8998 + instance}"
            if "--disaggregation-transfer-backend" not in part["arguments"]:
                extra += " --disaggregation-transfer-backend ascend"
            part["environment"] = {
                **part["environment"],
                "ASCEND_MF_STORE_URL": "tcp://10.0.0.1:24667",
            }
            scripts.append(
                (f"{kind}-{instance}-{rank}.sh", own("sglang.launch_server", part, extra))
            )
    return scripts, firsts


def launch_scripts(launch: dict[str, Any]) -> list[tuple[str, str]]:
    if "mixed" in launch:
        extra = f"{model_flag(launch, 'mixed')} --host 127.0.0.1 --port 6688"
        return [("server.sh", own("sglang.launch_server", launch["mixed"], extra))]
    prefill, sources = halves(launch, "prefill", 0)
    decode, sinks = halves(launch, "decode", 1)
    urls = [f"--prefill http://{host}:8000 {8998 + at}" for at, host in enumerate(sources)]
    urls += [f"--decode http://{host}:8000" for host in sinks]
    extra = f"--pd-disaggregation {' '.join(urls)} --host 127.0.0.1 --port 6688"
    router = own("sglang_router.launch_router", launch["router"], extra)
    return [*prefill, *decode, ("router.sh", router)]


def launch_case(launch: dict[str, Any]) -> Case:
    loaded = import_scripts(launch_scripts(launch))
    overrides = Overrides(
        hardware="atlas-800i-a3",
        cards=launch["cards"],
        input=launch["input"],
        output=launch["output"],
        concurrency=launch["concurrency"],
        prefix_share=launch.get("prefix_share"),
    )
    return build_case(loaded, overrides)


@pytest.fixture(scope="module")
def verdicts() -> dict[str, CheckResult]:
    return {launch["id"]: judge(launch_case(launch)) for launch in LAUNCHES}


def test_none_has_an_error(verdicts: dict[str, CheckResult]) -> None:
    assert len(verdicts) == 49
    errors = {
        name: [each.text for each in found.findings if each.severity == "error"]
        for name, found in verdicts.items()
        if found.errors
    }
    assert errors == {}


def test_every_warning_is_true(verdicts: dict[str, CheckResult]) -> None:
    found: dict[tuple[str, str], set[str]] = {}
    for name, verdict in verdicts.items():
        for each in verdict.findings:
            if each.severity == "warning":
                found.setdefault((each.rule, each.flag), set()).add(name)
    assert found == {key: set(names.split()) for key, (names, _) in TRUE_WARNINGS.items()}
    assert all(reason for _, reason in TRUE_WARNINGS.values())


@pytest.mark.parametrize("name", NO_WEIGHTS)
def test_a_load_that_does_not_fit_would_not_without_weights(name: str) -> None:
    (launch,) = [each for each in LAUNCHES if each["id"] == name]
    plan = next(plan for _, plan in plans(launch_case(launch)) if plan.role != "prefill")
    assert plan.usual is not None
    assert plan.usual * plan.token_bytes > plan.usable * plan.fraction


def test_every_finding_of_a_role_has_its_line(verdicts: dict[str, CheckResult]) -> None:
    without = [
        each
        for found in verdicts.values()
        for each in found.findings
        if each.role and not (each.line and each.file.endswith(".sh"))
    ]
    assert without == []
