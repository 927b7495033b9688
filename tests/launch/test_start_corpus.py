"""The corpus that a flag names: one reads it, and all ranks are told the same."""

from __future__ import annotations

from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from vivace.config.speculative import SpeculativeOptions
from vivace.errors import CannotStart
from vivace.frontend import tokenizer
from vivace.launch import engine
from vivace.launch.corpora import add_corpus, check_corpus
from vivace.protocol.workers import AddCorpus, WorkerState


@pytest.mark.parametrize("refused", ["", "no room"])
def test_all_ranks_are_told_what_one_read(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, told = tmp_path / "a.txt", list[AddCorpus]()
    path.write_text("ab")
    words = SimpleNamespace(encode=lambda text, add_special_tokens: list(map(ord, text)))
    monkeypatch.setattr(tokenizer, "load_encoder", lambda source: words)

    def control(command: AddCorpus) -> list[WorkerState]:
        told.append(command)
        return [WorkerState(), WorkerState(rank=1, refused=refused)]

    asked = SpeculativeOptions(
        speculative_algorithm="NGRAM", speculative_ngram_external_corpus_path=str(path)
    )
    config: Any = SimpleNamespace(speculative=asked, source=None)
    executor: Any = SimpleNamespace(control=control)
    if refused:
        with pytest.raises(CannotStart, match=refused):
            add_corpus(config, executor, lambda stage, done: None)
    else:
        add_corpus(config, executor, lambda stage, done: None)
    assert [array("i", one.tokens).tolist() for one in told] == [[97, 98, -1]]


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("a.txt", b"caf\xe9", "UTF-8"),
        ("a.jsonl", b'"a"\n{}', "line 2"),
        ("a.jsonl", b'""\n\n', "text"),
        ("gone.txt", None, "gone"),
    ],
)
def test_a_text_that_cannot_be_used_is_told_before_anything_is_loaded(
    name: str, content: bytes | None, word: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    asked = SpeculativeOptions(
        speculative_algorithm="NGRAM", speculative_ngram_external_corpus_path=str(file)
    )
    config: Any = SimpleNamespace(speculative=asked)
    with pytest.raises(CannotStart, match=word):
        check_corpus(config)
    file.write_bytes(b'"text"')
    check_corpus(config)


def test_other_nodes_hear_why_a_start_ends_that_had_its_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    causes = list[str]()

    def fail(*_: object, **__: object) -> None:
        raise CannotStart("a.txt: no UTF-8")

    executor: Any = SimpleNamespace(close=causes.append)
    monkeypatch.setattr(engine, "start_executor", lambda *_: executor)
    monkeypatch.setattr(engine, "add_corpus", fail)
    with pytest.raises(CannotStart, match="UTF-8"):
        engine.build_executor(cast(Any, None), lambda stage, done: None)
    assert causes == ["a.txt: no UTF-8"]


def test_an_engine_that_follows_goes_on_without_a_file_that_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that dies again and again would end the server."""
    monkeypatch.setattr(tokenizer, "load_encoder", lambda source: None)
    asked = SpeculativeOptions(
        speculative_algorithm="NGRAM", speculative_ngram_external_corpus_path=str(tmp_path / "gone")
    )
    config: Any = SimpleNamespace(speculative=asked, source=None)
    with pytest.raises(CannotStart, match="gone"):
        add_corpus(config, cast(Any, None), lambda stage, done: None)
    add_corpus(config, cast(Any, None), lambda stage, done: None, again=True)
    assert "no drafts from it" in caplog.text
