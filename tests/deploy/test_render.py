"""What is rendered starts the same processes, and is what its reader takes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from deployments import mixed, separated

from vivace.deploy.catalogue.hardware import find_device
from vivace.deploy.command import main
from vivace.deploy.from_script.script import import_scripts
from vivace.deploy.quoting import quote
from vivace.deploy.render.compose import render_compose
from vivace.deploy.render.kubernetes import render_kubernetes
from vivace.deploy.render.process import list_processes
from vivace.deploy.render.ray import render_ray
from vivace.deploy.render.shell import render_shell
from vivace.deploy.render.systemd import render_systemd
from vivace.deploy.schema.deployment import Deployment
from vivace.deploy.schema.files import load, parse_deployment, to_yaml

A3 = find_device("atlas-800i-a3")
MADE = {"mixed": mixed(), "separated": separated()}


def made(name: str) -> Deployment:
    found = parse_deployment(MADE[name], name)
    found.name = "Tests & Co."
    found.prepare = ["source /opt/set_env.sh", "sysctl -w vm.swappiness=0"]
    found.unset = ["https_proxy"]
    found.environment["PATH"] = "/opt/it's/bin:<$PATH>"
    return found


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
    for file, content in render_ray(made(name), A3).items():
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
    services = documents(render_compose(deployment, A3)["compose.yaml"])[0]["services"]
    assert set(services) == {process.name for process in list_processes(deployment)}
    decode = services["decode-0-1"]
    assert decode["profiles"] == ["10.0.1.2"] and decode["network_mode"] == "host"
    assert len(decode["devices"]) == 3 + 16 and "devices" not in services["router-0"]
    (command,) = decode["command"]
    assert "$$PATH" in command and "source /opt/set_env.sh" in command and "sysctl" not in command
    assert "--node-rank 1" in command and decode["environment"]["HCCL_BUFFSIZE"] == "800"


def test_kubernetes_objects() -> None:
    deployment = made("separated")
    found = documents(render_kubernetes(deployment, A3)["kubernetes.yaml"])
    kinds = [(each["kind"], each["metadata"]["name"]) for each in found]
    assert kinds == [
        ("Deployment", "tests-co-prefill-0"),
        ("Service", "tests-co-prefill-0"),
        ("Deployment", "tests-co-prefill-1"),
        ("Service", "tests-co-prefill-1"),
        ("Service", "tests-co-prefill"),
        ("LeaderWorkerSet", "tests-co-decode"),
        ("Service", "tests-co-decode"),
        ("Deployment", "tests-co-router"),
        ("Service", "tests-co-router"),
    ]
    group = found[5]["spec"]["leaderWorkerTemplate"]
    container = group["leaderTemplate"]["spec"]["containers"][0]
    command = container["command"][2]
    assert group["size"] == 2 and '--node-rank "$LWS_WORKER_INDEX"' in command
    assert (
        '--dist-init-addr "$LWS_LEADER_ADDRESS":5000' in command and '--host "$POD_IP"' in command
    )
    assert container["resources"]["limits"] == {"huawei.com/Ascend910": 16}
    assert "readinessProbe" in container
    assert "readinessProbe" not in group["workerTemplate"]["spec"]["containers"][0]
    router = found[7]["spec"]["template"]["spec"]["containers"][0]["command"][2]
    assert "http://tests-co-decode:8001" in router and "--host 0.0.0.0" in router
    assert "http://tests-co-prefill-1:8000 8999" in router
    store = {"name": "ASCEND_MF_STORE_URL", "value": "tcp://tests-co-prefill-0:24669"}
    assert store in container["env"]


@pytest.mark.parametrize("name", MADE)
def test_kubernetes_takes_the_objects(name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for each in documents(render_kubernetes(made(name), A3)["kubernetes.yaml"]):
        if each["kind"] != "LeaderWorkerSet":
            validate.validate(each, "1.31", strict=True)


def test_ray_jobs_are_pinned_to_their_nodes() -> None:
    text = render_ray(made("separated"), A3)["submit.sh"]
    lines = [line for line in text.splitlines() if line.startswith("ray job submit")]
    assert len(lines) == 5
    resources = json.loads(lines[0].split("'")[1])
    assert resources == {"node:10.0.0.1": 0.001, "NPU": 16}
    assert "NPU" not in lines[-1]


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
    assert main(words) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["render", str(tmp_path / "none.yaml"), "--to", "ray"]) == 2


@pytest.mark.parametrize("command", ["schema", "hardware", "models"])
def test_what_is_known_is_printed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command]) == 0
    text = capsys.readouterr().out
    wanted = {"schema": "tpot_ms", "hardware": "atlas-800i-a3", "models": "qwen3-next-80b-a3b"}
    assert wanted[command] in text
