"""What a server needs of its machine only later is found before its processes start."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from served_toy import free_port, write_toy_llama
from toy_models import make

from vivace.config.parsing import parse
from vivace.errors import CannotStart
from vivace.launch.configure import configure
from vivace.launch.expert_settings import FOLDER
from vivace.launch.preflight import check_machine, check_own_memory
from vivace.platforms.platform import detect

KEY = {"VIVACE_CLUSTER_KEY": "k" * 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_llama(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixture")
    make("Mixtral", folder, num_local_experts=4)
    return folder


def check(folder: Path, *flags: str, **environment: str) -> None:
    words = ["--model-path", str(folder), "--skip-tokenizer-init", *flags]
    check_machine(configure(parse(words, environment)))


@pytest.mark.parametrize(("name", "why"), [("missing", "No such file"), ("file", "folder")])
def test_a_recorder_has_a_folder(mixture: Path, tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").touch()
    place = {FOLDER: str(tmp_path / name)}
    recorder = "--expert-distribution-recorder-mode", "stat"
    with pytest.raises(CannotStart, match=why) as refused:
        check(mixture, *recorder, **place)
    assert FOLDER in str(refused.value) and name in str(refused.value)
    check(mixture, **place)
    check(mixture, *recorder, **{FOLDER: str(tmp_path)})


@pytest.mark.skipif(
    "kernels" not in detect("cpu").features, reason="several nodes need the native kernels"
)
def test_the_first_node_can_listen(folder: Path) -> None:
    several = "--tp-size", "2", "--nnodes", "2", "--dist-init-addr"
    with pytest.raises(CannotStart, match="machine"):
        check(folder, *several, "192.0.2.1:5000", **KEY)
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(CannotStart, match="port"):
        check(folder, *several, f"127.0.0.1:{taken.getsockname()[1]}", **KEY)
    port = free_port()
    for _ in range(2):
        check(folder, *several, f"127.0.0.1:{port}", **KEY)


def test_a_grammar_backend_is_installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking: set[str] = set()
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name in lacking else object()
    )
    check(folder, "--grammar-backend", "xgrammar")
    lacking.add("xgrammar")
    check(folder, "--grammar-backend", "outlines")
    with pytest.raises(CannotStart, match="pip install xgrammar") as refused:
        check(folder, "--grammar-backend", "xgrammar")
    assert "llguidance or none" in str(refused.value)
    check(folder, "--grammar-backend", "xgrammar", "--is-embedding")  # which has no effect there
    lacking.add("llguidance")
    with pytest.raises(CannotStart, match="pip install llguidance"):
        check(folder, "--grammar-backend", "llguidance")
    check(folder, "--grammar-backend", "none")


def test_a_machine_without_proc(tmp_path: Path) -> None:
    check_own_memory()
    with pytest.raises(CannotStart, match="mount"):
        check_own_memory(tmp_path / "statm")
