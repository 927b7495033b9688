"""`vivace doctor` on made-up machines, and on this one."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from terminal import ProcessOnTerminal

from vivace.commands.doctor import apply_fixes, count_text, diagnose, main, parser, probes_for
from vivace.doctor import devices, linux, network, serving
from vivace.doctor import port as port_module
from vivace.doctor.diagnosis import Diagnosis, ProbeOptions, State
from vivace.doctor.serving import NEWEST_PYTHON, OLDEST_PYTHON
from vivace.doctor.system import System
from vivace.platforms.cpu.library import StaleKernels, load_library

SOUND = {
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance",
    "proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n",
    "proc/cpuinfo": "model name\t: A CPU\n",
    "proc/sys/vm/swappiness": "0",
    "proc/sys/kernel/numa_balancing": "0",
    "proc/sys/kernel/sched_migration_cost_ns": "50000",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "sys/fs/cgroup/cpu.max": "max 100000",
    "sys/class/net/lo/operstate": "unknown",
    "sys/class/net/eth0/operstate": "up",
    "sys/class/net/eth0/speed": "25000",
    "run/systemd/timesync/synchronized": "",
}


@dataclass(frozen=True)
class Made(System):
    """A machine of files, with programs and packages that answer as they are told."""

    programs: dict[str, str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ("10.0.0.7",)
    taken: tuple[int, ...] = ()
    owners: dict[int, str] = field(default_factory=dict)
    ours: tuple[int, ...] = ()
    """ports where Vivace answers"""
    kernels: str | None = "avx2"
    """the instruction set; None: they were not built"""
    kernels_stale: bool = False
    embedded: bool = True

    def run(self, words: Sequence[str]) -> str | None:
        return self.programs.get(words[0])

    def version(self, package: str) -> str | None:
        return self.packages.get(package)

    def addresses(self, name: str) -> list[str]:
        return list(self.names)

    def hostname(self) -> str:
        return "node7"

    def listens(self, port: int) -> bool:
        return port in self.taken

    def port_owner(self, port: int) -> str:
        return self.owners.get(port, "")

    def is_vivace(self, port: int) -> bool:
        return port in self.ours

    def isa(self) -> str:
        if self.kernels is None:
            return str(load_library(self.root / "_kernels.so"))
        if self.kernels_stale:
            raise StaleKernels("_kernels.so")
        return self.kernels

    def embedded_model(self) -> Path | None:
        return self.root / "proc/meminfo" if self.embedded else None


def machine(folder: Path, changes: dict[str, str | None] | None = None, **more: object) -> Made:
    for name, content in {**SOUND, **(changes or {})}.items():
        if content is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    return Made(root=folder, **more)  # type: ignore[arg-type]


def hub(folder: Path) -> dict[str, str]:
    """The variables of a machine with one pulled model."""
    snapshot = folder / "hub/models--org--toy/snapshots/abc1234"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").write_bytes(b"x")
    return {"HF_HUB_CACHE": str(folder / "hub")}


Probe = Callable[[System, ProbeOptions], object]
PROBES = (*serving.PROBES, *linux.PROBES[:5], *network.PROBES, *devices.PROBES)


def states(system: System, options: ProbeOptions | None = None) -> dict[str, str]:
    found = diagnose(system, options or ProbeOptions(), PROBES)
    return {each.name: each.state for each in found}


def one(system: System, name: str, options: ProbeOptions | None = None) -> Diagnosis:
    found = diagnose(system, options or ProbeOptions(), (*PROBES, linux.cores))
    return next(each for each in found if each.name == name)


def test_a_sound_node_has_nothing_to_mend(tmp_path: Path) -> None:
    found = states(machine(tmp_path, packages={"torch": "2.13.0"}, environment=hub(tmp_path)))
    assert set(found.values()) == {"ok"}, found


@pytest.mark.parametrize(
    ("file", "content", "name", "state", "mend"),
    [
        ("proc/sys/vm/swappiness", "60", "swappiness", "warning", "vm.swappiness=0"),
        ("proc/sys/kernel/numa_balancing", "1", "numa-balancing", "warning", "numa_balancing=0"),
        (
            "proc/sys/kernel/sched_migration_cost_ns",
            "500000",
            "migration-cost",
            "note",
            "sched_migration_cost_ns=50000",
        ),
        (
            "sys/kernel/mm/transparent_hugepage/enabled",
            "always madvise [never]",
            "huge-pages",
            "note",
            "madvise",
        ),
        (
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
            "powersave",
            "cpu-governor",
            "warning",
            "performance",
        ),
    ],
)
def test_settings_are_found_and_mended(
    tmp_path: Path, file: str, content: str, name: str, state: str, mend: str
) -> None:
    system = machine(tmp_path, {file: content})
    found = one(system, name)
    assert found.state == state and mend in found.mend and found.why
    told = apply_fixes(system, [found])
    assert len(told) == 1 and f"/{file}" in told[0]
    assert one(system, name).state == "ok"


def test_what_may_not_be_written_is_told(tmp_path: Path) -> None:
    system = machine(tmp_path)
    wrong = Diagnosis(name="x", state="note", found="", writes=(("/no/such/folder", "1"),))
    assert "/no/such/folder" in apply_fixes(system, [wrong])[0]


def test_a_container_has_fewer_cores(tmp_path: Path) -> None:
    changes = {f"sys/devices/system/cpu/cpu{index}/online": "1" for index in range(8)}
    found = one(machine(tmp_path, {**changes, "sys/fs/cgroup/cpu.max": "200000 100000"}), "cores")
    assert found.state == "note" and "--cpu-threads 2" in found.mend


def test_network(tmp_path: Path) -> None:
    system = machine(
        tmp_path,
        environment={"http_proxy": "http://p:3128", "HCCL_SOCKET_IFNAME": "bond9"},
        names=("127.0.1.1",),
        taken=(8001,),
    )
    options = ProbeOptions(ports=(8000, 8001))
    assert "8001" in one(system, "ports", options).found
    known = replace(system, owners={8001: "process 4711 (nginx)"})
    found = one(known, "ports", options)
    assert found.found == "8001 taken by process 4711 (nginx)" and "ss -ltnp" not in found.mend
    assert one(system, "proxies").mend == "unset http_proxy"
    assert "bond9" in one(system, "interfaces").found and "eth0" in one(system, "interfaces").found
    assert "/etc/hosts" in one(system, "address").mend


def test_proxies_that_leave_the_node_alone_are_a_note(tmp_path: Path) -> None:
    environment = {"https_proxy": "http://p", "no_proxy": "127.0.0.1,localhost"}
    assert one(machine(tmp_path, environment=environment), "proxies").state == "note"


def test_a_clock_that_is_not_set(tmp_path: Path) -> None:
    made = machine(
        tmp_path, {"run/systemd/timesync/synchronized": None}, programs={"timedatectl": "no"}
    )
    assert one(made, "clock").mend == "timedatectl set-ntp true"


ASCEND = {
    "dev/davinci0": "",
    "dev/davinci1": "",
    "usr/local/Ascend/driver/version.info": "Version=25.0.rc1",
    "usr/local/Ascend/ascend-toolkit/latest/version.cfg": "[runtime_running_version=[8.5.0:x]]",
}


@pytest.mark.parametrize(
    ("torch", "npu", "torch_state", "cann_state"),
    [
        ("2.9.0+cpu", "2.9.0", "ok", "ok"),
        ("2.7.1", "2.7.1.post2", "ok", "ok"),
        ("2.13.0", "2.9.0", "error", "ok"),
        ("2.12.0", "2.12.0", "ok", "warning"),
    ],
)
def test_versions_that_go_together(
    tmp_path: Path, torch: str, npu: str, torch_state: str, cann_state: str
) -> None:
    made = machine(tmp_path, dict(ASCEND), packages={"torch": torch, "torch_npu": npu})
    found = states(made)
    assert (found["torch-pairing"], found["cann-pairing"]) == (torch_state, cann_state)
    assert found["ascend-devices"] == "ok"


def test_a_toolkit_without_devices(tmp_path: Path) -> None:
    found = states(machine(tmp_path, {key: ASCEND[key] for key in list(ASCEND)[2:]}))
    assert found["ascend-devices"] == "error" and found["torch-npu"] == "error"


def test_nvidia(tmp_path: Path) -> None:
    changes: dict[str, str | None] = {
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 570.86.10"
    }
    assert one(machine(tmp_path, changes), "cuda").state == "error"
    made = machine(tmp_path, changes, programs={"nvidia-smi": "NVIDIA H200, 143771 MiB"})
    assert "570.86.10: NVIDIA H200" in one(made, "cuda").found


@pytest.mark.parametrize(
    ("changes", "more", "name", "state", "says"),
    [
        ({}, {"packages": {}}, "torch", "error", "pip install torch==2.13.0"),
        ({}, {"packages": {"torch": "2.6.1+cpu"}}, "torch", "error", "2.7 and 2.13 to 2.15"),
        ({}, {"packages": {"torch": "2.7.0"}}, "torch", "ok", "2.7.0"),
        ({}, {"packages": {"torch": "3.0.0a1"}}, "torch", "note", "3.0.0a1"),
        ({}, {"packages": {"torch": "2.12.1"}}, "torch", "note", "2.7 and 2.13 to 2.15"),
        ({}, {"kernels": None}, "kernels", "warning", "no C++ compiler"),
        ({}, {"kernels_stale": True}, "kernels", "error", "make kernels"),
        ({}, {"kernels": "neon"}, "kernels", "ok", "neon runs (A CPU"),
        ({"proc/meminfo": "MemTotal: 300000 kB\n"}, {}, "memory", "error", "0.6 GiB"),
        ({}, {}, "memory", "ok", "7.6 of 15.3 GiB free"),
        ({}, {"embedded": False}, "models", "ok", "none embedded; pulled: org/toy"),
        (
            {},
            {"embedded": False, "environment": {"HF_HUB_CACHE": "/no"}},
            "models",
            "warning",
            "pull",
        ),
        ({}, {"environment": {"HF_HUB_CACHE": "/" + "a" * 300}}, "models", "warning", "too long"),
        ({}, {"taken": (30000,)}, "ports", "error", "30000 taken"),
        ({}, {"taken": (30000,), "ours": (30000,)}, "ports", "note", "Vivace"),
    ],
)
def test_what_every_server_needs(
    tmp_path: Path,
    changes: dict[str, str | None],
    more: dict[str, object],
    name: str,
    state: str,
    says: str,
) -> None:
    found = one(machine(tmp_path, changes, **{"environment": hub(tmp_path), **more}), name)
    assert found.state == state and says in f"{found.found} {found.why} {found.mend}"
    assert state not in ("error", "warning") or (found.why and found.mend)
    assert "vivace doctor" not in f"{found.found} {found.why} {found.mend}", "it is what speaks"


def test_the_releases_are_those_of_the_page() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
    pythons = (serving.range_text(each, each) for each in (OLDEST_PYTHON, NEWEST_PYTHON))
    torches = (serving.range_text(*each) for each in serving.TESTED_TORCH)
    assert f"Python {' and '.join(pythons)}; torch {' and '.join(torches)}." in page.read_text()


def test_clusters_settings_are_for_nodes_of_clusters(tmp_path: Path) -> None:
    laptop, node = machine(tmp_path / "laptop"), machine(tmp_path / "node", {"dev/davinci0": ""})
    asked = {
        words: probes_for(system, parser().parse_args(words.split()[1:])) == serving.PROBES
        for words, system in (
            ("laptop", laptop),
            ("laptop --platform npu", laptop),
            ("laptop deployment.yaml", laptop),
            ("node", node),
            ("node --platform cpu", node),
        )
    }
    assert [words for words, short in asked.items() if short] == ["laptop", "node --platform cpu"]


@pytest.mark.parametrize("columns", [80, 100])
def test_a_laptop_fits_on_a_screen(columns: int) -> None:
    words = [sys.executable, "-m", "vivace", "doctor", "--port", str(free_port())]
    with ProcessOnTerminal(words, columns) as doctor:
        assert doctor.wait() == 0
    lines = doctor.terminal.lines()
    assert 7 <= len(lines) <= 22 and max(map(len, lines)) <= columns
    names = [line.split()[1] for line in lines[:-1] if not line.startswith(" ")]
    assert names == ["python:", "torch:", "kernels:", "memory:", "models:", "ports:"]


@pytest.mark.parametrize(
    ("states", "text"),
    [
        (("ok", "ok"), "0 problems, 2 ok"),
        (("error", "unknown", "ok"), "1 problem, 1 unknown, 1 ok"),
        (("unknown", "unknown"), "0 problems, 2 unknown, 0 ok"),
        (("warning", "note", "error"), "2 problems, 1 note, 0 ok"),
        (("note", "note", "ok"), "0 problems, 2 notes, 1 ok"),
    ],
)
def test_what_no_probe_can_tell_is_counted_apart(states: tuple[State, ...], text: str) -> None:
    found = [Diagnosis(name="probe", state=state, found="it") for state in states]
    assert count_text(found) == text


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_the_command_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["--json", "--port", str(port)]) == 1
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert f"{port} taken by process {os.getpid()} (" in found["ports"]["found"]
    assert found["torch"]["state"] == "ok"
    assert main(["--all", "--port", "70000"]) == 2


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\nServer: vivace\r\n\r\n", 0),
        (b"HTTP/1.1 200 OK\r\nServer: nginx\r\nX-Server: vivace\r\n\r\nServer: vivace\r\n", 1),
        (b"SSH-2.0-OpenSSH_9.6\r\n", 1),
        (b"x" * 100_000, 1),
        (b"", 1),
        (None, 1),
    ],
)
def test_a_vivace_that_runs_is_nothing_to_mend(
    answer: bytes | None,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """None: whoever listens never answers."""
    monkeypatch.setattr(port_module, "ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as clients:

        def serve() -> None:
            client = clients.enter_context(server.accept()[0])
            client.recv(4096)
            if answer is not None:
                with suppress(OSError):
                    client.sendall(answer)
                client.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        number = server.getsockname()[1]
        assert main(["--json", "--port", str(number)]) == code
        thread.join(10)
    (found,) = (each for each in json.loads(capsys.readouterr().out) if each["name"] == "ports")
    assert found["state"] == ("error" if code else "note") and str(number) in found["found"]


def test_a_deployment_says_what_to_look_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "deployment.yaml"
    path.write_text(
        "roles: "
        "{mixed: {kind: mixed, flags: {port: 31987}, environment: {HCCL_SOCKET_IFNAME: none9}}}"
    )
    assert main([str(path), "--json"]) == 1
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert "31987" in found["ports"]["found"] and "none9" in found["interfaces"]["found"]


@pytest.mark.parametrize(
    ("hard", "begins"),
    [(1 << 20, "ulimit -n 65536"), (1024, "printf '* - nofile 65536\\nroot - nofile 65536\\n'")],
)
def test_a_limit_is_mended_by_a_command(hard: int, begins: str) -> None:
    found = linux.limit("open-files", 1024, hard, 65536, "-n", "why")
    assert found.state == "warning" and found.mend.startswith(begins)
    assert hard > 1024 or "| sudo tee /etc/security/limits.d/vivace-nofile.conf" in found.mend
