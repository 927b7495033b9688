"""Texts for n-gram drafts: what files may be, and their tokens."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
from served_toy import write_byte_tokenizer
from tokenizers import Tokenizer as Core

from vivace.frontend import corpora
from vivace.frontend.corpora import CorpusError, encode_documents, read_documents
from vivace.frontend.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("bytes")
    write_byte_tokenizer(folder)
    return Tokenizer(Core.from_str((folder / "tokenizer.json").read_text("utf-8")))


def test_a_plain_file_is_one_document_and_each_line_of_jsonl_one(tmp_path: Path) -> None:
    plain, lines = tmp_path / "a.txt", tmp_path / "a.jsonl"
    plain.write_text("one\ntwo")
    lines.write_text('"one"\n\n{"text": "two", "id": 3}\n')
    assert list(read_documents(str(plain))) == ["one\ntwo"]
    assert list(read_documents(str(lines))) == ["one", "two"]
    lines = lines.rename(tmp_path / "B.JSONL")
    lines.write_text('"one"\n"two"\n', encoding="utf-8-sig")
    assert list(read_documents(str(lines))) == ["one", "two"]


def test_documents_stand_apart(tokenizer: Tokenizer) -> None:
    ids = array("i", encode_documents(["ab", "", "a"], tokenizer, 6))
    a, b, *_ = tokenizer.encode("ab")
    assert ids.tolist() == [a, b, -1, -1, a, -1]
    with pytest.raises(CorpusError, match="larger"):
        encode_documents(["ab", "", "a"], tokenizer, 5)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b'"one"\n{"a": 1}\n', "line 2"),
        (b"[1]", "line 1"),
        (b'{"text": 5}', "string"),
        (b"{", "JSON"),
        (b'"\xff"', "UTF-8"),
        (b'"' + b"x" * 200 + b'"', "MiB"),
    ],
)
def test_lines_that_are_no_documents_are_named(
    tmp_path: Path, content: bytes, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpora, "MOST_DOCUMENT_BYTES", 100)
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=word):
        list(read_documents(str(path)))


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="folder"):
        list(read_documents(str(tmp_path)))
