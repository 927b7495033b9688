"""How many characters parsers copy, however much text comes at once."""

from __future__ import annotations

from typing import Any

import pytest
from transcripts import TOOLS, TRANSCRIPTS, Transcript

from vivace.parsers.parser import AnswerParser, ParseOptions, answer_format
from vivace.parsers.reader import TextReader


class CopiedText(str):
    """A text that counts what is cut out of it."""

    copied = 0

    def __getitem__(self, key: Any) -> str:
        found = super().__getitem__(key)
        CopiedText.copied += len(found)
        return found


def feed(reader: TextReader, text: str) -> None:
    reader.text = CopiedText(str.__getitem__(reader.text, slice(reader.at, None)) + text)
    reader.at = 0


def copied(transcript: Transcript, count: int) -> int:
    """Characters, of that many such answers at once."""
    CopiedText.copied = 0
    parser = AnswerParser(answer_format(transcript.parser, None), ParseOptions(tools=TOOLS))
    parser.push(transcript.text * count)
    parser.finish()
    return CopiedText.copied


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda each: each.parser)
def test_work_grows_as_the_text_does(
    transcript: Transcript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextReader, "feed", feed)
    few, many = copied(transcript, 10), copied(transcript, 40)
    assert many <= 5 * few
    assert many <= 4 * 40 * len(transcript.text)
