"""From options to what will run, before any process is started."""

from __future__ import annotations

import json
import logging
import signal
import socket
from pathlib import Path

import pytest
from toy_config import LLAMA

from vivace.checkpoint.source import SourceError
from vivace.checkpoint.weights import CheckpointError
from vivace.commands import serve as launch
from vivace.errors import CANNOT_START
from vivace.launch import child as process
from vivace.offline.build import resolve_arguments
from vivace.platforms.cpu.library import LIBRARY
from vivace.supervisor import supervisor
from vivace.supervisor.child import spawn
from vivace.supervisor.messages import Failure
from vivace.supervisor.supervisor import Plan


def model(folder: Path, **changes: object) -> str:
    (folder / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    return str(folder)


def test_an_unknown_architecture_stops_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "spawn_engine", lambda argv, shared: None)
    monkeypatch.setattr(
        launch, "launch", lambda config, engine, memory: pytest.fail("it was started")
    )
    path = model(tmp_path, architectures=["XyzzyForCausalLM"])
    assert launch.main(["--model-path", path, "--load-format", "dummy"]) == CANNOT_START
    assert "XyzzyForCausalLM" in capsys.readouterr().err


def test_the_offline_api_refuses_it_too(tmp_path: Path) -> None:
    path = model(tmp_path, architectures=["XyzzyForCausalLM"])
    with pytest.raises(SourceError, match="XyzzyForCausalLM"):
        resolve_arguments({"model_path": path, "load_format": "dummy"})


def test_the_offline_api_logs_decisions_and_notices(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "vivace")
    asked = {"model_path": model(tmp_path), "load_format": "dummy", "verbose": True}
    resolve_arguments({**asked, "sleep_on_idle": True})
    lines = {record.getMessage(): record.levelname for record in caplog.records}
    assert any(line.startswith("--page-size: unset -> ") for line in lines)
    assert lines["--sleep-on-idle has no effect: an idle engine always sleeps"] == "WARNING"


@pytest.mark.parametrize("skipped", [False, True])
def test_skip_server_warmup_reaches_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skipped: bool
) -> None:
    plans: list[Plan] = []

    class Supervisor:
        def __init__(self, plan: Plan, *_: object) -> None:
            plans.append(plan)

        def run(self) -> int:
            return 0

    monkeypatch.setattr(supervisor, "Supervisor", Supervisor)
    monkeypatch.setattr(launch, "spawn_engine", lambda argv, shared: None)
    argv = ["--model-path", model(tmp_path), "--load-format", "dummy", "--port", "0"]
    argv += ["--skip-tokenizer-init", *(["--skip-server-warmup"] if skipped else [])]
    assert launch.main(argv) == 0
    assert [plan.warm_up for plan in plans] == [not skipped]


def test_sglangs_warmups_are_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "spawn_engine", lambda argv, shared: None)
    argv = ["--model-path", model(tmp_path), "--load-format", "dummy", "--warmups", "voice_chat"]
    assert launch.main(argv) == CANNOT_START
    told = capsys.readouterr().err
    assert "--warmups voice_chat is not available: SGLang's routines" in told


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--preferred-sampling-params", '{"top_p": 7}'], "top_p"),
        (["--preferred-sampling-params", '{"temprature": 1}'], "temprature"),
        (["--chat-template", "no-such-template"], "neither a file nor a built-in template"),
        (["--chat-template", "{}/broken.jinja"], "does not compile"),
        (["--chat-template", "{}/latin.jinja"], "latin.jinja"),
        (["--tokenizer-path", "{}/empty"], "no tokenizer.json"),
        ([], "no tokenizer.json"),
    ],
)
def test_what_frontends_would_trip_over_stops_the_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    said: str,
) -> None:
    monkeypatch.setattr(launch, "spawn_engine", lambda argv, shared: None)
    monkeypatch.setattr(
        launch, "launch", lambda config, engine, memory: pytest.fail("it was started")
    )
    path = model(tmp_path)
    if flags:
        (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.jinja").write_text("{% if %}")
    (tmp_path / "latin.jinja").write_bytes(b"caf\xe9")
    argv = [*(word.replace("{}", str(tmp_path)) for word in flags), "--load-format", "dummy"]
    assert launch.main(["--model-path", path, *argv]) == CANNOT_START
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1


NODE = ("--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "127.0.0.1:5000")


@pytest.mark.parametrize("flags", [("--dp-size", "2", "--enable-dp-attention"), NODE])
def test_an_engine_that_was_spawned_in_vain_leaves_no_zombie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    if flags == NODE and not LIBRARY.is_file():
        pytest.skip("nodes need the native kernels")
    ahead = spawn("engine", lambda role, control: ["sleep", "60"])
    found: list[int | None] = []

    def serve(*_: object) -> int:
        found.append(ahead.process.returncode)
        return 0

    monkeypatch.setattr(launch, "spawn_engine", lambda argv, shared: ahead)
    monkeypatch.setattr(launch, "launch", serve)
    monkeypatch.setattr("vivace.launch.node.run_node", serve)
    argv = ["--model-path", model(tmp_path), "--load-format", "dummy", "--skip-tokenizer-init"]
    assert launch.main([*argv, "--tp-size", "2", *flags]) == 0
    assert found == [-signal.SIGKILL]
    ahead.close()


@pytest.mark.parametrize(
    ("words", "spawned"),
    [
        (["--node-rank", "1"], False),
        (["--node-rank=1"], False),
        (["--node-rank", "1", "--node-rank=0"], True),
        (["--node-rank", "0"], True),
        (["--model-path", "--node-rank-1"], True),
        ([], True),
    ],
)
def test_a_node_that_has_no_engine_spawns_none(
    monkeypatch: pytest.MonkeyPatch, words: list[str], spawned: bool
) -> None:
    monkeypatch.setattr(launch, "spawn", lambda role, *_, **__: role)
    monkeypatch.delenv("VIVACE_EXECUTOR", raising=False)
    found = launch.spawn_engine(words, launch.Descriptors(memory=3, engine=4))
    assert found == ("engine" if spawned else None)


class ListeningLine:
    """Stands in for the line to the supervisor."""

    def __init__(self) -> None:
        self.sent: list[object] = []

    def send(self, message: object) -> None:
        self.sent.append(message)


@pytest.mark.parametrize(
    ("error", "said", "traced"),
    [
        (CheckpointError("toy.safetensors: the tensor 'w' is missing"), "toy.safetensors", False),
        (RuntimeError("our own mistake"), "RuntimeError: our own mistake", True),
    ],
)
def test_a_child_shows_a_traceback_only_for_our_own_mistakes(
    error: Exception,
    said: str,
    traced: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    line, (ours, theirs) = ListeningLine(), socket.socketpair()

    def fail(*_: object) -> None:
        raise error

    for name in ("die_with", "leave_signals_to_the_supervisor"):
        monkeypatch.setattr(process, name, lambda *_: None)
    monkeypatch.setattr(process.log_lines, "setup", lambda *_: None)
    monkeypatch.setattr(process, "child_end", lambda sock: line)
    monkeypatch.setattr(process, "run", fail)
    with ours:
        number = str(theirs.detach())
        code = process.main(["engine", "--control", number, "--parent", "1"])
    (failure,) = line.sent
    assert isinstance(failure, Failure) and failure.text.startswith(said)
    assert [bool(record.exc_info) for record in caplog.records] == ([True] if traced else [])
    assert code == (1 if traced else CANNOT_START)
