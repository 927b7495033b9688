"""What a launch is made of beside its own line: files of flags, sets of pods, limits of reading."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployments import case

from vivace.deploy.catalogue.hardware import find_device
from vivace.deploy.from_script import container
from vivace.deploy.from_script.script import import_scripts
from vivace.deploy.load_case import Overrides, build_case, open_files
from vivace.deploy.rules.judge import Finding, judge
from vivace.deploy.suggest import suggest

SERVER = "python3 -m sglang.launch_server"
FLAGS = """\
model-path: Qwen/Qwen3-32B
tp: 8
enable_metrics: true
cuda-graph-bs: [1, 2]
log-requests: no
"""
GROUP = """\
apiVersion: workloads.x-k8s.io/v1alpha1
kind: RoleBasedGroup
metadata: {name: g}
spec:
  roles:
  - name: mixed
    replicas: 2
    workload: {apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet}
    leaderWorkerSet: {size: 2}
    template:
      spec:
        containers:
        - command: [python3, -m, sglang.launch_server, --model-path, m, --tp, "16",
            --nnodes, $(LWS_GROUP_SIZE), --node-rank, $(LWS_WORKER_INDEX),
            --dist-init-addr, "$(LWS_LEADER_ADDRESS):5000"]
"""
SET = """\
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: r1}
spec:
  networkConfig: {subdomainPolicy: POLICY}
  leaderWorkerTemplate:
    size: 2
    workerTemplate:
      spec:
        containers:
        - command: [python3, -m, sglang.launch_server, --model-path, m, --tp, "16", --nnodes, "2",
            --node-rank, $(LWS_WORKER_INDEX), --dist-init-addr, "ADDRESS:5000"]
"""


def findings(path: Path) -> list[Finding]:
    found = judge(build_case(open_files([path]), Overrides())).findings
    return [each for each in found if each.severity in ("error", "warning")]


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_file_of_flags_beside_the_script_is_read(tmp_path: Path) -> None:
    written(tmp_path, "server.yaml", FLAGS)
    path = written(tmp_path, "run.sh", f"{SERVER} --config ./server.yaml --tp-size 4 --port 8000\n")
    (role,) = open_files([path]).deployment.roles.values()
    assert role.flags == {
        "model-path": "Qwen/Qwen3-32B",
        "enable-metrics": True,
        "cuda-graph-bs": [1, 2],
        "tp-size": 4,
        "port": 8000,
    }
    assert findings(path) == []


@pytest.mark.parametrize(
    ("line", "rule"), [("max-runing-requests: 4", "unknown-flag"), ("dtype: bf17", "flag-value")]
)
def test_its_mistakes_are_found_in_its_lines(tmp_path: Path, line: str, rule: str) -> None:
    config = written(tmp_path, "server.yaml", FLAGS + line + "\n")
    path = written(tmp_path, "run.sh", f"{SERVER} --config=server.yaml\n")
    (issue,) = findings(path)
    assert (issue.rule, issue.file, issue.line) == (rule, str(config), 6)


@pytest.mark.parametrize("content", [None, "- a\n- b\n", "a: [\n", "a: 1\na: 2\n"])
def test_a_file_that_is_not_read_is_told(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        written(tmp_path, "server.yaml", content)
    path = written(tmp_path, "run.sh", f"true\n{SERVER} --config server.yaml --tp 4\n")
    assert [(each.rule, each.line) for each in findings(path)] == [("not-understood", 2)]


def test_nothing_outside_of_the_folder_is_read(tmp_path: Path) -> None:
    written(tmp_path, "server.yaml", FLAGS)
    inner = tmp_path / "inner"
    inner.mkdir()
    path = written(inner, "run.sh", f"{SERVER} --config ../server.yaml\n")
    assert [each.rule for each in findings(path)] == ["not-understood"]


def test_roles_of_a_group_are_leader_worker_sets(tmp_path: Path) -> None:
    path = written(tmp_path, "g.yaml", GROUP)
    loaded = open_files([path])
    ranks = [each.flags["node-rank"] for each in loaded.started]
    assert ranks == [0, 1, 0, 1]
    assert [each.flags["nnodes"] for each in loaded.started] == [2] * 4
    assert "variable-from-outside" not in {each.rule for each in findings(path)}


@pytest.mark.parametrize(
    ("policy", "address", "sound"),
    [
        ("Shared", "r1-0.r1", True),
        ("UniquePerReplica", "r1-0.r1-0", True),
        ("UniquePerReplica", "r1-0-1.r1-0", False),
        ("Shared", "r1-0-1.r1", False),
    ],
)
def test_the_subdomain_of_a_set_is_that_of_its_policy(
    tmp_path: Path, policy: str, address: str, sound: bool
) -> None:
    text = SET.replace("POLICY", policy).replace("ADDRESS", address)
    rules = [each.rule for each in findings(written(tmp_path, "s.yaml", text))]
    assert rules == ([] if sound else ["meeting-host"])


@pytest.mark.parametrize(
    ("word", "told"),
    [("$(LWS_LEADER_ADDRESS)", False), ("$LWS_LEADER_ADDRESS", True),
     ("${LWS_LEADER_ADDRESS}", True)],
)  # fmt: skip
def test_a_list_of_words_has_no_shell(tmp_path: Path, word: str, told: bool) -> None:
    text = SET.replace("POLICY", "Shared").replace("ADDRESS", word)
    path = written(tmp_path, "s.yaml", text)
    assert ("variable-from-outside" in {each.rule for each in findings(path)}) is told


@pytest.mark.parametrize("name", ["compose.yaml", "pods.yaml", "many.service"])
def test_what_is_cut_is_told(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "MAX_CONTAINERS", 8)
    count = 9
    words = f"[{', '.join(SERVER.split())}, --model-path, m]"
    texts = {
        "compose.yaml": "services:\n"
        + "".join(f"  s{n}: {{image: x, command: {words}}}\n" for n in range(count)),
        "pods.yaml": "apiVersion: apps/v1\nkind: Deployment\nspec:\n"
        f"  replicas: {count}\n  template: {{spec: {{containers: [{{command: {words}}}]}}}}\n",
        "many.service": "[Service]\nType=oneshot\n"
        + f"ExecStart={SERVER} --model-path m\n" * count,
    }
    path = written(tmp_path, name, texts[name])
    assert "not-understood" in {each.rule for each in findings(path)}
    whole = written(tmp_path, name, texts[name].replace(str(count), str(count - 1), 1))
    if name == "pods.yaml":
        assert "not-understood" not in {each.rule for each in findings(whole)}


def test_dynamos_own_flags_are_known_where_it_starts_the_server() -> None:
    flags = "--model-path m --endpoint dyn://a.b.c --migration-limit 3 --use-sglang-tokenizer"
    for program, known in (("dynamo.sglang", True), ("sglang.launch_server", False)):
        found = judge(case({"script": f"python3 -m {program} {flags}\n"})).findings
        assert ("unknown-flag" not in {each.rule for each in found}) is known


@pytest.mark.parametrize("name", ["h20", "H800", "NVIDIA A800", "h20-3e"])
def test_cards_made_for_china_are_in_the_catalogue(name: str) -> None:
    device, other = find_device(name), find_device("h200")
    assert device is not None and other is not None and device != other


@pytest.mark.parametrize("concurrency", [8, 64, 512])
@pytest.mark.parametrize("prompt", [3000, 30000])
def test_prompts_are_not_cut_into_small_parts(prompt: int, concurrency: int) -> None:
    made = import_scripts([("a.sh", f"{SERVER} --model-path Qwen/Qwen3-32B --tp 1\n")])
    load = Overrides(hardware="h100", cards=1, input=prompt, output=1000, concurrency=concurrency)
    values = {each.name: each.value for each in suggest(build_case(made, load))}
    assert values["chunked-prefill-size"] >= min(prompt, 4096)
