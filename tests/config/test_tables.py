"""The generated pages are current, and `vivace flags` finds things."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vivace.cli import main
from vivace.config.document import documents
from vivace.config.table import flag_table, render_text

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_documents_are_current() -> None:
    for name, text in documents().items():
        assert (DOCS / name).read_text() == text, f"run `make docs`: docs/{name} is out of date"


def test_search_and_platform() -> None:
    rows = list(flag_table("cpu", "radix"))
    assert {"disable_radix_cache", "radix_eviction_policy"} <= {row.option.name for row in rows}
    assert len(rows) < 20
    text = render_text(flag_table("npu", "page-size"), "npu")
    assert "--page-size" in text and "npu: not available" in text and "cpu:" not in text
    assert render_text(flag_table("npu", "kv"), "npu").count("npu:") == 1
    assert not list(flag_table("cpu", "xyzzy"))


def test_absent_platforms_are_said_once() -> None:
    text = render_text(flag_table(None, "page-size"))
    assert text.count("npu:") == text.count("cuda:") == 1 and "cpu: works" in text


def test_what_works_as_text_and_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    working = {flag for row in flag_table(works="cpu") for flag in row.option.flags}
    others = {flag for row in flag_table() for flag in row.option.flags} - working
    assert "--port" in working and "--enable-lora" in others
    assert main(["flags", "--works", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {flag for row in listed for flag in row["flags"]} == working
    assert {row["platforms"]["cpu"]["state"] for row in listed} == {"works"}
    assert set(listed[0]) == {"flags", "subsystem", "values", "default", "meaning", "platforms"}


def test_a_word_is_searched_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flags", "radix"]) == 0
    by_word = capsys.readouterr().out
    assert main(["flags", "oltp"]) == 0
    assert "--otlp-traces-endpoint" in capsys.readouterr().out
    assert main(["flags", "--search", "radix"]) == 0
    assert capsys.readouterr().out == by_word and "--disable-radix-cache" in by_word
    assert main(["flags", "page-size", "--works", "--platform", "npu"]) == 1
    assert "--page-size on npu: not available" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["flags", "radix", "--search", "page"])


def asked(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str], str]:
    """Exit code, the flags that are shown, and all that is said."""
    try:
        code = main(["flags", *words])
    except SystemExit as error:
        code = int(error.code or 0)
    said = capsys.readouterr()
    shown = [line.split()[0].rstrip(",") for line in said.out.splitlines() if "  --" in line[:4]]
    return code, shown, said.out + said.err


@pytest.mark.parametrize("name", ["mem_fraction_static", "lora_paths", "enable_nan_detection"])
def test_a_flag_is_found_by_its_own_spelling(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    flag = f"--{name.replace('_', '-')}"
    state = next(row for row in flag_table("cpu") if row.option.name == name).states["cpu"]
    for question in (flag, f"{flag}=1", name, flag[2:]):
        code, shown, said = asked([question], capsys)
        assert code == 0 and flag in shown and f"cpu: {state}" in said
        assert shown == [flag] or not question.startswith("-")


@pytest.mark.parametrize("question", ["oltp", "--oltp-traces-endpoint"])
def test_what_stands_for_a_retired_spelling_is_shown_too(
    question: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown, said = asked([question], capsys)
    assert (code, shown) == (0, ["--otlp-traces-endpoint"]) and "cpu: not available" in said
    code, _, said = asked([question, "--json"], capsys)
    assert code == 0 and json.loads(said)[0]["platforms"]["cpu"]["state"] == "not available"


@pytest.mark.parametrize("question", ["oltp", "--lora-paths", "lora_paths"])
def test_what_does_not_work_says_why(question: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, said = asked([question, "--works"], capsys)
    assert code == 1 and not shown and "cpu: not available: " in said


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["--mem-fraction-statik"], 1, "--mem-fraction-static"),
        (["tensor-paralel-size"], 1, "--tensor-parallel-size"),
        (["--serach", "radix"], 2, "--search"),
        (["--jsno"], 2, "--json"),
        (["--port", "--host"], 2, "one flag"),
        (["--port", "30000"], 2, "one flag"),
        (["--works", "--platform", "npu"], 1, "npu: not available"),
    ],
)
def test_a_question_without_an_answer_names_what_is_near(
    words: list[str], code: int, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, shown, said = asked(words, capsys)
    assert (found, shown) == (code, []) and part in said
