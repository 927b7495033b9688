"""Shells complete what the commands' own help says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vivace import cli, completion


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("", set(cli.COMMANDS)),
        ("be", {"bench"}),
        ("bench s", {name for name in cli.BENCHES if name.startswith("s")}),
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


@pytest.mark.parametrize("command", [name for name in cli.COMMANDS if name != "bench"])
def test_every_command_completes_its_flags(command: str) -> None:
    assert completion.candidates([command, "--"]), command


def test_an_installed_completion_works_in_bash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert cli.main(["--install-completion", "bash"]) == 0
    script = tmp_path / "bash-completion/completions/vivace"
    assert str(script) in capsys.readouterr().out
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    ask = f"""
    vivace() {{ {sys.executable} -m vivace "$@"; }}
    source {script}
    COMP_WORDS=(vivace bench one); COMP_CWORD=2; _vivace; echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run([bash, "-c", ask], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "one-batch", done.stderr


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
