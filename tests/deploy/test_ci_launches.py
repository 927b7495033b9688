"""49 launches that SGLang's own CI starts on Atlas 800I A3: they run, so no error may be found in
them, and no warning that is not true.

`launches_of_ci.json` has their facts: variables, arguments, cards and load; addresses and folders
are made up.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from vivace.deploy.from_script.script import import_scripts
from vivace.deploy.load_case import Overrides, build_case, loaded_from
from vivace.deploy.rules.judge import CheckResult, judge

FILE = Path(__file__).parent / "launches_of_ci.json"
LAUNCHES = json.loads(FILE.read_text())
TRUE_WARNINGS = {
    "graph-covers": 10,  # the largest batches run without a graph
    "dp-lm-head": 5,  # the flag does nothing with dp 1
    "dead-variable": 4,  # ENABLE_MOE_NZ, which nothing reads
    "load-fits": 12,  # all requests at full length do not fit at once
    "outside-fits": 1,  # if 64 prompts of a burst make one prefill of 131072 tokens
    "abbreviated-flag": 1,
    "flag-given-twice": 2,  # with the same value
    "unknown-variable": 9,  # three names that no release reads
}
"""how many launches have each"""


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


def verdict(launch: dict[str, Any]) -> CheckResult:
    loaded = loaded_from(import_scripts(launch_scripts(launch)), launch["id"])
    overrides = Overrides(
        hardware="atlas-800i-a3",
        cards=launch["cards"],
        input=launch["input"],
        output=launch["output"],
        concurrency=launch["concurrency"],
    )
    return judge(build_case(loaded, overrides))


@pytest.fixture(scope="module")
def verdicts() -> dict[str, CheckResult]:
    return {launch["id"]: verdict(launch) for launch in LAUNCHES}


def test_none_has_an_error(verdicts: dict[str, CheckResult]) -> None:
    assert len(verdicts) == 49
    errors = {
        name: [each.text for each in found.findings if each.severity == "error"]
        for name, found in verdicts.items()
        if found.errors
    }
    assert errors == {}


def test_every_warning_is_true(verdicts: dict[str, CheckResult]) -> None:
    counts = Counter(
        rule
        for found in verdicts.values()
        for rule in {each.rule for each in found.findings if each.severity == "warning"}
    )
    assert counts == TRUE_WARNINGS


def test_every_finding_of_a_role_has_its_line(verdicts: dict[str, CheckResult]) -> None:
    without = [
        each
        for found in verdicts.values()
        for each in found.findings
        if each.role and not (each.line and each.file.endswith(".sh"))
    ]
    assert without == []
