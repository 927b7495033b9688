from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.observability.log import LineFormatter, escape, level_number, setup


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_lines_have_the_form_that_tools_parse(stream: io.StringIO) -> None:
    setup("info", "engine", stream=stream)
    logging.getLogger("vivace.x").info("Decode batch. #running-req: %d", 3)
    logging.getLogger("vivace.x").debug("not shown")
    logging.getLogger("vivace.x").warning("careful")
    first, second = stream.getvalue().splitlines()
    stamp = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert re.fullmatch(stamp + r" engine\] Decode batch\. #running-req: 3", first)
    assert re.fullmatch(stamp + r" engine WARNING\] careful", second)


def test_supervisor_lines_carry_only_the_time(stream: io.StringIO) -> None:
    setup("WARN", stream=stream)
    logging.getLogger("vivace").info("quiet")
    logging.getLogger("vivace").error("loud")
    assert re.fullmatch(r"\[[-\d]+ [:\d]+ ERROR\] loud\n", stream.getvalue())


def test_nobody_forges_a_line(stream: io.StringIO) -> None:
    setup("info", stream=stream)
    hostile = "id\r\n[2026-01-01 00:00:00] fake \x1b[31mred\x1b[0m \u202egnp.exe\ud800 \x9b2J"
    logging.getLogger("x").info("request %s", hostile)
    assert stream.getvalue().count("\n") == 1
    assert "\\r\\n" in stream.getvalue() and "\\x1b[31m" in stream.getvalue()
    assert "\\u202e" in stream.getvalue() and "\\ud800" in stream.getvalue()


def test_tracebacks_stay_indented(stream: io.StringIO) -> None:
    setup("info", stream=stream)
    try:
        raise ValueError("first\n[2026-01-01 00:00:00] fake")
    except ValueError:
        logging.getLogger("x").exception("it failed")
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith("ERROR] it failed")
    assert rest and all(line.startswith("    ") for line in rest)


@given(st.text())
def test_escaped_text_is_one_printable_line(text: str) -> None:
    escaped = escape(text)
    assert len(escaped.splitlines()) <= 1
    assert not any(ord(c) < 32 and c != "\t" for c in escaped)
    escaped.encode()


def test_level_names() -> None:
    assert level_number("INFO") == logging.INFO
    assert level_number("trace") == logging.DEBUG
    with pytest.raises(ValueError, match="'chatty'"):
        level_number("chatty")


def test_formatter_leaves_plain_text_alone() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "größer 你好\t1", None, None)
    assert LineFormatter().format(record).endswith("] größer 你好\t1")
