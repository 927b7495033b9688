"""Files in messages are read a piece at a time."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import pytest

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import Work, run_now
from vivace.requests.answer_rules import message_text
from vivace.requests.input_files import SLICE, read_file
from vivace.requests.prompts import template_messages
from vivace.requests.schema import ContentPart, FileContent, Message
from vivace.server.apis.responses_request import read_input
from vivace.server.apis.responses_schema import InputItem, ItemPart, ResponsesRequest
from vivace.server.apis.server_tools import ToolOffer

TEXTS = [b"", b"a", b"\xef\xbb\xbfa", "äöü€😀\n".encode() * 3, bytes(3), b"a\xff", "€".encode()[:2]]
DATA = [
    *(base64.b64encode(text).decode() for text in TEXTS),
    *(base64.urlsafe_b64encode(text).decode().rstrip("=") for text in TEXTS),
    *(base64.encodebytes(text * 40).decode() + "\r\n" * 9 for text in TEXTS),
    *(
        "=",
        "QQ=",
        "QQ==\n\n\n\n\n\n\n=",
        "QQ==QQ==",
        "QUFB\nQQ==\nQQ",
        "QQ\n=\n=",
        "Q",
        "Q-==",
        "äää",
    ),
]


def read_whole(data: str) -> str | None:
    """None: it is no text."""
    try:
        plain = data.translate(str.maketrans("-_", "+/", "\r\n"))
        padding = "" if "=" in plain else "=" * (-len(plain) % 4)
        content = base64.b64decode(plain + padding, validate=True)
        text = content.decode("utf-8-sig")
    except (binascii.Error, ValueError):
        return None
    return None if "\0" in text else text


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 61, SLICE])
@pytest.mark.parametrize("data", DATA)
def test_a_file_says_the_same_however_it_is_cut(
    data: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivace.requests.input_files.SLICE", size)
    wanted = read_whole(data)
    for head in ("", "data:text/plain;base64,", "DATA:TEXT/PLAIN;BASE64,"):
        try:
            found = run_now(read_file(FileContent(file_data=head + data, filename="f"), "file"))
        except BadRequest:
            assert wanted is None
        else:
            assert wanted is not None and found == f"f\n{wanted}"


def test_a_part_is_what_its_type_says_wherever_it_is_read() -> None:
    file = FileContent(file_data=base64.b64encode(b"b").decode())
    kinds = [ContentPart(type="text", text="a", file=file), ContentPart(type="file", file=file)]
    message = Message(role="assistant", content=kinds)
    (shown,) = run_now(template_messages([message]))
    assert (
        run_now(message_text(message)) == "".join(part["text"] for part in shown["content"]) == "ab"
    )


def test_others_have_their_turn_while_a_large_file_is_read() -> None:
    data = base64.b64encode(b"a" * (3 << 20)).decode()
    parts = [ContentPart(type="file", file=FileContent(file_data=data))]
    message = Message(role="user", content=parts)
    item = InputItem(role="user", content=[ItemPart(type="input_file", file_data=data)])
    asked = ResponsesRequest(input=[item])
    works: list[Work[Any]] = [template_messages([message]), message_text(message)]
    for work in [*works, read_input(asked, [], ToolOffer())]:
        assert sum(1 for _ in work) >= len(data) / SLICE
    (message,) = run_now(template_messages([Message(role="user", content=parts)]))
    assert message["content"] == [{"type": "text", "text": "a" * (3 << 20)}]
