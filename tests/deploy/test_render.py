"""What is rendered starts the same processes, and is what its reader takes."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from deployments import mixed, separated

from vivace.commands.deploy import main
from vivace.deploy.case import Case
from vivace.deploy.from_script.script import import_scripts
from vivace.deploy.load_case import LoadedDeployment, Overrides, build_case
from vivace.deploy.quoting import quote
from vivace.deploy.render.compose import render_compose
from vivace.deploy.render.kubernetes import render_kubernetes
from vivace.deploy.render.process import list_processes
from vivace.deploy.render.ray import render_ray
from vivace.deploy.render.resources import node_shares
from vivace.deploy.render.shell import render_shell
from vivace.deploy.render.systemd import render_systemd
from vivace.deploy.rules.judge import judge
from vivace.deploy.schema.deployment import Deployment
from vivace.deploy.schema.files import load, parse_deployment, to_yaml

MADE = {"mixed": mixed(), "separated": separated()}


def made(name: str) -> Deployment:
    found = parse_deployment(MADE[name], name)
    found.name = "Tests & Co."
    found.prepare = ["source /opt/set_env.sh", "sysctl -w vm.swappiness=0"]
    found.unset = ["https_proxy"]
    found.environment["PATH"] = "/opt/it's/bin:<$PATH>"
    return found


def make_case(deployment: Deployment) -> Case:
    return build_case(LoadedDeployment(deployment, (), "made.yaml"), Overrides())


def documents(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


@pytest.mark.parametrize("name", MADE)
def test_scripts_start_the_same_processes(name: str) -> None:
    deployment = made(name)
    again = import_scripts(sorted(render_shell(deployment).items())).deployment
    wanted = {
        (p.host, p.words, tuple(sorted(p.environment.items()))) for p in list_processes(deployment)
    }
    assert {
        (p.host, p.words, tuple(sorted(p.environment.items()))) for p in list_processes(again)
    } == wanted
    assert (again.prepare, again.unset) == (deployment.prepare, deployment.unset)


@pytest.mark.parametrize("name", MADE)
def test_bash_takes_the_scripts(name: str, tmp_path: Path) -> None:
    beside = Path(sys.executable).with_name("shellcheck")
    shellcheck = str(beside) if beside.exists() else shutil.which("shellcheck")
    for file, content in render_ray(make_case(made(name))).items():
        (tmp_path / file).write_text(content)
        subprocess.run(["bash", "-n", file], cwd=tmp_path, check=True, timeout=30)
        if shellcheck:
            command = [shellcheck, "--severity=warning", "--exclude=SC1090,SC1091", file]
            subprocess.run(command, cwd=tmp_path, check=True, timeout=60)


def test_a_script_starts_on_its_own_node_only(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for program, text in (("hostname", "echo 10.0.0.1"), ("python", 'echo "started $*"')):
        path = tmp_path / "bin" / program
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    deployment = parse_deployment(MADE["separated"], "x")
    codes = {}
    for name, content in render_shell(deployment).items():
        done = subprocess.run(
            ["bash", "-c", content],
            env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=30,
        )
        codes[name] = done.returncode
        assert ("started -m sglang" in done.stdout) == (done.returncode == 0), done
    assert codes == {
        "prefill-0.sh": 0,
        "prefill-1.sh": 1,
        "decode-0-0.sh": 1,
        "decode-0-1.sh": 1,
        "router-0.sh": 0,
    }


@pytest.mark.parametrize(
    "text",
    ["plain", "two words", "it's", '"', "$HOME", "`x`", "<$PATH>:x", "a:<${LD}>:b", "\\", "é", ""],
)
def test_words_survive_bash(text: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"printf %s {quote(text)}"],
        env={"PATH": "/usr/bin:/bin", "LD": "l d"},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout == text.replace("<$PATH>", "/usr/bin:/bin").replace("<${LD}>", "l d")


def test_units_run_the_scripts() -> None:
    files = render_systemd(made("separated"))
    unit = files["decode-0-1.service"]
    assert "ExecStart=/usr/bin/env bash /opt/vivace/decode-0-1.sh" in unit
    assert "Restart=on-failure" in unit and "decode-0-1.sh" in files
    assert not [
        line for line in unit.splitlines() if line and line[0] not in "#[" and "=" not in line
    ]


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    for name, content in render_systemd(made("separated")).items():
        (tmp_path / name).write_text(content)
    units = sorted(str(path) for path in tmp_path.glob("*.service"))
    done = subprocess.run([analyze, "verify", *units], capture_output=True, text=True, timeout=120)
    wrong = [line for line in done.stderr.splitlines() if str(tmp_path) in line]
    assert not wrong, done.stderr


def test_compose_has_a_service_for_each_process() -> None:
    deployment = made("separated")
    services = documents(render_compose(make_case(deployment))["compose.yaml"])[0]["services"]
    settings = services.pop("node-settings")
    assert set(services) == {process.name for process in list_processes(deployment)}
    assert settings["privileged"] and settings["command"] == ["sysctl -w vm.swappiness=0\n"]
    decode, router = services["decode-0-1"], services["router-0"]
    assert decode["profiles"] == ["10.0.1.2"] and decode["network_mode"] == "host"
    assert decode["profiles"][0] in settings["profiles"] and "node-settings" in decode["depends_on"]
    assert len(decode["devices"]) == 3 + 16 and "devices" not in router
    assert decode["shm_size"] == "17gb"
    (command,) = decode["command"]
    assert "$$PATH" in command and "source /opt/set_env.sh" in command and "sysctl" not in command
    assert "--node-rank 1" in command and decode["environment"]["HCCL_BUFFSIZE"] == "800"
    assert "healthcheck" not in decode, "only the first node of an instance serves"
    assert "http://10.0.1.1:8001/health" in services["decode-0-0"]["healthcheck"]["test"][-1]
    assert "http://127.0.0.1:6688/health" in router["healthcheck"]["test"][-1]


def test_nodes_have_the_cards_that_the_deployment_says() -> None:
    hardware = {"device": "atlas-800i-a3", "cards": 32, "cards_per_node": 4}
    small = make_case(parse_deployment(separated(hardware=hardware), "made"))
    services = documents(render_compose(small)["compose.yaml"])[0]["services"]
    assert "/dev/davinci7:/dev/davinci7" in services["decode-0-1"]["devices"]
    assert "/dev/davinci8:/dev/davinci8" not in services["decode-0-1"]["devices"]
    assert '"NPU": 8' in render_ray(small)["submit.sh"]


def test_a_health_check_asks_the_server(tmp_path: Path) -> None:
    services = documents(render_compose(make_case(made("mixed")))["compose.yaml"])[0]["services"]
    test = services["mixed-0"]["healthcheck"]["test"]
    assert test[:3] == ["CMD", "bash", "-c"]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = test[3].replace("$$", "$").replace(":7000/", f":{port}/")
        asked = subprocess.Popen(["bash", "-c", command], stderr=subprocess.DEVNULL)
        client, _ = listener.accept()
        with client:
            assert client.recv(4096).startswith(b"GET /health HTTP/1.1")
            client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        assert asked.wait(timeout=30) == 0
    assert subprocess.run(["bash", "-c", command], capture_output=True, timeout=30).returncode


def pod_spec(manifest: dict[str, Any], template: str = "template") -> dict[str, Any]:
    spec = manifest["spec"]
    return spec.get("leaderWorkerTemplate", spec)[template]["spec"]


def test_kubernetes_objects() -> None:
    deployment = made("separated")
    found = documents(render_kubernetes(make_case(deployment))["kubernetes.yaml"])
    objects = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert list(objects) == [
        ("Deployment", "tests-co-prefill-0"),
        ("Service", "tests-co-prefill-0"),
        ("Deployment", "tests-co-prefill-1"),
        ("Service", "tests-co-prefill-1"),
        ("LeaderWorkerSet", "tests-co-decode"),
        ("Service", "tests-co-decode-leader"),
        ("Deployment", "tests-co-router"),
        ("Service", "tests-co-router"),
    ]
    group = objects["LeaderWorkerSet", "tests-co-decode"]
    leader, worker = pod_spec(group, "leaderTemplate"), pod_spec(group, "workerTemplate")
    (container,) = leader["containers"]
    (command,) = container["args"]
    assert group["spec"]["leaderWorkerTemplate"]["size"] == 2
    for pod in (leader, worker):  # each takes a whole machine
        (term,) = pod["affinity"]["podAntiAffinity"].popitem()[1]
        assert term["labelSelector"] == {"matchLabels": {"app": "tests-co-decode"}}
        assert term["topologyKey"] == "kubernetes.io/hostname"
    assert "affinity" not in pod_spec(objects["Deployment", "tests-co-prefill-0"])
    assert '--node-rank "$LWS_WORKER_INDEX"' in command and '--host "$POD_IP"' in command
    assert '--dist-init-addr "$LWS_LEADER_ADDRESS":5000' in command
    assert "readinessProbe" in container and "readinessProbe" not in worker["containers"][0]
    router = pod_spec(objects["Deployment", "tests-co-router"])["containers"][0]["args"][0]
    assert "http://tests-co-decode-leader:8001" in router and "--host 0.0.0.0" in router
    assert "http://tests-co-prefill-1:8000 8999" in router
    store = {"name": "ASCEND_MF_STORE_URL", "value": "tcp://tests-co-prefill-0:24669"}
    assert store in container["env"]


def test_every_port_that_others_call_is_in_a_service() -> None:
    found = documents(render_kubernetes(make_case(made("separated")))["kubernetes.yaml"])
    services = {
        each["metadata"]["name"]: {port["name"]: port["port"] for port in each["spec"]["ports"]}
        for each in found
        if each["kind"] == "Service"
    }
    assert services == {
        "tests-co-prefill-0": {"http": 8000, "bootstrap": 8998, "store": 24669},
        "tests-co-prefill-1": {"http": 8000, "bootstrap": 8999},
        "tests-co-decode-leader": {"http": 8001, "rendezvous": 5000},
        "tests-co-router": {"http": 6688},
    }
    leaders = next(s for s in found if s["metadata"]["name"] == "tests-co-decode-leader")
    assert leaders["spec"]["selector"] == {
        "app": "tests-co-decode",
        "leaderworkerset.sigs.k8s.io/worker-index": "0",
    }


def test_a_pod_of_cpus_has_room_for_weights() -> None:
    """1,342 GB of DeepSeek-R1 in 16 bits on four nodes: a device has them, a CPU's node must."""
    role = {
        "kind": "mixed",
        "nodes": 4,
        "flags": {"model-path": "m", "tp-size": 8, "nnodes": 4, "dtype": "bfloat16"},
    }
    content = {
        "model": {"name": "deepseek-r1", "quantization": "bf16"},
        "roles": {"all": role},
        "engine": "vivace",
    }
    on_cpus = gigabytes(parse_deployment(content, "made"))
    content["hardware"] = {"device": "h200", "cards": 8}
    assert gigabytes(parse_deployment(content, "made")) < 100
    assert 1342 / 4 < on_cpus * 1.074 < 1342 / 4 * 1.5


def gigabytes(deployment: Deployment) -> int:
    """GiB that a node's pod asks for."""
    (share,) = node_shares(make_case(deployment)).values()
    return share.memory


def test_a_pod_of_ascend_has_what_the_engine_needs() -> None:
    found = documents(render_kubernetes(make_case(made("separated")))["kubernetes.yaml"])
    pod = pod_spec(found[0])
    (container,) = pod["containers"]
    assert pod["hostNetwork"] and pod["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert container["securityContext"] == {"privileged": True}
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/usr/local/Ascend/driver", "/usr/local/dcmi", "/etc/hccn.conf", "/dev/shm"} <= mounts
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    assert container["resources"]["limits"]["huawei.com/Ascend910"] == 16
    assert container["resources"]["requests"] == {"cpu": "64", "memory": "145Gi"}
    shared = next(volume for volume in pod["volumes"] if volume["name"] == "shared-memory")
    assert shared["emptyDir"] == {"medium": "Memory", "sizeLimit": "17Gi"}
    (settings,) = pod["initContainers"]
    assert settings["args"] == ["sysctl -w vm.swappiness=0\n"]
    router = pod_spec(found[6])
    assert "hostNetwork" not in router and "initContainers" not in router


def test_probes_give_a_server_an_hour_to_load() -> None:
    (container,) = pod_spec(
        documents(render_kubernetes(make_case(made("mixed")))["kubernetes.yaml"])[0]
    )["containers"]
    patience = {
        name: container[name]["periodSeconds"] * container[name]["failureThreshold"]
        for name in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert patience == {"startupProbe": 3600, "readinessProbe": 30, "livenessProbe": 300}


def test_probes_reach_a_server_without_a_host() -> None:
    deployment = parse_deployment(mixed(), "made")
    for role in deployment.roles.values():
        role.flags.pop("host", None)
    text = render_kubernetes(make_case(deployment))["kubernetes.yaml"]
    found = judge(build_case(import_scripts([("kubernetes.yaml", text)]), Overrides())).findings
    assert "--host" in text and "port-answered" not in {each.rule for each in found}


@pytest.mark.parametrize("name", MADE)
def test_commands_are_blocks_and_nothing_is_shared(name: str) -> None:
    for text in (
        render_kubernetes(make_case(made(name)))["kubernetes.yaml"],
        render_compose(make_case(made(name)))["compose.yaml"],
    ):
        assert "- |" in text and "&id" not in text and "\\n" not in text


def test_dollars_survive_kubernetes_and_compose() -> None:
    """Kubernetes replaces $(NAME), compose ${NAME}; both make one dollar of two."""
    content = mixed(environment={"WORD": "a$(POD_IP)$$b"}, flags={"served-model-name": "$(x)$$"})
    it = make_case(parse_deployment(content, "made"))
    for render in (render_kubernetes, render_compose):
        ((name, text),) = render(it).items()
        (server,) = import_scripts([(name, text)]).deployment.roles.values()
        assert server.flags["served-model-name"] == "$(x)$$"
        environment = import_scripts([(name, text)]).deployment.environment
        assert environment["WORD"] == "a$(POD_IP)$$b"


@pytest.mark.parametrize("name", MADE)
def test_kubernetes_takes_the_objects(name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for each in documents(render_kubernetes(make_case(made(name)))["kubernetes.yaml"]):
        if each["kind"] != "LeaderWorkerSet":
            validate.validate(each, "1.31", strict=True)


GROUP_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "leaderworkerset.x-k8s.io/v1"},
        "kind": {"const": "LeaderWorkerSet"},
        "metadata": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {
                    "type": "string",
                    "maxLength": 63,
                    "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$",
                }
            },
        },
        "spec": {
            "type": "object",
            "required": ["leaderWorkerTemplate"],
            "additionalProperties": False,
            "properties": {
                "replicas": {"type": "integer", "minimum": 0},
                "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
                "rolloutStrategy": {"type": "object"},
                "networkConfig": {
                    "type": "object",
                    "properties": {"subdomainPolicy": {"enum": ["Shared", "UniquePerReplica"]}},
                },
                "leaderWorkerTemplate": {
                    "type": "object",
                    "required": ["workerTemplate"],
                    "additionalProperties": False,
                    "properties": {
                        "size": {"type": "integer", "minimum": 1},
                        "restartPolicy": {
                            "enum": [
                                "Default",
                                "RecreateGroupOnPodRestart",
                                "RecreateGroupAfterStart",
                                "None",
                            ]
                        },
                        "leaderTemplate": {"type": "object", "required": ["spec"]},
                        "workerTemplate": {"type": "object", "required": ["spec"]},
                        "subGroupPolicy": {"type": "object"},
                        "volumeClaimTemplates": {"type": "array"},
                        "persistentVolumeClaimRetentionPolicy": {"type": "object"},
                    },
                },
            },
        },
    },
}
"""what leaderworkerset_types.go and its webhook (kubernetes-sigs/lws, v1) accept"""
MOST_PODS = (1 << 31) - 1


@pytest.mark.parametrize("title", ["Tests & Co.", "3 nodes", "", "x" * 200, "-", "é"])
def test_groups_are_what_their_controller_takes(title: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    deployment = made("separated")
    deployment.name = title
    found = documents(render_kubernetes(make_case(deployment))["kubernetes.yaml"])
    groups = [each for each in found if each["kind"] == "LeaderWorkerSet"]
    assert len(groups) == 1
    names = {(each["kind"] == "Service", each["metadata"]["name"]) for each in found}
    assert len(names) == len(found), "every object has a name of its own"
    for group in groups:
        jsonschema.validate(group, GROUP_SCHEMA)
        template, name = group["spec"]["leaderWorkerTemplate"], group["metadata"]["name"]
        assert group["spec"]["replicas"] * template["size"] <= MOST_PODS
        assert (True, name) not in names, "the controller makes a headless service of this name"
        for part in ("leaderTemplate", "workerTemplate"):
            pod = {"apiVersion": "v1", "kind": "Pod", **template[part]}
            pod["metadata"] = {**pod["metadata"], "name": f"{name}-0-1"}
            assert len(pod["metadata"]["name"]) <= 63
            validate = pytest.importorskip("kubernetes_validate")
            validate.validate(pod, "1.31", strict=True)


def test_ray_jobs_are_pinned_to_their_nodes() -> None:
    text = render_ray(make_case(made("separated")))["submit.sh"]
    lines = [line for line in text.splitlines() if line.startswith("submit ")]
    assert len(lines) == 5
    resources = json.loads(lines[0].split("'")[1])
    assert resources == {"node:10.0.0.1": 0.001, "NPU": 16}
    assert "NPU" not in lines[-1]


def test_ray_is_told_what_is_its_own() -> None:
    """How long a job has for its requests is read outside of the job; two deployments on one
    cluster are told apart."""
    found = made("mixed")
    submitted = render_ray(make_case(found))["submit.sh"]
    assert "--runtime-env-json" not in submitted
    assert "\nsubmit Tests-Co.-mixed-0 " in submitted
    found.environment["RAY_JOB_STOP_WAIT_TIME_S"] = "60"
    words = shlex.split(render_ray(make_case(found))["submit.sh"].splitlines()[-1])
    told = json.loads(words[words.index("--runtime-env-json") + 1])
    assert told == {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}
    assert words.index("--runtime-env-json") < words.index("--")


FAKE_RAY = """#!/usr/bin/env bash
# As Ray 2: `status` fails for a job that it does not know, `submit` for one that it does.
case "$2" in
    status) cat "$JOBS/$3" ;;
    submit) set -C; echo "Status for job '$5': RUNNING" > "$JOBS/$5" ;;
esac
"""


def test_what_runs_is_not_submitted_again(tmp_path: Path) -> None:
    """Nor anything beside it, which would have its ports; what has ended is, as another job."""
    (tmp_path / "submit.sh").write_text(render_ray(make_case(made("separated")))["submit.sh"])
    (tmp_path / "ray").write_text(FAKE_RAY)
    (tmp_path / "ray").chmod(0o755)
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "JOBS": str(jobs)}

    def submit() -> subprocess.CompletedProcess[str]:
        command = ["bash", str(tmp_path / "submit.sh")]
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)

    assert submit().returncode == 0
    first, *others = sorted(jobs.iterdir())
    assert len(others) == 4 and all(one.name.endswith("-1") for one in (first, *others))
    first.write_text(f"Job '{first.name}' failed")
    refused = submit()
    assert refused.returncode == 1 and refused.stderr.count("\n") == 1
    assert "ray job stop" in refused.stderr and len(list(jobs.iterdir())) == 5
    for one in others:
        one.write_text(f"Job '{one.name}' was stopped")
    assert submit().returncode == 0
    assert len(list(jobs.iterdir())) == 10


def test_the_command_writes_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "deployment.yaml"
    spec.write_text(to_yaml(made("separated")))
    for to in ("shell", "systemd", "compose", "kubernetes", "ray"):
        assert main(["render", str(spec), "--to", to, "-o", str(tmp_path / to)]) == 0
        assert list((tmp_path / to).iterdir())
    assert (tmp_path / "shell" / "router-0.sh").stat().st_mode & 0o111
    assert main(["render", str(spec), "--to", "shell", "--engine", "vivace"]) == 0
    shown = capsys.readouterr().out
    assert "-m vivace.launch_server" in shown and "sglang.launch_server" not in shown
    scripts = sorted(str(path) for path in (tmp_path / "shell").glob("*.sh"))
    again = tmp_path / "again.yaml"
    words = ["import", *scripts, "-o", str(again), "--hardware", "a3", "--cards", "32"]
    assert main(words) == 0
    assert load(again).roles.keys() == load(spec).roles.keys()
    assert main(["render", str(tmp_path / "none.yaml"), "--to", "ray"]) == 2


@pytest.mark.parametrize(
    ("engine", "words", "program"),
    [
        ("vivace", (), "vivace.launch_server"),
        ("sglang==0.5.10", (), "sglang.launch_server"),
        ("sglang", ("--engine", "vivace"), "vivace.launch_server"),
        ("vivace", ("--engine", "sglang"), "sglang.launch_server"),
    ],
)
def test_a_file_for_vivace_starts_vivace(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    engine: str,
    words: tuple[str, ...],
    program: str,
) -> None:
    """A role without a program, in a file whose flags are judged as Vivace's."""
    spec = tmp_path / "deployment.yaml"
    spec.write_text(f"engine: {engine}\nroles: {{mixed: {{kind: mixed}}}}\n")
    for to in ("shell", "kubernetes", "ray"):
        assert main(["render", str(spec), "--to", to, *words]) == 0
        shown = capsys.readouterr().out
        started = {each for each in shown.split() if each.endswith(".launch_server")}
        assert started == {program}


def without_hosts(**values: str) -> str:
    """A deployment file"""
    role = {"kind": "mixed", "nodes": 2, "flags": {"nnodes": 2, "use-ray": True, **values}}
    return yaml.safe_dump({"roles": {"all": role}})


@pytest.mark.parametrize("flags", [{"host": "{host}"}, {"dist-init-addr": "{first}:5000"}])
def test_an_address_that_nobody_knows_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: dict[str, str]
) -> None:
    """Of a role without hosts; in Kubernetes pods are told."""
    (flag, value), spec = next(iter(flags.items())), tmp_path / "deployment.yaml"
    spec.write_text(without_hosts(**flags))
    for to in ("shell", "systemd", "compose", "ray"):
        assert main(["render", str(spec), "--to", to]) == 2
        said = capsys.readouterr().err
        assert f"--{flag}" in said and value[:6] in said and "hosts" in said
    assert main(["render", str(spec), "--to", "kubernetes"]) == 0
    assert "{host}" not in (shown := capsys.readouterr().out) and "{first}" not in shown
    found = judge(make_case(load(spec))).findings
    assert [each.severity for each in found if each.flag == f"--{flag}"] == ["warning"]
    assert not [each for each in judge(make_case(made("mixed"))).findings if "{" in each.text]


def test_templates_have_no_addresses(tmp_path: Path) -> None:
    spec = tmp_path / "deployment.yaml"
    spec.write_text(without_hosts(**{"chat-template": "{{host}} {{ first }}"}))
    assert main(["render", str(spec), "--to", "shell"]) == 0


def test_what_somebody_changed_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By both commands, before anything is written; what is as it would be written is nothing to
    ask about, and a folder is none to write over."""
    spec, out, again = tmp_path / "deployment.yaml", tmp_path / "out", tmp_path / "again.yaml"
    spec.write_text(to_yaml(made("separated")))
    render = ["render", str(spec), "--to", "shell", "-o", str(out)]
    assert main(render) == 0
    script, other = sorted(out.glob("*.sh"))[:2]
    read = ["import", str(script), "-o", str(again)]
    assert main(read) == 0
    for words, edited in ((render, script), (read, again)):
        written = edited.read_text()
        assert main(words) == 0
        edited.write_text(written + "# mine\n")
        other.unlink()
        capsys.readouterr()
        assert main(words) == 2
        said = capsys.readouterr().err
        assert edited.name in said and "--force" in said
        assert edited.read_text().endswith("# mine\n") and not other.exists()
        assert main([*words, "--force"]) == 0
        assert edited.read_text() == written
        assert main(render) == 0
    capsys.readouterr()
    assert main([*read[:-1], str(out)]) == 2
    assert "--force" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["schema", "hardware", "models"])
def test_what_is_known_is_printed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command]) == 0
    text = capsys.readouterr().out
    wanted = {"schema": "tpot_ms", "hardware": "atlas-800i-a3", "models": "qwen3-next-80b-a3b"}
    assert wanted[command] in text
    if command != "schema":
        assert max(map(len, text.splitlines())) <= 80
