"""Shells complete what the commands' own help says."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from descriptors import is_readable

from vivace import cli, completion
from vivace.commands import COMMANDS
from vivace.commands.bench import BENCHES


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("", set(COMMANDS)),
        ("be", {"bench"}),
        ("bench s", {name for name in BENCHES if name.startswith("s")}),
        ("deploy r", {"render"}),
        ("flags --platform ", {"cpu", "cuda", "npu"}),
        ("serve --max-running", {"--max-running-requests"}),
        ("serve --model-path ", set()),
        ("nonsense ", set()),
        ("nonsense --he", {"--help"}),
    ],
)
def test_candidates(typed: str, expected: set[str]) -> None:
    found = completion.candidates(typed.split(" "))
    assert set(found) == expected


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "bench"])
def test_every_command_completes_its_flags(command: str) -> None:
    assert completion.candidates([command, "--"]), command


STARTS = {"bash": ["bash", "--norc", "-i"], "zsh": ["zsh", "-i"], "fish": ["fish"]}


@pytest.mark.parametrize("shell", STARTS)
def test_the_tab_key_completes_when_what_the_installation_says_is_done(
    shell: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert cli.main(["--install-completion", shell]) == 0
    said = capsys.readouterr().out
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    program = tmp_path / "bin/vivace"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vivace "$@"\n')
    program.chmod(0o755)
    line = {
        "bash": re.search(r"~/.bashrc:  (.*)", said),
        "zsh": re.search(r"~/.zshrc has\n  (.*)", said),
    }.get(shell)
    (tmp_path / ".zshrc").write_text(line[1] + "\n" if line else "")
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "ZDOTDIR": str(tmp_path),
        "TERM": "xterm",
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(cli.__file__).parents[1]),
    }
    ours, theirs = pty.openpty()
    words = ["setsid", "--ctty", *STARTS[shell]]  # fish wants the terminal to be its own
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        if shell == "bash" and line:
            os.write(ours, f"{line[1]}\n".encode())
        os.write(ours, b"echo be''gun\n")
        read_until(ours, "begun")
        os.write(ours, b"vivace bench one\t")
        read_until(ours, "-batch")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(file: int, text: str) -> None:
    seen, deadline = "", time.monotonic() + 60
    while text not in seen:
        assert time.monotonic() < deadline, seen
        if is_readable(file, 0.1):
            seen += os.read(file, 1 << 16).decode(errors="replace")


@pytest.mark.parametrize("shell", completion.SCRIPTS)
def test_scripts_are_shown(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--show-completion", shell]) == 0
    script = capsys.readouterr().out
    assert "vivace --complete" in script
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    done = subprocess.run([program, "-n", "/dev/stdin"], input=script, text=True, timeout=20)
    assert done.returncode == 0


def test_a_shell_that_is_not_known_or_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert cli.main(["--install-completion"]) == 2
    assert "tcsh" in capsys.readouterr().err
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    assert cli.main(["--install-completion", "bash"]) == 1
    assert str(tmp_path) in capsys.readouterr().err
