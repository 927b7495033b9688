"""Texts that n-gram drafts may come from: files and documents -> tokens."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from vivace.files import open_input
from vivace.frontend.tokenizer import Tokenizer

MOST_DOCUMENT_BYTES = 16 << 20
"""of a line of JSONL, or of a file of plain text"""
BOUNDARY = -1
"""stands behind each document"""


class CorpusError(ValueError):
    """A text that cannot be used; the text says what, and where."""


def read_documents(path: str) -> Iterator[str]:
    """Of `*.jsonl` each line is a document: a string, or an object with one as `text`. Any other
    file is one document in UTF-8. Raises OSError, CorpusError."""
    with os.fdopen(open_input(path), "rb") as file:
        if not path.lower().endswith(".jsonl"):
            yield decode(file.read(MOST_DOCUMENT_BYTES + 1), path)
            return
        number = 0
        while line := file.readline(MOST_DOCUMENT_BYTES + 1):
            number += 1
            if line.strip():
                yield read_line(line, f"{path}, line {number}")


def read_line(line: bytes, place: str) -> str:
    text = decode(line, place)
    try:
        found: Any = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise CorpusError(
            f"{place}: no JSON ({error}); write each document as a line of JSON"
        ) from None
    document = found.get("text") if isinstance(found, dict) else found
    if not isinstance(document, str):
        raise CorpusError(f'{place}: neither a string nor an object with a string as "text"')
    return document


def decode(data: bytes, place: str) -> str:
    if len(data) > MOST_DOCUMENT_BYTES:
        raise CorpusError(
            f"{place}: more than {MOST_DOCUMENT_BYTES >> 20} MiB in one document; give it as JSONL"
        )
    try:
        return data.decode("utf-8-sig")  # without the mark that editors put in front
    except UnicodeDecodeError as error:
        raise CorpusError(f"{place}: no UTF-8 ({error}); save it as UTF-8") from None


def encode_documents(documents: Iterable[str], tokenizer: Tokenizer, most: int) -> bytes:
    """int32 ids, BOUNDARY behind each document. Raises CorpusError for more than `most`."""
    ids = array("i")
    for document in documents:
        ids.extend(tokenizer.encode(document, add_special_tokens=False))
        ids.append(BOUNDARY)
        if len(ids) > most:
            raise CorpusError(
                f"the documents have more than {most} tokens; give fewer, or a larger "
                "--speculative-ngram-external-corpus-max-tokens"
            )
    return ids.tobytes()
