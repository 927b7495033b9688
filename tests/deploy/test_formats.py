"""What `vivace check` writes for programs: JSON, annotations of GitHub, SARIF; and the hook."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml
from deployments import separated
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft4Validator, Draft202012Validator, FormatChecker
from test_mutations import DEPLOYED, FOLDER
from test_rules import PAIRS

from vivace.commands.check import FORMATS, main
from vivace.commands.deploy import main as deploy
from vivace.deploy.catalogue.hardware import GIB
from vivace.deploy.document import DOCS
from vivace.deploy.load_case import Overrides, build_case, open_files
from vivace.deploy.memory.plan import plans
from vivace.deploy.report.github import annotation
from vivace.deploy.report.machine import report_schema
from vivace.deploy.report.page import page
from vivace.deploy.rules.judge import RULES, Finding, judge
from vivace.deploy.schema.files import parse_deployment, to_yaml

ROOT = DOCS.parent
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
SOUND, BROKEN = FOLDER / "chat.yaml", "roles: {chat: {kind: mixed, flags: {tp-size: 3.5}}}\n"
COMMAND = ["--", "python", "-m", "sglang.launch_server", "--model-path", "m", "--dtype", "float1"]


def output(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    code = main(words)
    return code, capsys.readouterr().out


@pytest.fixture
def cases(tmp_path: Path) -> dict[str, list[str]]:
    """Words for `vivace check` by what they lead to."""
    wrong = tmp_path / "with space, and: more" / "prefill%.yaml"
    wrong.parent.mkdir()
    wrong.write_text(to_yaml(parse_deployment(separated(decode={"page-size": 64}), "made")))
    (tmp_path / "no.yaml").write_text("name: [x\n")
    return {
        "sound": [str(SOUND)],
        "wrong": [str(wrong)],
        "wrong scripts": [str(FOLDER / "first_node.sh"), str(FOLDER / "two_servers.sh")],
        "unreadable": [str(tmp_path / "no.yaml")],
        "a command": COMMAND,
        "several": ["--each", str(SOUND), str(wrong), str(FOLDER / "laptop.sh")],
        "one unreadable": ["--each", str(wrong), str(tmp_path / "no.yaml"), str(SOUND)],
    }


CODES = {
    "sound": 0,
    "wrong": 1,
    "wrong scripts": 0,
    "unreadable": 2,
    "a command": 1,
    "several": 1,
    "one unreadable": 2,
}


@pytest.mark.parametrize("name", CODES)
def test_every_format_ends_with_the_same_code(
    name: str, cases: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    codes = {each: output(["--format", each, *cases[name]], capsys)[0] for each in FORMATS}
    assert codes == dict.fromkeys(FORMATS, CODES[name])


def closed(schema: Any) -> Any:
    """The schema without room for fields it does not know."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    return {**inner, "additionalProperties": False} if "properties" in schema else inner


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("extra", [[], ["--memory"]])
def test_json_is_as_its_schema_says(
    name: str, extra: list[str], cases: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    schema = json.loads((DOCS / "check.schema.json").read_text())
    assert schema == report_schema(), "run `make docs`"
    report = json.loads(output(["--json", *extra, *cases[name]], capsys)[1])
    Draft202012Validator(closed(schema)).validate(report)
    assert report["schema"] == 1 and bool(report["failures"]) == (CODES[name] == 2)
    assert report["errors"] == sum(each["severity"] == "error" for each in report["findings"])
    assert report["errors"] == sum(each["errors"] for each in report["deployments"])


def test_a_difference_is_as_its_schema_says(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--diff", "0.5.10", "0.5.23", "--json", "--", *COMMAND[1:-2], "--cuda-graph-bs", "8"]
    code, text = output(words, capsys)
    report = json.loads(text)
    Draft202012Validator(closed(report_schema())).validate(report)
    assert code == 1 and (report["from"], report["to"]) == ("0.5.10", "0.5.23")
    assert any(each["breaks"] for each in report["changes"])


def test_a_schema_with_a_mistake_would_be_noticed() -> None:
    wrong = {"schema": 1, "version": "", "errors": 0, "deployments": [], "findings": [{}]}
    assert not Draft202012Validator(closed(report_schema())).is_valid({**wrong, "failures": []})


def as_the_runner_reads(line: str) -> tuple[str, dict[str, str], str]:
    """(command, properties, message) of a workflow command: actions/toolkit, command.ts."""

    def plain(text: str, more: dict[str, str]) -> str:
        for code, letter in {**more, "%0D": "\r", "%0A": "\n", "%25": "%"}.items():
            text = text.replace(code, letter)
        return text

    head, _, message = line.removeprefix("::").partition("::")
    kind, _, listed = head.partition(" ")
    pairs = [each.partition("=") for each in listed.split(",")]
    properties = {name: plain(value, {"%3A": ":", "%2C": ","}) for name, _, value in pairs}
    return kind, properties, plain(message, {})


TEXTS = st.text(st.sampled_from("ab%:,=\r\n 0A23C"), min_size=1, max_size=20)


@given(TEXTS, TEXTS, TEXTS)
def test_annotations_survive_any_text(text: str, role: str, flag: str) -> None:
    finding = Finding(rule="rule", severity="doc", file="", role=role, flag=flag, line=0, text=text,
                      remedy="", source="")  # fmt: skip
    line = annotation(finding, "/")
    assert "\n" not in line and "\r" not in line
    kind, properties, message = as_the_runner_reads(line)
    assert (kind, message) == ("notice", text)
    assert properties == {"title": f"rule ({role} {flag})"}


HOSTILE = {
    "a name of two lines": "a\n::error::injected\n.sh",
    "a name that is a command": "::error::injected.sh",
    "a command of old runners": "##[error]injected.sh",
    "a terminal's codes": "\x1b[31m\x9b2J\x07.sh",
    "no UTF-8": os.fsdecode(b"\xff.sh"),
    "read from right to left": "\u202ehs.sh",
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", HOSTILE)
def test_names_and_values_of_strangers_are_text(
    form: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They steer no terminal and no CI system, and nothing fails on them."""
    path = tmp_path / HOSTILE[name]
    values = "".join(f"--served-model-name '{value}:' " for value in HOSTILE.values())
    path.write_bytes(os.fsencode(f"python -m sglang.launch_server --model-path m {values}"))
    for words in ([str(path)], ["--each", str(path), str(tmp_path / ("no" + HOSTILE[name]))]):
        capsys.readouterr()
        code = main(["--format", form, *words])
        said = capsys.readouterr()
        assert code == (2 if "--each" in words else 1)
        for line in (said.out + said.err).split("\n"):
            assert line.isprintable() or form == "github"
            assert not {"\x1b", "\x9b", "\r"} & set(line)
            (line + "\n").encode()
            if form == "github" and line.startswith("::"):
                kind, properties, _ = as_the_runner_reads(line)
                assert kind in ("group", "endgroup") or properties["title"]
            else:
                assert not line.startswith("::")
        if form in ("json", "sarif"):
            json.loads(said.out)


@pytest.mark.parametrize("workspace", [True, False])
def test_annotations_stand_at_their_lines(
    workspace: bool,
    cases: dict[str, list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(FOLDER if workspace else tmp_path)
    if workspace:
        monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    else:
        monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    lines = output(["--format", "github", *cases["wrong"]], capsys)[1].splitlines()
    (error,) = [as_the_runner_reads(line) for line in lines if line.startswith("::error ")]
    findings = json.loads(output(["--json", *cases["wrong"]], capsys)[1])["findings"]
    assert error[1]["file"] == "with space, and: more/prefill%.yaml"
    assert int(error[1]["line"]) == findings[0]["line"] > 1
    assert error[2] == f"{findings[0]['text']}\n-> {findings[0]['remedy']}"
    assert not [line for line in lines if line.startswith("::notice")]
    with_notes = output(["--format", "github", "--notes", *cases["wrong"]], capsys)[1]
    assert with_notes.count("\n::notice ") == sum(
        each["severity"] in ("note", "doc") for each in findings
    )


SARIF = json.loads((Path(__file__).parent / "sarif-schema-2.1.0.json").read_text())
"""The schema of OASIS without its descriptions (definition 2.1.0-rtm.5), as the npm package
@microsoft/jest-sarif 1.0.0-beta.0 has it, under the MIT license"""


@pytest.mark.parametrize("name", CODES)
def test_sarif_is_as_its_standard_says(
    name: str,
    cases: dict[str, list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    log = json.loads(output(["--format", "sarif", *cases[name]], capsys)[1])
    Draft4Validator(SARIF, format_checker=FormatChecker()).validate(log)
    (run,) = log["runs"]
    assert [each["id"] for each in run["tool"]["driver"]["rules"]] == [each.name for each in RULES]
    assert run["invocations"][0]["executionSuccessful"] == (CODES[name] != 2)
    findings = json.loads(output(["--json", *cases[name]], capsys)[1])["findings"]
    assert len(run["results"]) == len(findings)
    for result, finding in zip(run["results"], findings, strict=True):
        assert result["ruleId"] == RULES[result["ruleIndex"]].name == finding["rule"]
        place = result.get("locations", [{}])[0].get("physicalLocation")
        assert (place is None) == (name == "a command")
        if place is not None:
            assert place["region"]["startLine"] == finding["line"]
            assert resolve_path(place["artifactLocation"], run, tmp_path) == Path(finding["file"])


def resolve_path(location: dict[str, str], run: dict[str, Any], root: Path) -> Path:
    """Of a URI reference, which is relative to the root, or whole and of a file."""
    uri = location["uri"]
    assert re.fullmatch(r"(?:[\w.~!$&'()*+;=@/:-]|%[0-9A-F]{2})+", uri)
    if "uriBaseId" not in location:
        return Path(unquote(uri.removeprefix("file://")))
    assert location["uriBaseId"] in run["originalUriBaseIds"]
    assert not uri.startswith("/") and ":" not in uri.split("/")[0]
    return root / unquote(uri)


@pytest.mark.parametrize(
    "words",
    [
        ["--format", "sarif", "--memory"],
        ["--format", "github", "--diff", "0.5.9", "0.5.10"],
        ["--json", "--suggest"],
        ["--each", "--html", "page.html"],
        ["--each", "--write"],
    ],
)
def test_flags_without_effect_are_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, str(SOUND)]) == 2
    said = capsys.readouterr().err
    assert any(word in said for word in words if word.startswith("--") and word != "--each")


def test_formats_are_loaded_only_where_they_are_written() -> None:
    code = (
        "import sys; from vivace.cli import main; main(sys.argv[1:]); "
        "print(*[name for name in sys.modules if name.startswith('vivace.deploy.report.')])"
    )
    words = [sys.executable, "-c", code, "check", str(SOUND)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    modules = done.stdout.splitlines()[-1].split()
    assert sorted(each.rpartition(".")[2] for each in modules) == ["groups", "terminal"], done


def judge_content(content: dict[str, Any], folder: Path) -> list[Finding]:
    """Of a deployment or a script, judged as a file."""
    script = content.get("script")
    path = folder / ("made.sh" if script is not None else "made.yaml")
    path.write_text(script if script is not None else to_yaml(parse_deployment(content, "made")))
    return list(judge(build_case(open_files([path]), Overrides())).findings)


@pytest.mark.parametrize("rule", PAIRS)
def test_every_finding_stands_in_a_line(rule: str, tmp_path: Path) -> None:
    for finding in judge_content(PAIRS[rule].bad, tmp_path):
        lines = Path(finding.file).read_text().splitlines()
        assert 1 <= finding.line <= len(lines), finding


def test_every_finding_about_sound_deployments_stands_in_its_own_file() -> None:
    for deployed in DEPLOYED.values():
        files = [str(FOLDER / name) for name in deployed.files]
        for finding in judge(build_case(open_files(files), deployed.facts)).findings:
            assert finding.file in files and finding.line > 0, finding


def commit(folder: Path, files: dict[str, str]) -> list[str]:
    """A fresh repository with these files; what the hook matches of them."""
    own = {"HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"]}
    subprocess.run(["git", "init", "-q"], cwd=folder, env=own, check=True, timeout=60)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    subprocess.run(["git", "add", "."], cwd=folder, env=own, check=True, timeout=60)
    listed = subprocess.run(
        ["git", "ls-files"], cwd=folder, env=own, check=True, timeout=60, stdout=subprocess.PIPE
    ).stdout.decode().split()  # fmt: skip
    (hook,) = HOOKS
    return [name for name in listed if re.search(hook["files"], name)]


def run_hook(folder: Path, files: list[str]) -> subprocess.CompletedProcess[str]:
    """As pre-commit does: the entry's words, then the files, from the root of the repository."""
    (hook,) = HOOKS
    program, *words = hook["entry"].split()
    assert program == "vivace" and hook["language"] == "system"
    entry = [str(Path(sys.executable).with_name(program)), *words, *files]
    return subprocess.run(entry, cwd=folder, capture_output=True, text=True, timeout=60)


def test_the_hook_checks_what_it_matches(tmp_path: Path) -> None:
    sound = {
        "chat/deployment.yaml": SOUND.read_text(),
        "docker-compose.prod.yml": (FOLDER / "compose.yaml").read_text(),
        "start.sh": (FOLDER / "experts.sh").read_text(),
        "tools/clean.sh": "rm -rf build\n",
        "--target=x.sh": "rm -rf build\n",
        "notes.yaml": "anything: else\n",
        "README.md": "words\n",
    }
    matched = commit(tmp_path, sound)
    assert matched == ["chat/deployment.yaml", "docker-compose.prod.yml", "start.sh",
                       "tools/clean.sh"]  # fmt: skip
    done = run_hook(tmp_path, matched)
    assert done.returncode == 0, done
    assert "tools/clean.sh: it starts no server" in done.stderr
    (tmp_path / "start.sh").write_text(sound["start.sh"].replace("--dp-size 16", "--dp-size 12"))
    done = run_hook(tmp_path, matched)
    assert done.returncode == 1 and "start.sh:14" in done.stdout, done


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_the_memory_table_keeps_its_columns(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is folded stays in the column that it began in."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    main(["--memory", str(FOLDER / "halves.yaml")])
    lines = capsys.readouterr().out.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("memory of one device"))
    rows = lines[start + 1 : next(at for at, line in enumerate(lines) if "--mem-fraction" in line)]
    assert all(len(line) <= columns for line in rows) and len(rows) > 6
    for before, line in itertools.pairwise(rows):
        if line.startswith("   "):
            begin = len(line) - len(line.lstrip())
            assert before[begin - 1] == " " and before[begin:].strip(), (before, line)


def test_the_memory_bar_has_an_axis_and_a_total() -> None:
    it = build_case(open_files([str(SOUND)]), Overrides())
    text = page(it, judge(it))
    (plan,) = [each for _, each in plans(it)]
    assert re.findall(r">([\d.]+) GiB</text>", text)[-5:] == ["0", "16", "32", "48", "64"]
    assert f"<b>{sum(part.size for part in plan.parts) / GIB:.2f} GiB</b>" in text


def test_lengths_of_the_command_line_keep_the_concurrency_of_the_benchmark() -> None:
    case = build_case(open_files([str(FOLDER / "split_box.sh")]), Overrides(input=100))
    assert (case.load.input, case.load.output, case.load.concurrency) == (100, 512, 32)


def test_what_prompts_share_can_be_stated_on_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = build_case(open_files([str(SOUND)]), Overrides(prefix_share=0.5))
    assert case.workload.prefix_share == 0.5
    assert main([str(SOUND), "--prefix-share", "1.5"]) == 2
    assert "--prefix-share must be between 0 and 1" in capsys.readouterr().err


def test_weights_are_named_when_a_script_is_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "made.yaml"
    words = [str(FOLDER / "every_node.sh"), "-o", str(path), "--hardware", "a3", "--cards", "16"]
    assert deploy(["import", *words, "--model", "qwen3-480b", "--quantization", "w4a8"]) == 0
    assert yaml.safe_load(path.read_text())["model"]["quantization"] == "w4a8"
    assert "weights-fit" not in output([str(path)], capsys)[1]
