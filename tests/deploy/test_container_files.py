"""Dockerfiles, systemd units and standard input are read as launch scripts are."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from vivace.commands.check import main
from vivace.deploy.files import MAX_BYTES, is_silent
from vivace.deploy.from_script.roles import LoadedDeployment
from vivace.deploy.from_script.script import import_files, import_scripts
from vivace.deploy.load_case import Overrides, build_case
from vivace.deploy.rules.judge import Finding, judge

EXEC = """\
# syntax=docker/dockerfile:1
ARG RELEASE=0.5.10
FROM lmsysorg/sglang:v${RELEASE}-cu130 AS base
ENV HF_HOME=/data \\
    # between
    TP="4" ROOT=/models
ENV MODEL $ROOT/q
RUN <<EOF
CMD ["never"]
EOF
ENTRYPOINT ["python3", "-m", "sglang.launch_server"]
EXPOSE 8000
CMD ["--model-path", "/models/q", \\

     "--tp", "4", \\
     "--port", "8000"]
"""
SHELL = """\
from ubuntu
env TP=4
cmd exec python3 -m sglang.launch_server \\
    --model-path /m \\
    --tp $TP
"""
UNIT = """\
# a comment
[Unit]
Description=%i
[Service]
Environment="HF_HOME=/data x" TP=4
Environment=MORE="--dtype half"
EnvironmentFile=-/etc/default/sglang
ExecStartPre=/bin/mkdir -p /x
ExecStart=-/opt/bin/python -m sglang.launch_server \\
    --model-path /models/%i \\
; between
    --tp ${TP} $MORE \\
    --host 0.0.0.0 --port 8000
[Install]
WantedBy=multi-user.target
"""
SERVER = "python -m sglang.launch_server --model-path m"


def read(content: str, name: str = "any") -> LoadedDeployment:
    return import_scripts([(name, content)])


def findings(content: str, name: str = "any") -> list[Finding]:
    found = judge(build_case(read(content, name), Overrides())).findings
    return [each for each in found if each.severity in ("error", "warning")]


def test_a_dockerfile_with_lists() -> None:
    found = read(EXEC)
    (server,) = found.started
    assert server.flags == {"model-path": "/models/q", "tp": 4, "port": 8000}
    assert server.environment == {
        "HF_HOME": "/data", "TP": "4", "ROOT": "/models", "MODEL": "/models/q"
    }  # fmt: skip
    assert (server.place.line, server.place.end) == (11, 16)
    assert found.deployment.engine == "sglang==0.5.10"


def test_a_dockerfile_with_a_line_of_the_shell() -> None:
    (server,) = read(SHELL).started
    assert server.flags == {"model-path": "/m", "tp": 4}


def test_a_systemd_unit() -> None:
    found = read(UNIT)
    (server,) = found.started
    assert server.flags == {
        "model-path": "/models/<%i>", "tp": "<$TP>", "dtype": "half", "host": "0.0.0.0",
        "port": 8000
    } | {"tp": 4}  # fmt: skip
    assert server.environment == {"HF_HOME": "/data x", "TP": "4", "MORE": "--dtype half"}
    (remark,) = found.remarks
    assert remark.line == 7 and "EnvironmentFile=-/etc/default/sglang is not read" in remark.text


@pytest.mark.parametrize("name", ["/etc/default/sglang", "-./sglang"])
def test_files_of_variables_beside_a_unit_are_read(name: str, tmp_path: Path) -> None:
    """They come after Environment=, wherever it stands; a mistake in them has their line."""
    unit = tmp_path / "sglang.service"
    unit.write_text(UNIT.replace("-/etc/default/sglang", name))
    (tmp_path / "sglang").write_text("# sizes\nTP=8\nSGLANG_ENABLE_SPEC_V9=1\n")
    found = import_files([unit])
    (server,) = found.started
    assert server.flags["tp"] == 8 and found.remarks == ()
    (finding,) = (each for each in judge(build_case(found, Overrides())).findings
                  if each.rule == "unknown-variable")  # fmt: skip
    assert (finding.file, finding.line) == (str(tmp_path / "sglang"), 3)


@pytest.mark.parametrize(
    ("content", "before", "after", "rule", "line"),
    [
        (EXEC, '"--tp", "4"', '"--tp", "x"', "flag-value", 15),
        (EXEC, '"--port"', '"--prot"', "unknown-flag", 16),
        (EXEC, 'ENTRYPOINT ["python3"', "ENTRYPOINT ['python3'", "not-understood", 11),
        (EXEC, '"/models/q"', '"$MODEL"', "variable-from-outside", 13),
        (SHELL, "--tp $TP", "--tp-szie $TP", "unknown-flag", 5),
        (SHELL, "env TP", "arg TP", "variable-from-outside", 5),
        (SHELL, "env TP=4", "env SGLANG_ENABLE_SPEC_V9=4", "unknown-variable", 2),
        (UNIT, "--port 8000", "--prot 8000", "unknown-flag", 13),
        (UNIT, "TP=4", "TP=x", "flag-value", 12),
    ],
)
def test_mistakes_are_found_at_their_lines(
    content: str, before: str, after: str, rule: str, line: int
) -> None:
    assert before in content
    found = findings(content.replace(before, after))
    assert (rule, line) in {(each.rule, each.line) for each in found}, found


@pytest.mark.parametrize("content", [EXEC, SHELL])
def test_what_is_right_is_silent(content: str) -> None:
    assert findings(content) == []


def test_stages_and_what_they_take_over() -> None:
    build = "FROM a AS build\nCMD ['make'\nFROM x\n"
    taken = f"FROM a AS one\nENV A=1\nFROM one\nCMD {SERVER}\n"
    (server,) = read(build + taken).started
    assert server.environment == {"A": "1"} and server.place.line == 7
    image = 'FROM vllm/vllm-openai:v0.11\nCMD ["--model", "m"]\n'
    assert [each.flags["model-path"] for each in read(image).started] == ["m"]


@pytest.mark.parametrize("line", ["cat <<< word", "echo $((1 << N))", "cat <<'EOF' >x\nCMD a\nEOF"])
def test_what_follows_a_run_is_not_lost(line: str) -> None:
    (server,) = read(f"FROM a\nRUN {line}\nCMD {SERVER}\n").started
    assert server.flags == {"model-path": "m"}


def test_a_script_that_is_copied_is_read(tmp_path: Path) -> None:
    (tmp_path / "start.sh").write_text(f"set -e\nexec {SERVER} --prot 1\n")
    for copied, started in (
        ("COPY start.sh /opt/", "/opt/start.sh"),
        ("WORKDIR /w\nCOPY start.sh .", "/w/start.sh"),
        ("COPY --chown=1000:1000 --link start.sh /opt/", "/opt/start.sh"),
    ):
        file = tmp_path / "Dockerfile"
        file.write_text(f'FROM a\n{copied}\nENTRYPOINT ["{started}"]\n')
        from vivace.deploy.load_case import open_files

        (found,) = judge(build_case(open_files([file]), Overrides())).findings[:1]
        assert (found.rule, found.file, found.line) == (
            "unknown-flag", str(tmp_path / "start.sh"), 2,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("FROM a\nENV A=" + "x" * 1000 + "\n" + "ENV A=$A$A\n" * 40, "more than 65536 characters"),
        ("FROM a\n" + "ENV A=1\n" * 100_000, "more than 4096 instructions"),
        ("FROM a\n" * 1000, "more than 128 stages"),
        ("FROM a\nCMD " + "[" * 100_000, "no server"),
        ("FROM a\nENV A='x\n", "line 2: No closing quotation"),
        ("[Service]\n" + "ExecStart=a\n" * 10_000, "more than 4096 settings"),
        ("[Service]\nExecStart=a\n" + "-a\n" * 10_000, "more than 4096 settings"),
        ("[Service]\nExecStart=a 'b\n", "line 2: No closing quotation"),
        ("[Service]\nExecStart=" + "\\\n" * 400_000, "no server"),
        (f"[Service]\nEnvironment=A;id=1\nExecStart={SERVER}; touch x; $(touch y) `touch z`", ""),
    ],
)
def test_hostile_ones_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, says: str
) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(content)
    code = main([str(path)])
    err = capsys.readouterr().err
    assert code == 2 if says else code in (0, 1)
    assert says in err and len(err) < 1000 and err.count("\n") <= 1
    assert [each.name for each in tmp_path.iterdir()] == ["Dockerfile"]


def piped(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
@pytest.mark.parametrize(
    "content",
    [
        f"{SERVER} --prot 1\n",
        f"cat <<EOF\nservices: []\nEOF\n{SERVER} --prot 1\n",
        f"FROM a\nCMD {SERVER} --prot 1\n",
        f"[Service]\nExecStart={SERVER} --prot 1\n",
        f"# a\nservices:\n  a:\n    command: {SERVER} --prot 1\n",
        "---\nkind: Pod\napiVersion: v1\nspec: {containers: [{command: [sglang, serve, m, --prot, "
        '"1"]}]}\n',
        "\ufeffname: x\nroles:\n  a: {kind: mixed, flags: {prot: 1}}\n",
    ],
)
def test_standard_input_is_read(
    content: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    piped(monkeypatch, content.encode())
    assert main([name]) == 1
    out = capsys.readouterr().out
    assert "unknown-flag" in out and "--prot <stdin>:" in out


def test_a_silent_standard_input_is_told_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal, ours = os.openpty()
    os.write(terminal, f"{SERVER} --prot 1\n\4".encode())
    with os.fdopen(ours) as typed, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", typed)
        assert main(["-"]) == 1
    os.close(terminal)
    assert capsys.readouterr().err.startswith("<stdin>: ")
    out, into = os.pipe()
    with os.fdopen(out) as read_end, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", read_end)
        assert is_silent(0)
        os.write(into, b"x")
        assert not is_silent(0)
    os.close(into)


def test_standard_input_has_the_limits_of_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    piped(monkeypatch, b"#" * (MAX_BYTES + 1))
    assert main(["-"]) == 2
    assert capsys.readouterr().err == "vivace check: <stdin>: larger than 1 MiB\n"
    piped(monkeypatch, b"")
    assert main(["-"]) == 2 and "<stdin>" not in capsys.readouterr().out
    piped(monkeypatch, b"roles: {}\n")
    assert main(["--suggest", "--write", "-"]) in (0, 2)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("x.service", "[Service]\nEnvironment=", "\n"),
        ("x.service", "[Service]\nExecStart=", "\n"),
        ("Dockerfile", "FROM a\nENV A=", "\n"),
        ("pod.yaml", "apiVersion: v1\nkind: Pod\nspec: {containers: [{command: ", "}]}\n"),
    ],
)
def test_text_of_a_megabyte_is_not_split_into_words(
    name: str, before: str, after: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.write_text(before + "a" * (MAX_BYTES - 1024) + after)
    assert main([str(file)]) == 2
    assert "more than 65536 characters" in capsys.readouterr().err
