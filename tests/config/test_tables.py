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
    assert "npu: not available" in render_text(flag_table("npu", "tp_size"), "npu")
    assert not list(flag_table("cpu", "xyzzy"))


def test_absent_platforms_are_said_once() -> None:
    text = render_text(flag_table(None, "page-size"))
    assert text.count("npu:") == text.count("cuda:") == 1 and "cpu: works" in text


def test_what_works_as_text_and_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    working = {flag for row in flag_table(works="cpu") for flag in row.option.flags}
    others = {flag for row in flag_table() for flag in row.option.flags} - working
    assert "--port" in working and "--speculative-algorithm" in others
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
    assert "works on npu" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["flags", "radix", "--search", "page"])
