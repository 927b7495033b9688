"""Ports and hosts at which others look for a server, and loops that start one again."""

from __future__ import annotations

import re

import pytest

from vivace.deploy.from_script.script import import_scripts
from vivace.deploy.load_case import Overrides, build_case
from vivace.deploy.rules.judge import judge

SERVER = "python -m sglang.launch_server --model-path m"
POD = """\
apiVersion: apps/v1
kind: Deployment
spec:
  replicas: 2
  selector: {matchLabels: {app: a}}
  template:
    metadata: {labels: {app: a, engine: sglang}}
    spec:
      containers:
      - name: server
        command: [python3, -m, sglang.launch_server, --model, m, --port, "8000", --host=0.0.0.0]
        ports: [{name: http, containerPort: 8000}]
        startupProbe: {httpGet: {path: /health, port: http}}
        readinessProbe:
          exec: {command: [sh, -c, "curl -f http://localhost:8000/health"]}
        livenessProbe:
          httpGet:
            path: /health
            port: 8000
---
kind: Service
apiVersion: v1
metadata: {name: s}
spec:
  selector: {app: a}
  ports:
  - {port: 80, targetPort: 8000}
"""
SET = """\
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: node}
spec:
  replicas: 2
  serviceName: set
  template:
    metadata: {labels: {app: a}}
    spec:
      containers:
      - command: [sh, -c]
        args:
        - |
          python3 -m sglang.launch_server --model-path /m --tp 16 \\
            --dist-init-addr node-0.set:5000 --nnodes 2 --node-rank $RANK
        env:
        - name: RANK
          valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
---
apiVersion: v1
kind: Service
metadata: {name: first}
spec: {clusterIP: None, selector: {app: a, apps.kubernetes.io/pod-index: "0"}, ports: [{port: 1}]}
"""
COMPOSE = """\
services:
  one:
    command: python3 -m sglang.launch_server --model-path /m --tp 16 --port 8000
      --dist-init-addr one:5000 --nnodes 2 --node-rank 0
    healthcheck:
      test: ["CMD-SHELL", "curl -f http://localhost:8000/health || exit 1"]
  two:
    container_name: second
    command: python3 -m sglang.launch_server --model-path /m --tp 16 --port 8000
      --dist-init-addr one:5000 --nnodes 2 --node-rank 1
"""
RULES = ("port-answered", "meeting-host", "port-in-loop")


def found(content: str, name: str) -> list[tuple[str, str, int]]:
    findings = judge(build_case(import_scripts([(name, content)]), Overrides())).findings
    return [(each.rule, each.severity, each.line) for each in findings if each.rule in RULES]


@pytest.mark.parametrize("content", [POD, SET, COMPOSE])
def test_what_is_right_is_silent(content: str) -> None:
    assert found(content, "a.yaml") == []


OTHER = "      - {name: other, image: other}\n"
PORT, HOST = "port-answered", "meeting-host"
LOOPBACK = [(PORT, "error", line) for line in (13, 19, 27)]
"""who asks the pod's address; the readinessProbe asks within the container"""
VLLM = re.sub(r"\[python3.*8000.*]", '[vllm, serve, m, --port, "8000"]', POD)


@pytest.mark.parametrize(
    ("content", "before", "after", "expected"),
    [
        (POD, "port: 8000\n---", "port: 8001\n---", [(PORT, "error", 19)]),
        (POD, "targetPort: 8000", "targetPort: 30000", [(PORT, "error", 27)]),
        (POD, "{port: 80, targetPort: 8000}", "{port: 80}", [(PORT, "error", 27)]),
        (POD, "targetPort: 8000", "targetPort: http", []),
        (POD, "selector: {app: a}\n  ports", "selector: {app: b}\n  ports", []),
        (POD, "localhost:8000", "localhost:8080", [(PORT, "error", 15)]),
        (POD, "containerPort: 8000", "containerPort: 80", [(PORT, "error", 13)]),
        (POD, "targetPort: 8000", "targetPort: 9", [(PORT, "error", 27)]),
        (POD, '--port, "8000"', "--port, $(PORT)", []),
        (POD, ", --host=0.0.0.0", "", LOOPBACK),
        (POD, "--host=0.0.0.0", "--host=127.0.0.1", LOOPBACK),
        (POD, "--host=0.0.0.0", "--host=$(POD_IP)", []),
        (POD, "--host=0.0.0.0", "--config=f.yaml", []),
        (VLLM, "8000", "8000", []),
        (VLLM, "--port", "--host=localhost, --port", LOOPBACK),
        (POD, "      - name: server", f"{OTHER}      - name: server", []),
        (POD, 'm, --port, "8000"', """m, --port, "8000", --kv-events-config,
          '{"endpoint": "tcp://*:5557"}'""", []),
        (POD, "targetPort: 8000", "targetPort: 9", [(PORT, "error", 27)]),
        (SET, "node-0.set", "first", []),
        (SET, "node-0.set", "node-0.set.default.svc.cluster.local", []),
        (SET, "node-0.set", "node-0", []),
        (SET, "node-0.set", "node-0.sett", [(HOST, "warning", 15)]),
        (SET, "node-0.set", "node-1.set", [(HOST, "error", 15)]),
        (SET, "node-0.set", "elsewhere", [(HOST, "warning", 15)]),
        (COMPOSE, "one:5000", "two:5000", [(HOST, "error", 4)]),
        (COMPOSE, "one:5000", "second:5000", [(HOST, "error", 4)]),
        (COMPOSE, "one:5000", "eno:5000", [(HOST, "error", 4)]),
        (COMPOSE.replace("  one:\n", "  one:\n    extra_hosts: [eno:1.2.3.4]\n"), "one:5000",
         "eno:5000", [(HOST, "warning", 5)]),
        (COMPOSE, "localhost:8000", "localhost:30000", [(PORT, "error", 6)]),
    ],
)  # fmt: skip
def test_ports_and_hosts_in_files_of_containers(
    content: str, before: str, after: str, expected: list[tuple[str, str, int]]
) -> None:
    assert before in content
    assert found(content.replace(before, after), "a.yaml") == expected


def test_beside_something_else_it_is_a_warning() -> None:
    other = POD.replace("      - name: server", f"{OTHER}      - name: server")
    assert found(other.replace("targetPort: 8000", "targetPort: 9"), "a.yaml") == [
        (PORT, "warning", 28)
    ]


@pytest.mark.parametrize(
    ("first", "second", "address", "expected"),
    [
        ("a", "b", "a", []),
        ("a", "b", "a.lan", []),
        ("a", "b", "10.0.0.1", []),
        ("a", "b", "c", [HOST]),
        ("10.0.0.1", "10.0.0.2", "10.0.0.3", [HOST]),
        ("a", "$B", "c", []),
        ("a", "b", "$FIRST", []),
        ("a", "b", "127.0.0.1", []),
    ],
)
def test_hosts_that_ssh_names(first: str, second: str, address: str, expected: list[str]) -> None:
    script = "".join(
        f'ssh {host} "{SERVER} --tp 16 --nnodes 2 --node-rank {rank} --dist-init-addr '
        f'{address}:1"\n'
        for rank, host in enumerate((first, second))
    )
    assert [each[0] for each in found(script, "a.sh")] == expected


EACH = "for i in $(seq $COUNT); do\n  {}\ndone\n"
LOOP = ("port-in-loop", "warning", 2)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (EACH.format(f"{SERVER} --port 8000 &"), [LOOP]),
        (EACH.format(f"CUDA_VISIBLE_DEVICES=$i nohup {SERVER} > $i.log 2>&1 &"), [LOOP]),
        (EACH.format(f"{SERVER} --port $((8000 + i)) &"), []),
        (EACH.format(f"{SERVER} --port 8000"), []),
        (EACH.format(f"{SERVER} --port 8000 &\n  run; kill $!"), []),
        (EACH.format(f"{SERVER} --port 8000 &\n  wait"), []),
        (EACH.format(f"{SERVER} --port 8000 &\n  run; stop_server"), []),
        (EACH.format(f"ssh $i '{SERVER} --port 8000' &"), []),
        (EACH.format(f"srun -w $i {SERVER} --port 8000 &"), []),
        (EACH.format(f"docker run -d image {SERVER} --port 8000"), []),
        (EACH.format(f"if [ $i = $RANK ]; then {SERVER} --port 8000 & fi"), []),
        (f'for i in "$MODEL"; do {SERVER} --port 8000 & done', []),
        (f"P=1\nfor ((i = 0; i < N; i++)); do\n{SERVER} --port $P &\nP=$((P + 1))\ndone", []),
        (f"for ((i = 0; i < N; i++)); do\n{SERVER} --port $P &\ndone", []),
        (f"while [ $((N - i)) -gt 0 ]; do\n{SERVER} --port 8 &\ni=$((i + 1))\ndone", [LOOP]),
    ],
)
def test_loops_that_go_round_an_unknown_number_of_times(
    script: str, expected: list[tuple[str, str, int]]
) -> None:
    assert found(script, "a.sh") == expected
