"""deployment.yaml: what it may say, and how mistakes are told."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from vivace.deploy.schema.deployment import Deployment, DeploymentError, Role, json_schema
from vivace.deploy.schema.files import load, merge, parse_deployment, parse_yaml, to_yaml
from vivace.deploy.schema.nodes import expand_nodes
from vivace.deploy.schema.rewrite import rewrite

BASE = """
name: family            # what they have in common
model: {name: qwen3-32b}
hardware: {device: atlas-800i-a3, cards: 4}
roles:
  mixed:
    kind: mixed
    environment: {HCCL_BUFFSIZE: 400, SGLANG_SET_CPU_AFFINITY: true}
    flags:
      tp-size: 8        # one node
      port: 7000
"""


def file(folder: Path, text: str, name: str = "deployment.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_values_are_typed_and_variables_become_text(tmp_path: Path) -> None:
    found = load(file(tmp_path, BASE))
    assert found.roles["mixed"].environment["HCCL_BUFFSIZE"] == "400"
    assert found.roles["mixed"].environment["SGLANG_SET_CPU_AFFINITY"] == "true"
    assert parse_deployment(parse_yaml(to_yaml(found))[0], "again") == found


def test_a_file_says_what_differs_from_its_base(tmp_path: Path) -> None:
    file(tmp_path, BASE, "base.yaml")
    over = "include: base.yaml\nname: small\nroles: {mixed: {flags: {tp-size: 4, port: null}}}\n"
    found = load(file(tmp_path, over))
    assert found.name == "small" and found.roles["mixed"].flags == {"tp-size": 4}
    assert found.model.name == "qwen3-32b"


def test_merging_takes_away_what_is_null() -> None:
    base = {"a": {"b": 1, "c": 2}, "d": [1]}
    assert merge(base, {"a": {"b": None}, "d": [2], "e": None}) == {
        "a": {"c": 2},
        "d": [2],
        "e": None,
    }
    assert base == {"a": {"b": 1, "c": 2}, "d": [1]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rolles: {}", "did you mean 'roles'"),
        ("roles: {a: {kind: mixed, flgs: {}}}", "roles.a has no key 'flgs'; did you mean 'flags'"),
        ("roles: {a: {kind: mixd}}", "mixd"),
        ("roles: {a: {}}", "roles.a.kind is missing (mixed, prefill"),
        ("hardware: {cards: 4}\nroles: {a: {kind: mixed}}", "hardware.device is missing: one of"),
        ("roles: {a: {kind: mixed, nodes: 0}}", "nodes"),
        ("hardware: {device: x, cards: many}", "cards"),
        ("workload: {input: {low: 1}}", "high"),
        ("- a\n- b", "a mapping"),
        ("a: [", "deployment.yaml"),
        ("name: a\nname: b", "line 2: 'name' is given twice"),
        ("include: 7", "path of a file"),
        ("include: /etc/passwd", "same folder or below"),
        ("include: ../../etc/passwd", "same folder or below"),
        ("include: other.yaml", "other.yaml"),
        ("include: deployment.yaml", "circle"),
        ("targets: {tpot_ms: -1}", "tpot_ms"),
        ("name: !!python/object/apply:os.system [true]", "deployment.yaml"),
    ],
)
def test_mistakes_are_told_with_their_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(DeploymentError) as error:
        load(file(tmp_path, text))
    assert says in str(error.value) and str(tmp_path) in str(error.value)


def test_aliases_cannot_fill_the_memory(tmp_path: Path) -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
    for before, name in zip("abcdefg", "bcdefgh", strict=True):
        bomb += f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n"
    with pytest.raises(DeploymentError, match="values"):
        load(file(tmp_path, bomb))


def test_placeholders_are_filled_for_each_node() -> None:
    role = Role(
        kind="decode",
        instances=2,
        nodes=2,
        hosts=["a", "b", "c", "d"],
        flags={
            "host": "{host}",
            "node-rank": "{node}",
            "dist-init-addr": "{first}:5000",
            "n": "{x}",
        },
        environment={"ID": "{instance}-{node}"},
    )
    nodes = list(expand_nodes(Deployment(), role))
    assert [node.flags["host"] for node in nodes] == ["a", "b", "c", "d"]
    assert [node.flags["node-rank"] for node in nodes] == [0, 1, 0, 1]
    assert [node.flags["dist-init-addr"] for node in nodes] == ["a:5000"] * 2 + ["c:5000"] * 2
    assert [node.environment["ID"] for node in nodes] == ["0-0", "0-1", "1-0", "1-1"]
    assert nodes[0].flags["n"] == "{x}"


def test_comments_stay_when_values_change(tmp_path: Path) -> None:
    path = file(tmp_path, BASE)
    text = rewrite(
        path,
        {
            ("roles", "mixed", "flags", "tp-size"): 4,
            ("roles", "mixed", "environment", "HCCL_BUFFSIZE"): "200",
            ("targets", "tpot_ms"): 50,
        },
    )
    assert "# what they have in common" in text and "# one node" in text
    path.write_text(text)
    found = load(path)
    assert found.roles["mixed"].flags["tp-size"] == 4
    assert found.targets is not None and found.targets.tpot_ms == 50


def test_the_schema_is_of_the_struct() -> None:
    text = json.dumps(json_schema())
    for field in msgspec.structs.fields(Deployment):
        assert f'"{field.encode_name}"' in text
    assert '"additionalProperties": false' in text
