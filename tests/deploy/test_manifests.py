"""docker-compose files and Kubernetes manifests are read as launch scripts are."""

from __future__ import annotations

from pathlib import Path

import pytest

from vivace.deploy.from_script.script import import_files, import_scripts
from vivace.deploy.load_case import Overrides, build_case, open_files
from vivace.deploy.rules.judge import Finding, judge
from vivace.deploy.shell.reader import ScriptError

COMPOSE = """\
services:
  prefill:
    image: lmsysorg/sglang
    network_mode: host
    environment:
      - HCCL_BUFFSIZE=300
      - TOKEN
    entrypoint: python3 -m sglang.launch_server
    command: --model-path /m --port ${PORT:-8000} --tp ${TP} --host 0.0.0.0
      --disaggregation-mode prefill
  decode:
    command: ["bash", "-c", "exec python3 -m sglang.launch_server --model-path /m --port $$P
      --disaggregation-mode decode"]
    environment: {P: 9000}
"""
SET = """\
apiVersion: v1
kind: Service
metadata: {name: first}
---
apiVersion: apps/v1
kind: StatefulSet
spec:
  replicas: 2
  template:
    spec:
      containers:
      - name: server
        command: [/bin/bash, -c]
        args:
        - |
          numactl -N 0 python3 -m sglang.launch_server \\
            --model-path /m --tp 16 \\
            --dist-init-addr first:5000 \\
            --nnodes 2 --node-rank $POD_INDEX
        env:
        - name: POD_INDEX
          valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
"""
GROUP = """\
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: group}
spec:
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec:
        containers:
        - command: [python3, -m, sglang.launch_server, --port, "8000", --model-path, /m, --tp, "16",
            --dist-init-addr, $(LWS_LEADER_ADDRESS):5000, --nnodes, $(LWS_GROUP_SIZE),
            --node-rank, $(LWS_WORKER_INDEX)]
    workerTemplate:
      spec:
        containers:
        - command: [python3, -m, sglang.launch_server, --model-path, /m, --tp, "16",
            --dist-init-addr, $(LWS_LEADER_ADDRESS):5000, --nnodes, $(LWS_GROUP_SIZE),
            --node-rank, $(LWS_WORKER_INDEX)]
"""


def findings(folder: Path, content: str) -> list[Finding]:
    file = folder / "made.yaml"
    file.write_text(content)
    return list(judge(build_case(open_files([file]), Overrides())).findings)


def test_services_of_compose(tmp_path: Path) -> None:
    file = tmp_path / "compose.yml"
    file.write_text(COMPOSE)
    roles = open_files([file]).deployment.roles
    prefill, decode = roles["prefill"], roles["decode"]
    assert (prefill.flags["port"], prefill.flags["tp"]) == (8000, "<TP>")
    assert prefill.environment == {"HCCL_BUFFSIZE": "300", "TOKEN": "<TOKEN>"}
    assert decode.flags["port"] == 9000


@pytest.mark.parametrize("content", [SET, GROUP])
def test_pods_of_a_set_are_nodes(tmp_path: Path, content: str) -> None:
    file = tmp_path / "made.yaml"
    file.write_text(content)
    (role,) = open_files([file]).deployment.roles.values()
    assert (role.nodes, role.instances, role.flags["nnodes"]) == (2, 1, 2)
    assert role.flags["node-rank"] == "{node}"
    assert [each for each in findings(tmp_path, content) if each.severity == "error"] == []


@pytest.mark.parametrize(
    ("content", "before", "after", "rule", "line"),
    [
        (SET, "replicas: 2", "replicas: 3", "node-ranks", 19),
        (SET, "--nnodes 2", "--nnodes 3", "node-ranks", 19),
        (SET, "--tp 16", "--tp-sise 16", "unknown-flag", 17),
        (GROUP, "$(LWS_WORKER_INDEX)]", '"0"]', "node-ranks", 18),
        (COMPOSE, "--host 0.0.0.0", "--hots 0.0.0.0", "unknown-flag", 9),
    ],
)
def test_mistakes_are_found_at_their_lines(
    tmp_path: Path, content: str, before: str, after: str, rule: str, line: int
) -> None:
    found = findings(tmp_path, content.replace(before, after))
    assert (rule, line, str(tmp_path / "made.yaml")) in {
        (each.rule, each.line, each.file) for each in found
    }, found


BOMB = "\n".join(
    ["apiVersion: v1", "a0: &a0 [x, x]"]
    + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}]" for i in range(1, 40)]
    + ["spec: {containers: [{command: *a39}]}", "kind: Pod"]
)


@pytest.mark.parametrize(
    "content",
    [
        BOMB,
        "services:\n  a: " + "[" * 100_000,
        "services:\n  a: " + "{a: " * 5_000,
        'services:\n  a:\n    command: "it\'s"\n',
        "services: 7\n",
        "apiVersion: v1\nspec: [\n",
        "apiVersion: v1\nkind: Pod\nspec: {containers: [7, {command: [a]}]}\n",
    ],
)
def test_what_is_no_deployment_is_refused_with_its_name(tmp_path: Path, content: str) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text(content)
    with pytest.raises(ScriptError) as refused:
        import_files([file])
    assert "odd.yaml" in str(refused.value) or "no server" in str(refused.value)


SERVICES = """\
services:
  first:
    network_mode: host
    env_file: [common.env, {path: ./own.env}]
    command: python3 -m sglang.launch_server --model-path /m --tp 2 --port 7000
    environment: {OWN: last}
    deploy: {resources: {reservations: {devices: [
      {driver: nvidia, device_ids: ['0', '1'], capabilities: [gpu]}]}}}
  second:
    network_mode: host
    command: python3 -m sglang.launch_server --model-path /m --tp 2 --port 7001
    deploy: {resources: {reservations: {devices: [
      {driver: nvidia, device_ids: ['2', '3'], capabilities: [gpu]}]}}}
"""
DOCKER = """\
docker run -d --net host --gpus '"device=0,1"' --env-file common.env image \\
  python3 -m sglang.launch_server --model-path /m --tp 2 --port 7000
docker run -d --net host --gpus '"device=2,3"' image \\
  python3 -m sglang.launch_server --model-path /m --tp 2 --port 7001
"""


def written(folder: Path, name: str, content: str) -> list[Finding]:
    (folder / name).write_text(content)
    (folder / "common.env").write_text("# both\nexport SHARED='a b' # here\nOWN=first\nbroken\n")
    (folder / "own.env").write_text("OWN=second\nSGLANG_ENABLE_SPEC_V9=1\n")
    it = build_case(open_files([folder / name]), Overrides())
    return [each for each in judge(it).findings if each.severity in ("error", "warning")]


def test_env_files_of_a_service_are_read(tmp_path: Path) -> None:
    """Later files before earlier ones, the service's own variables before both."""
    (finding,) = written(tmp_path, "compose.yaml", SERVICES)
    assert finding.flag == "SGLANG_ENABLE_SPEC_V9"
    assert (finding.file, finding.line) == (str(tmp_path / "own.env"), 2)
    (first, _) = import_files([tmp_path / "compose.yaml"]).started
    assert first.environment["SHARED"] == "a b" and first.environment["OWN"] == "last"
    assert first.environment["NVIDIA_VISIBLE_DEVICES"] == "0,1"


def test_env_files_of_docker_run_are_read(tmp_path: Path) -> None:
    assert written(tmp_path, "start.sh", DOCKER) == []
    (first, second) = import_files([tmp_path / "start.sh"]).started
    assert first.environment["SHARED"] == "a b" and "SHARED" not in second.environment
    assert second.environment["NVIDIA_VISIBLE_DEVICES"] == "2,3"


@pytest.mark.parametrize(
    ("name", "content", "before", "after"),
    [
        ("compose.yaml", SERVICES, "'2', '3'", "'1', '2'"),
        ("start.sh", DOCKER, "device=2,3", "device=1,2"),
        ("compose.yaml", SERVICES, "'2', '3'", "'2'"),
        ("start.sh", DOCKER, "device=2,3", "device=2"),
    ],
)
def test_devices_of_containers_are_compared(
    name: str, content: str, before: str, after: str, tmp_path: Path
) -> None:
    changed = content.replace(before, after)
    (line,) = [at for at, each in enumerate(changed.splitlines(), 1) if after in each]
    found = [each for each in written(tmp_path, name, changed) if each.severity == "error"]
    assert [each.rule for each in found] == ["devices-apart" if "1" in after else "devices-there"]
    assert name == "start.sh" or found[0].line == line


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("common.env", "elsewhere.env", "env_file elsewhere.env"),
        ("common.env", "../common.env", "env_file ../common.env"),
        ("env_file: [", "extends: {service: second}\n    env_file: [", "extends"),
    ],
)
def test_what_is_not_read_of_a_service_is_listed(
    before: str, after: str, said: str, tmp_path: Path
) -> None:
    found = written(tmp_path, "compose.yaml", SERVICES.replace(before, after, 1))
    assert [each.line for each in found if each.rule == "not-understood" and said in each.text]


def test_variables_from_a_config_map_are_listed(tmp_path: Path) -> None:
    with_map = SET.replace(
        "        env:\n", "        envFrom: [{configMapRef: {name: c}}]\n        env:\n"
    )
    found = written(tmp_path, "set.yaml", with_map)
    assert any("envFrom" in each.text for each in found if each.rule == "not-understood")


PUBLISHED = """\
services:
  first:
    command: python3 -m sglang.launch_server --model-path /m --host 0.0.0.0 --port 30000
    ports: ["8000:30000"]
  second:
    command: python3 -m sglang.launch_server --model-path /m --host 0.0.0.0 --port 30000
    ports: [{published: "8001", target: 30000}]
"""


@pytest.mark.parametrize(
    ("before", "after", "clashes"),
    [
        ("8001", "8001", 0),
        ("8001", "8000", 1),
        ("8000:", "7990-8010:", 1),
        ("8000:30000", "0.0.0.0:8001:30000/tcp", 1),
        ("8000:30000", "127.0.0.1:8001:30000", 0),
        ("8000:30000", "8001:30000/udp", 0),
        ("8000:30000", "30000", 0),
        ('ports: ["8000:30000"]', "network_mode: host", 0),
        ("8001", "30000", 0),
    ],
)
def test_published_ports_of_one_machine_are_apart(
    before: str, after: str, clashes: int, tmp_path: Path
) -> None:
    assert before in PUBLISHED
    found = written(tmp_path, "compose.yaml", PUBLISHED.replace(before, after))
    apart = [each for each in found if each.rule == "ports-apart"]
    assert [(each.severity, each.line) for each in apart] == [("error", 7)] * clashes


def test_a_published_port_is_not_that_of_a_server_on_the_machine(tmp_path: Path) -> None:
    content = PUBLISHED.replace('ports: ["8000:30000"]', "network_mode: host")
    found = written(tmp_path, "compose.yaml", content.replace("8001", "30000"))
    assert [each.line for each in found if each.rule == "ports-apart"] == [7]


TWO_CONTAINERS = """\
docker run -d --gpus '"device=0"' \\
  -p 8000:30000 lmsysorg/sglang:v0.5.10 python3 -m sglang.launch_server --model-path /m
docker run -d --gpus '"device=1"' \\
  --publish 8001:30000 lmsysorg/sglang:v0.5.10 python3 -m sglang.launch_server --model-path /m
"""


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ("8001", "8001", []),
        ("--publish 8001", "-p 8000", [4]),
        ("--publish 8001", "-p8000", [3]),
        ("--publish 8001", "--publish=7999-8000", [3]),
        ("--publish 8001", "-p 127.0.0.1:8000", []),
        ("--publish 8001", "-p $PORT", []),
        ("-p 8000:30000", "-p 8001:30000 --network host", []),
        ("-p 8000:30000", "--net=host", []),
        ("-p 8000:30000 lmsysorg/sglang:v0.5.10", "--net=host i", []),
        ("docker run -d --gpus '\"device=1\"'", "ssh b docker run -d", []),
    ],
)
def test_ports_that_docker_run_publishes_are_apart(
    before: str, after: str, lines: list[int], tmp_path: Path
) -> None:
    assert before in TWO_CONTAINERS
    found = written(tmp_path, "start.sh", TWO_CONTAINERS.replace(before, after))
    assert [each.line for each in found if each.rule == "ports-apart"] == lines


def test_a_port_that_docker_run_publishes_is_not_that_of_a_server(tmp_path: Path) -> None:
    server = "python3 -m sglang.launch_server --model-path /m --port 8000 &\n"
    found = written(tmp_path, "start.sh", server + TWO_CONTAINERS)
    assert [(each.rule, each.line) for each in found if each.rule == "ports-apart"] == [
        ("ports-apart", 3)
    ]


DYNAMO = """\
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: graph}
spec:
  services:
    Frontend:
      extraPodSpec: {mainContainer: {image: runtime, command: [python3, -m, dynamo.frontend]}}
    decode:
      extraPodSpec:
        mainContainer:
          command: [python3, -m, dynamo.sglang]
          args:
            - --model-path=Qwen/Qwen3-8B
            - --page-size=64
            - --disaggregation-mode=decode
    prefill:
      replicas: 2
      multinode: {nodeCount: 2}
      extraPodSpec:
        mainContainer:
          command: [/bin/sh, -c]
          args:
            - |
              python3 -m dynamo.sglang --model-path Qwen/Qwen3-8B --tp 16 \\
                --page-size 64 --disaggregation-mode prefill
"""
LLMAZ = """\
apiVersion: inference.llmaz.io/v1alpha1
kind: Playground
metadata: {name: small}
spec:
  modelClaim: {modelName: qwen3-8b}
  backendRuntimeConfig:
    backendName: sglang
    args: [--tp-size, "2"]
---
apiVersion: inference.llmaz.io/v1alpha1
kind: BackendRuntime
metadata: {name: sglang}
spec:
  command: [python3, -m, sglang.launch_server]
  recommendedConfigs:
    - name: default
      args: [--model-path, "{{ .ModelPath }}", --port, "8080"]
"""


def test_resources_of_dynamo_and_llmaz_start_servers() -> None:
    graph = import_scripts([("graph.yaml", DYNAMO)]).deployment.roles
    assert {name: (role.instances, role.nodes) for name, role in graph.items()} == {
        "decode": (1, 1), "prefill": (2, 2)
    }  # fmt: skip
    assert graph["prefill"].flags["tp"] == 16
    playground, runtime = import_scripts([("m.yaml", LLMAZ)]).deployment.roles.values()
    assert playground.flags == {"model-path": "<modelClaim>", "tp-size": 2}
    assert runtime.flags == {"model-path": "<ModelPath>", "port": 8080}


@pytest.mark.parametrize(
    ("content", "before", "after", "rule", "line"),
    [
        (DYNAMO, "--page-size=64", "--page-size=16", "handshake", 14),
        (DYNAMO, "--page-size=64", "--pagesize=64", "unknown-flag", 14),
        (LLMAZ, "--tp-size", "--tp-sise", "unknown-flag", 8),
        (LLMAZ, '"8080"', '"80800"', "limits", 17),
    ],
)
def test_mistakes_in_such_resources_are_found(
    content: str, before: str, after: str, rule: str, line: int, tmp_path: Path
) -> None:
    assert before in content
    right = written(tmp_path, "right.yaml", content)
    assert {each.rule for each in right if each.severity != "note"} <= {"other-engine"}
    found = written(tmp_path, "wrong.yaml", content.replace(before, after))
    assert (rule, line) in {(each.rule, each.line) for each in found}


@pytest.mark.parametrize(
    ("address", "severity"),
    [
        ("group-0.group", None),
        ("group-0.group.space.svc", None),
        ("group-0-1.group", "error"),  # rank 1
        ("group-1.group", "warning"),  # another group
        ("10.0.0.1", None),
    ],
)
def test_the_leader_of_a_group_has_a_name(
    address: str, severity: str | None, tmp_path: Path
) -> None:
    found = written(tmp_path, "group.yaml", GROUP.replace("$(LWS_LEADER_ADDRESS)", address))
    assert [each.severity for each in found if each.rule == "meeting-host"] == [severity] * bool(
        severity
    )
