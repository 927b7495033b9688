"""Files of strangers, made to hang, to crash, to write elsewhere or to steer a terminal or CI."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from vivace.commands.check import main as check
from vivace.commands.deploy import main as deploy
from vivace.deploy.from_script.script import import_scripts
from vivace.deploy.quoting import quote
from vivace.deploy.schema.deployment import Deployment
from vivace.deploy.schema.files import load, to_yaml
from vivace.deploy.shell.reader import ScriptError

SERVER = "python -m sglang.launch_server --model-path m"
DOUBLED = "a: &a {k: 1}\n" + "".join(
    f"b{at}: &b{at} {{<<: [*{before}, *{before}]}}\n"
    for at, before in enumerate(["a", *(f"b{i}" for i in range(29))])
)
ALIASES = "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9 if before else 'x' * 9)}]\n"
    for before, name in zip(["", *"cdefgh"], "cdefghi", strict=True)
)
POD = "apiVersion: v1\nkind: Pod\n"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("deep.yaml", "a: " + "[" * 100_000, "nested more than 200 deep"),
        ("keys.yaml", "? " * 50_000, "nested more than 200 deep"),
        ("pod.yaml", POD + "x: " + "[" * 100_000, "nested more than 200 deep"),
        ("merge.yaml", DOUBLED + "roles: {m: {<<: *b29}}\n", "more than 100000 values"),
        ("merge-pod.yaml", POD + DOUBLED + "spec: {containers: [*b29]}\n", "more than 100000"),
        ("alias.yaml", ALIASES + "roles: *i\n", "more than 100000 values"),
        ("alias-pod.yaml", POD + ALIASES + "spec: {containers: *i}\n", "more than 100000 values"),
        ("latin.yaml", b"name: x\nmodel: {path: \xff}\n", "line 2: not UTF-8"),
        ("nul.yaml", "name: \0\n", "YAML does not allow the character at position 6"),
        ("nul.sh", f"#!/bin/sh\n{SERVER} \0\n", "no text: line 2 has a NUL"),
        ("utf16.sh", SERVER.encode("utf-16"), "no text: line 1 has a NUL"),
        ("words.sh", SERVER + " x" * 200_000, "words"),
        ("array.sh", "A=(" + "x " * 200_000 + ")\n" + SERVER, "words"),
        ("eval.sh", 'a=\'eval "$a$a"\'\neval "$a"\n', "eval.sh"),
        ("many.sh", "".join(f"{SERVER} --port {i} --x{i} &\n" for i in range(900)), "at most 256"),
        (
            "many.yaml",
            "roles:\n" + "".join(f"  r{at}: {{kind: mixed}}\n" for at in range(300)),
            "300 roles: at most 256",
        ),
        ("nodes.sh", f"{SERVER} --tp 2 --nnodes {10**20} --node-rank 0", "at most 4096"),
        ("nodes.yaml", "roles: {a: {kind: mixed, instances: 60000, nodes: 9}}", "at most 4096"),
    ],
)
def test_files_that_explode_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str | bytes, says: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    began = time.process_time()
    assert check([str(path)]) == 2
    assert time.process_time() - began < 10  # seconds or minutes: what was mended took minutes
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line and len(line) < 1000


@pytest.mark.parametrize(
    "text",
    [
        'roles: {"../../evil": {kind: mixed}}',
        'roles: {"a\\ntouch x": {kind: mixed}}',
        'roles: {"a/b": {kind: mixed}}',
        'roles: {"": {kind: mixed}}',
        'environment: {"A=1; touch x; B": "1"}',
        'roles: {m: {kind: mixed, environment: {"A\\nB": "1"}}}',
        'roles: {m: {kind: mixed, each: [{environment: {"$(x)": "1"}}]}}',
        'benchmarks: [{environment: {"A B": "1"}}]',
        'unset: ["A; touch x"]',
    ],
)
def test_names_are_names_wherever_they_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "deployment.yaml"
    path.write_text(text + "\n")
    out = tmp_path / "out" / "below"
    assert deploy(["render", str(path), "--to", "shell", "-o", str(out)]) == 2
    assert "is no name of" in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["deployment.yaml"]


@pytest.mark.parametrize("arguments", [["--diff", "0.5.10", "0.5.23"], ["--suggest"], ["--notes"]])
def test_no_value_steers_a_terminal_or_ci(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    path = tmp_path / "deployment.yaml"
    path.write_text(
        "hardware: {device: a3, cards: 8}\nmodel: {name: qwen3-32b}\nworkload: {concurrency: 8}\n"
        'roles: {m: {kind: mixed, flags: {"torchao-config": "\\e[2J\\n::error::x", '
        '"tp-size\\e[2J\\n::error::y": 4, device: npu, host: "a\\u202eb"}}}\n'
    )
    check([*arguments, str(path)])
    captured = capsys.readouterr()
    for line in (captured.out + captured.err).splitlines():
        assert line.isprintable() and not line.startswith("::")


def test_a_byte_order_mark_is_no_part_of_a_script(tmp_path: Path) -> None:
    for name, content in (
        ("start.sh", SERVER),
        ("start.yaml", f"services:\n  a: {{command: {SERVER}}}\n"),
    ):
        path = tmp_path / name
        path.write_bytes(b"\xef\xbb\xbf" + content.encode().replace(b"\n", b"\r\n") + b"\r\n")
        assert check([str(path)]) == 0


ODD = ["\x1b[2J", "a\n::error::x\n##[x]", "a\u202eb", "\x9b1m'\\", "tab\tand\r", "\u0007é中 $'x'"]


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("to", ["shell", "systemd", "compose", "kubernetes", "ray"])
def test_rendered_values_steer_nothing_and_are_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], to: str, value: str
) -> None:
    path = tmp_path / "deployment.yaml"
    role = {
        "kind": "mixed",
        "flags": {"model-path": "m", "torchao-config": value, "port": 8000},
        "environment": {"ODD": value, "MORE": f"<$PATH>:{value}"},
        "hosts": ["h" + value],
    }
    path.write_text(json.dumps({"roles": {"m": role}, "unset": ["A"]}))
    assert deploy(["render", str(path), "--to", to]) == 0
    out = capsys.readouterr().out
    for line in out.split("\n"):
        assert line.replace("\t", " ").isprintable() and not line.lstrip().startswith(("::", "##["))
    if to == "shell":
        program = "import os, sys; print(ascii([sys.argv[1], os.environ['ODD']]))"
        word = next(each for each in out.split("\n") if each.startswith("export ODD="))
        shown = word.removeprefix("export ODD=")
        script = f"{word}\n{shlex.quote(sys.executable)} -c {shlex.quote(program)} {shown}\n"
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, check=True, timeout=20
        )
        assert done.stdout == ascii([value, value]) + "\n"
    if to == "compose":
        service = yaml.safe_load(out.partition("\n")[2])["services"]["m-0"]
        assert service["environment"]["ODD"] == value.replace("$", "$$")


@pytest.mark.parametrize("value", ODD)
def test_imported_values_steer_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    path = tmp_path / "start.sh"
    path.write_bytes(f"export ODD={quote(value)}\n{SERVER}\n".encode())
    path.with_suffix(".yaml").write_text(to_yaml(Deployment(environment={"ODD": value})))
    assert load(path.with_suffix(".yaml")).environment == {"ODD": value}
    for arguments in (["import", str(path)], ["import", str(path), "--name", value]):
        assert deploy(arguments) == 0
        for line in capsys.readouterr().out.split("\n"):
            assert line.isprintable() and not line.lstrip().startswith(("::", "##["))


@pytest.mark.parametrize(
    "text",
    [
        'prepare: ["echo \\e[2J"]\nroles: {m: {kind: mixed}}',
        'prepare: ["true\\n::error::x"]\nroles: {m: {kind: mixed}}',
        'roles: {m: {kind: mixed, environment: {A: "a\\0b"}}}',
    ],
)
def test_what_cannot_be_quoted_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "deployment.yaml"
    path.write_text(text + "\n")
    assert deploy(["render", str(path), "--to", "shell"]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert captured.out == "" and line.isprintable() and ("prepare" in line or "NUL" in line)


@pytest.mark.parametrize(
    "text",
    [
        "name: {long}\nroles: {{m: {{kind: mixed}}}}",
        "roles: {{m: {{kind: mixed, flags: {{{long}: 1}}}}}}",
        "roles: {{m: {{kind: mixed, flags: {{tp-size: {long}}}}}}}",
        "roles: {{m: {{kind: mixed, environment: {{SGLANG_{long}: '1'}}}}}}",
        "model: {{name: {long}}}\nroles: {{m: {{kind: mixed}}}}",
        "{long}: 1\nroles: {{m: {{kind: mixed}}}}",
    ],
)
def test_long_names_are_not_printed_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "deployment.yaml"
    plain = "X" * 99_000  # YAML's simple keys are shorter
    path.write_text(text.format(long=plain if "SG" in text else '"' + "x" * 500_000 + '"'))
    for style in ("text", "github", "sarif"):
        check(["--notes", "--format", style, str(path)])
        captured = capsys.readouterr()
        assert all(len(line) < 50_000 for line in (captured.out + captured.err).splitlines())


IMAGE = "FROM lmsysorg/sglang:v0.5.10\n"
START = 'CMD ["sglang", "serve", "--model-path", "x"]\n'
STAGES = ("FROM a AS b\n" + START) * 100


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("Dockerfile", IMAGE + "CMD [{words}]\n", "words"),
        ("Dockerfile", IMAGE + "ENV A={long}\n" + "ENV B=$A\n" * 4000 + START, "variables of more"),
        ("Dockerfile", IMAGE + "ARG A={long}\n" + "ARG B=$A\n" * 4000 + START, "variables of more"),
        ("Dockerfile", IMAGE + "COPY {files} /{long}\n" + START, "files copied"),
        ("Dockerfile", IMAGE + "ENV A={huge} B=2\n" + START, "characters"),
        ("Dockerfile", IMAGE[:-1] + " AS a\nENV {names}\n" + STAGES, "containers of more"),
        ("a.service", "[Service]\nEnvironment=A={huge}\nExecStart=sglang serve\n", "characters"),
        ("a.service", "[Service]\nExecStart=sglang serve {huge}\n", "characters"),
        (
            "a.yaml",
            "services: {{a: {{image: lmsysorg/sglang, command: '{huge}'}}}}\n",
            "characters",
        ),
    ],
)
def test_what_grows_with_its_square_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, said: str
) -> None:
    """A megabyte of these took minutes, or gigabytes."""
    path = tmp_path / name
    words = ", ".join(f'"x$A{number}"' for number in range(60_000))
    files = " ".join(f"a{number}" for number in range(60_000))
    names = " ".join(f"A{number}=1" for number in range(6000))
    path.write_text(
        text.format(words=words, files=files, names=names, long="b" * 60_000, huge="b" * 900_000)
    )
    begin = time.process_time()
    assert check([str(path)]) == 2
    assert time.process_time() - begin < 10
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("roles", [1, 2])
def test_of_too_many_servers_parts_are_offered_where_there_are_parts(roles: int) -> None:
    script = f"{SERVER} --nnodes 5000 --node-rank $R\n"
    if roles > 1:
        script += f"{SERVER} --disaggregation-mode decode --port 7000\n"
    with pytest.raises(ScriptError) as refused:
        import_scripts([("a.sh", script)])
    assert ("parts" in str(refused.value)) == (roles > 1)
