"""`vivace check` as people use it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from deployments import case, mixed, separated

from vivace.commands.check import main
from vivace.deploy.report.page import page
from vivace.deploy.report.terminal import skipped_lines
from vivace.deploy.rules.judge import RULES, CheckResult, judge
from vivace.deploy.schema.files import parse_deployment, to_yaml

SCRIPTS = Path(__file__).parent / "scripts"
PUBLISHED = SCRIPTS.with_name("published")
LARGE = ("torch", "numpy", "gguf", "aiohttp", "jinja2")
OF_LIBRARIES = ("typing_extensions", "dataclasses", "difflib", "rich")
NOT_FOR_A_FILE = (
    *("inspect", "pathlib", "shutil", "tree_sitter", "urllib.parse"),
    *("vivace.deploy.from_script.script", "vivace.deploy.from_script.manifests"),
    *("vivace.deploy.from_script.vllm", "vivace.deploy.from_script.isolated"),
    *("vivace.deploy.shell", "vivace.deploy.render", "vivace.deploy.difference"),
    *("vivace.deploy.suggest", "vivace.deploy.report.page", "vivace.deploy.report.machine"),
    *("vivace.config.config", "vivace.config.option", "vivace.protocol", "vivace.doctor"),
)
"""what the check of a deployment file has no use for"""


def spec(folder: Path, content: dict[str, object]) -> Path:
    path = folder / "deployment.yaml"
    path.write_text(to_yaml(parse_deployment(content, "made")))
    return path


def places(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """rule -> role and flag of its first finding"""
    capsys.readouterr()
    main(["--json", *words])
    findings = reversed(json.loads(capsys.readouterr().out)["findings"])
    return {each["rule"]: f"{each['role']} {each['flag']}".strip() for each in findings}


def test_a_sound_deployment_ends_with_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(spec(tmp_path, mixed()))]) == 0
    assert "error" not in capsys.readouterr().out


def test_an_error_is_told_with_place_reason_and_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = spec(tmp_path, mixed(flags={"moe-dense-tp-size": 4}))
    assert main([str(path)]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    for part in ("dense-tp", "mixed --moe-dense-tp-size", "got 4", "-> use 1", "1 error"):
        assert part in shown


def test_json_has_every_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = spec(tmp_path, separated(decode={"page-size": 64}))
    assert main([str(path), "--json", "--memory"]) == 1
    found = json.loads(capsys.readouterr().out)
    (error,) = [each for each in found["findings"] if each["severity"] == "error"]
    assert (error["rule"], error["role"], error["flag"]) == ("handshake", "decode", "--page-size")
    (deployment,) = found["deployments"]
    assert found["errors"] == 1 and deployment["target"] == "sglang"
    assert {plan["role"] for plan in deployment["memory"]} == {"prefill", "decode"}
    assert all(plan["kv_tokens"] > 0 for plan in deployment["memory"])


def test_scripts_are_checked_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(SCRIPTS / "separated.sh"), str(SCRIPTS / "measure.sh")]
    assert main([*words, "--hardware", "a3", "--cards", "32"]) == 0
    assert "DeepSeek-R1" in capsys.readouterr().out
    assert main([*words, "--hardware", "a3", "--cards", "24"]) == 1
    found = places([*words, "--hardware", "a3", "--cards", "24"], capsys)
    assert found["cards"] == "hardware.cards"


def test_one_command_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["python", "-m", "sglang.launch_server", "--model-path", "m", "--dtype", "bfloat1"]
    assert main(["--", *command]) == 1
    assert places(["--", *command], capsys)["flag-value"] == "mixed --dtype"
    newest = ["--target", "sglang==0.5.23", "--", *command[:-2], "--cuda-graph-bs", "4"]
    assert main(newest) == 1
    assert places(newest, capsys)["abbreviated-flag"] == "mixed --cuda-graph-bs"


@pytest.mark.parametrize("flag", ["--model-path", "--speculative-algorithm=NGRAM"])
def test_flags_of_a_server_belong_behind_dashes(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([flag, "m"])
    said = " ".join(capsys.readouterr().err.split())
    assert ended.value.code == 2 and f"vivace check -- vivace serve {flag}" in said
    assert main(["--", flag, "m"]) == 2
    assert "begin it with `vivace serve`" in " ".join(capsys.readouterr().err.split())


def test_vivace_itself_is_a_target(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["vivace", "serve", "--device", "cpu", "--port", "30000"]
    assert main(["--target", "vivace", "--", *command]) == 0
    wrong = ["--target", "vivace", "--", *command, "--attn-cp-size", "2"]
    assert main(wrong) == 1
    assert places(wrong, capsys)["vivace-flag"] == "mixed --attn-cp-size"


@pytest.mark.parametrize("flag", ["--host", "--tp-size", "--tool-call-parser", "--cuda-graph-bs"])
def test_a_flag_without_its_value_is_told_so(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    for program in (["vivace", "serve"], ["python", "-m", "sglang.launch_server"]):
        assert main(["--", *program, "--model-path", "m", flag]) == 1
        assert f"{flag} needs a value" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "flags",
    [
        ["--multi-item-scoring-delimiter", "5"],
        ["--enable-tokenizer-batch-encode", "--enable-dynamic-batch-tokenizer"],
    ],
)
def test_what_only_sglang_stops_at_is_no_error_of_vivace(flags: list[str]) -> None:
    """Both are without effect here, and the start says so."""
    sglang = ["python", "-m", "sglang.launch_server", "--model-path", "m"]
    assert [main(["--", *begin, *flags]) for begin in (["vivace", "serve"], sglang)] == [0, 1]


def test_what_sglang_checks_at_its_start_is_a_rule_of_sglang() -> None:
    named = {
        rule.name for rule in RULES if rule.reason == "SGLang checks it at start-up and stops."
    }
    assert {rule.name for rule in RULES if rule.name in named and not rule.engine} == {"limits"}


def test_memory_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(spec(tmp_path, mixed())), "--memory"]) == 0
    shown = capsys.readouterr().out
    for part in ("experts", "KV cache", "communicators", "tokens of KV", "--mem-fraction-static"):
        assert part in shown


def test_rules_are_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rules"]) == 0
    assert "dispatch-tokens" in capsys.readouterr().out
    assert main(["--explain", "dispatch-tokens"]) == 0
    assert "attention-tp" in capsys.readouterr().out
    assert main(["--explain", "draft-quantization"]) == 0
    assert "draft-quantisation (error)" in capsys.readouterr().out
    assert main(["--explain", "dispatch-token"]) == 2
    assert "did you mean dispatch-tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--"),
        (["none.yaml"], "none.yaml"),
        (["none.sh"], "none.sh"),
        (["a.yaml", "b.yaml"], "vivace check: "),
        (["x.sh", "--", "vivace", "serve"], "--"),
        (["--", "ls"], "'ls'"),
        (["--target", "sglang==9", "--", "vivace", "serve"], "'sglang==9'"),
        (["--hardware", "abacus", "--", "vivace", "serve"], "'abacus'"),
        (["--cards", "8", "--", "vivace", "serve"], "--hardware"),
        (["--cards", "0", "--", "vivace", "serve"], "--cards"),
        (["--model", "gpt-9", "--", "vivace", "serve"], "'gpt-9'"),
        (["--model", "./none.json", "--", "vivace", "serve"], "none.json"),
    ],
)
def test_bad_use_ends_with_two(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert says in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = spec(tmp_path, mixed())
    assert main([str(path), "--html", str(tmp_path / "none" / "page.html")]) == 2
    assert f"{tmp_path / 'none' / 'page.html'}: No such file" in capsys.readouterr().err.replace(
        "\n", " "
    )


@pytest.mark.parametrize("value", [[1, 2], [[1, "a"]], "x", -1, 10**20, 1.5, True, "7" * 5000])
@pytest.mark.parametrize(
    "flag", ["port", "schedule-conservativeness", "tp-size", "cuda-graph-bs", "page-size"]
)
def test_values_of_the_wrong_kind_are_findings(flag: str, value: object) -> None:
    for target in ("sglang", "vivace"):
        judge(case(mixed(flags={flag: value}), target))
        judge(case(separated(decode={flag: value}), target))


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        ([str(SCRIPTS / "separated.sh"), "--hardware", "a3", "--cards", "32"], ()),
        ([str(PUBLISHED / "r1-a3-16c-pd-2k-2k-50ms.yaml")], NOT_FOR_A_FILE),
    ],
)
def test_it_loads_little(words: list[str], absent: tuple[str, ...]) -> None:
    """The bar is a fifth of a second with the interpreter's start."""
    absent = (*LARGE, *OF_LIBRARIES, *absent)
    code = (
        "import sys; from vivace.cli import main; main(sys.argv[1:]); "
        f"print([name for name in {absent!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "check", *words, "--memory"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "[]", done


def test_patterns_of_libraries_wait_for_their_use() -> None:
    code = (
        "from vivace.cli import main; import sys, re; main(sys.argv[1:]); from yaml import reader; "
        "print('search' in vars(reader.Reader.NON_PRINTABLE)); "
        "print(reader.Reader.NON_PRINTABLE.search('a\x07').start(), type(re.compile('a')))"
    )
    file = str(PUBLISHED / "r1-a3-16c-pd-2k-2k-50ms.yaml")
    done = subprocess.run(
        [sys.executable, "-c", code, "check", file], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-2:] == ["False", "1 <class 're.Pattern'>"], done


def test_typing_extensions_can_still_be_loaded_afterwards() -> None:
    code = (
        "from vivace.commands.fast_start import import_msgspec_alone; import_msgspec_alone(); "
        "import typing_extensions, msgspec; "
        "print(typing_extensions.NotRequired, msgspec.convert({'a': 1}, dict[str, int]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("{'a': 1}\n"), done


@pytest.mark.parametrize(("names", "said"), [(["a"], "1 rule "), (["a", "b"], "2 rules ")])
def test_skipped_rules_are_counted(names: list[str], said: str) -> None:
    it = case(mixed())
    verdict = CheckResult(findings=(), skipped={"model": tuple(names)})
    assert said in page(it, verdict) and skipped_lines(verdict)[0].startswith(said)


class Tags(HTMLParser):
    """Every tag that is opened is closed; what is loaded from elsewhere is remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        return

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone(tmp_path: Path) -> None:
    content = separated(decode={"page-size": 64})
    content["name"] = "<script>alert(1)</script>"
    it = case(content)
    text = page(it, judge(it))
    tags = Tags()
    tags.feed(text)
    assert tags.open == [] and tags.loads == [] and "<script" not in text
    for part in ("handshake", "KV cache", "10.0.1.2", "HCCS 196 GB/s", "router :6688"):
        assert part in text
    title = escape(content["name"])
    assert [text.count(before + title) for before in ("<title>", "<h1>", "")] == [1, 1, 2]
    path = tmp_path / "page.html"
    assert main([str(spec(tmp_path, content)), "--html", str(path)]) == 1
    file = str(tmp_path / "deployment.yaml")
    written = re.sub(rf" {re.escape(file)}:\d+", "", path.read_text())  # lines of the file
    assert written == text.replace("made.yaml", file)


@pytest.mark.parametrize("words", [[], ["--"]])
def test_nothing_to_check_says_what_is_expected(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert "expected a deployment file, scripts, or a command after --" in capsys.readouterr().err
