"""Every key of a deployment file changes something: a finding, a plan, a suggestion, what is
rendered; or a note says that nothing reads it."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any

import msgspec
import pytest
from deployments import case, mixed, separated
from toy_config import LLAMA

from vivace.commands.deploy import render_files
from vivace.deploy.load_case import LoadedDeployment
from vivace.deploy.memory.plan import plan_role
from vivace.deploy.rules.judge import judge
from vivace.deploy.schema.deployment import Deployment
from vivace.deploy.schema.files import load
from vivace.deploy.suggest import suggest

RENDERINGS = ("shell", "systemd", "compose", "kubernetes", "ray")


def structs_in(wanted: Any) -> list[type[msgspec.Struct]]:
    """Structs of an annotation, in lists, mappings and unions too."""
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        return [wanted]
    inner = typing.get_args(wanted)
    if isinstance(wanted, UnionType) or inner:
        return [found for part in inner for found in structs_in(part)]
    return []


def iter_keys(struct: type[msgspec.Struct], where: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(struct):
        inner = structs_in(field.type)
        path = f"{where}{field.encode_name}"
        if inner:
            for each in inner:
                yield from iter_keys(each, f"{path}.")
        else:
            yield path


def with_workload(**values: Any) -> dict[str, Any]:
    return mixed(workload={"input": 2048, "output": 1024, "concurrency": 256, **values})


def of_role(**values: Any) -> dict[str, Any]:
    return mixed(role=values)


def measured(**values: Any) -> dict[str, Any]:
    base = mixed()
    return {**base, "benchmarks": [{**base["benchmarks"][0], **values}]}


def cards(**values: Any) -> dict[str, Any]:
    return mixed(hardware={"device": "atlas-800i-a3", "cards": 8, **values})


def model(**values: Any) -> dict[str, Any]:
    return mixed(model={"name": "qwen3-30b-a3b", "quantization": "bf16", **values})


VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "name": (mixed(), mixed(name="tuesday")),
    "engine": (mixed(), mixed(engine="vivace")),
    "model.path": (mixed(), model(path="/models/other")),
    "model.name": (mixed(), model(name="qwen3-32b")),
    "model.quantization": (mixed(), model(quantization="w8a8")),
    "model.draft": (mixed(), model(draft="a-draft")),
    "hardware.device": (mixed(), cards(device="atlas-800i-a2")),
    "hardware.cards": (mixed(), cards(cards=4)),
    "hardware.cards_per_node": (separated(), separated(
        hardware={"device": "atlas-800i-a3", "cards": 32, "cards_per_node": 4})),
    "prepare": (mixed(), mixed(prepare=["ulimit -n 65535"])),
    "unset": (mixed(), mixed(unset=["http_proxy"])),
    "environment": (mixed(), mixed(environment={"A": "1"})),
    "roles.kind": (mixed(), of_role(kind="decode")),
    "roles.program": (mixed(), of_role(program="other.launch")),
    "roles.instances": (mixed(), of_role(instances=2)),
    "roles.nodes": (mixed(), of_role(nodes=2)),
    "roles.hosts": (mixed(), of_role(hosts=["10.0.0.9"])),
    "roles.flags": (mixed(), mixed(flags={"tp-size": 8})),
    "roles.environment": (mixed(), mixed(environment={"HCCL_BUFFSIZE": "100"})),
    "roles.each.flags": (mixed(), of_role(each=[{"flags": {"port": 7001}}])),
    "roles.each.environment": (mixed(), of_role(each=[{"environment": {"A": "1"}}])),
    "benchmarks.program": (mixed(), measured(program="other.bench")),
    "benchmarks.flags": (mixed(), mixed(benchmark={"port": 1})),
    "benchmarks.environment": (mixed(), measured(environment={"A": "1"})),
    "workload.input": (with_workload(), with_workload(input=6000)),
    "workload.input.low": (with_workload(input={"low": 10, "high": 20}),
                           with_workload(input={"low": 20, "high": 20})),
    "workload.input.high": (with_workload(input={"low": 10, "high": 20}),
                            with_workload(input={"low": 10, "high": 99})),
    "workload.output": (with_workload(), with_workload(output=6000)),
    "workload.output.low": (with_workload(output={"low": 10, "high": 20}),
                            with_workload(output={"low": 20, "high": 20})),
    "workload.output.high": (with_workload(output={"low": 10, "high": 20}),
                             with_workload(output={"low": 10, "high": 99})),
    "workload.concurrency": (with_workload(), with_workload(concurrency=512)),
    "workload.rate": (with_workload(), {**with_workload(rate=1e6), "benchmarks": []}),
    "workload.requests": (with_workload(), with_workload(requests=7)),
    "workload.prefix_share": (
        {**with_workload(), "roles": mixed(flags={"disable-radix-cache": True})["roles"]},
        {**with_workload(prefix_share=0.5),
         "roles": mixed(flags={"disable-radix-cache": True})["roles"]},
    ),
    "targets.ttft_ms": (with_workload(), {**with_workload(), "targets": {"ttft_ms": 0.001}}),
    "targets.tpot_ms": (with_workload(), {**with_workload(), "targets": {"tpot_ms": 0.001}}),
}  # fmt: skip
"""key -> a deployment, and the same with that key otherwise"""
ELSEWHERE = {"include", "model.config"}
"""keys that name files; tested below"""


def effects(content: dict[str, Any]) -> dict[str, Any]:
    known = case(content, content.get("engine", "sglang"))
    loaded = LoadedDeployment(known.deployment, (), "made.yaml")
    return {
        "findings": judge(known),
        "plans": [plan_role(known, server) for server in known.servers],
        "suggestions": suggest(known),
        **{to: render_files(known.deployment, to, loaded) for to in RENDERINGS},
    }


def test_every_key_has_a_variant() -> None:
    keys = set(iter_keys(Deployment))
    for name in ("input", "output"):  # a number, or lengths
        keys.add(f"workload.{name}")
    assert keys == {*VARIANTS, *ELSEWHERE}


@pytest.mark.parametrize("key", VARIANTS)
def test_a_key_changes_something(key: str) -> None:
    before, after = (effects(content) for content in VARIANTS[key])
    assert [part for part in before if before[part] != after[part]], key


def test_files_that_are_named_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(LLAMA))
    named = model(config=str(tmp_path / "config.json"), name=None)
    assert effects(named)["plans"] != effects(mixed())["plans"]
    (tmp_path / "base.yaml").write_text("name: base\n")
    (tmp_path / "own.yaml").write_text("include: base.yaml\n")
    assert load(tmp_path / "own.yaml").name == "base"


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (model(draft="one"), "model.draft"),
        ({**with_workload(rate=50), "benchmarks": []}, "workload.rate"),
        ({**with_workload(requests=50), "benchmarks": []}, "workload.requests"),
    ],
)
def test_what_nothing_reads_is_said(content: dict[str, Any], key: str) -> None:
    (found,) = [finding for finding in judge(case(content)).findings if finding.rule == "unread"]
    assert found.severity == "note" and key in found.text


def test_goals_that_can_be_are_not() -> None:
    content = {
        **with_workload(rate=1, prefix_share=0.5),
        "targets": {"ttft_ms": 1000, "tpot_ms": 50},
    }
    known = {finding.rule for finding in judge(case(content)).findings}
    assert not known & {"target-token", "target-first-token", "target-rate", "shared-prompts"}
