"""Files of strangers, made to hang, to crash, to write elsewhere or to steer a terminal or CI."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from vivace.deploy.check import main as check
from vivace.deploy.command import main as deploy

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
        ("words.sh", SERVER + " x" * 200_000, "words"),
        ("array.sh", "A=(" + "x " * 200_000 + ")\n" + SERVER, "words"),
        ("eval.sh", 'a=\'eval "$a$a"\'\neval "$a"\n', "eval.sh"),
        ("many.sh", "".join(f"{SERVER} --port {i} --x{i} &\n" for i in range(900)), "at most 256"),
        (
            "many.yaml",
            "roles:\n" + "".join(f"  r{at}: {{kind: mixed}}\n" for at in range(300)),
            "300 roles: at most 256",
        ),
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
