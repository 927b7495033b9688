"""The generated pages are current, and `vivace flags` finds things."""

from __future__ import annotations

from pathlib import Path

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
    text = render_text("npu", "page-size")
    assert "--page-size" in text and "npu: not available" in text and "cpu:" not in text
    assert "npu: not available" in render_text("npu", "tp_size")
    assert render_text("cpu", "xyzzy") == ""


def test_absent_platforms_are_said_once() -> None:
    text = render_text(None, "page-size")
    assert text.count("npu:") == text.count("cuda:") == 1 and "cpu: works" in text
