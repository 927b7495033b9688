"""/add_external_corpus: what goes to the engines, and what is refused."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from server_kit import Running, ask, running_server

from vivace.protocol.workers import AddCorpus
from vivace.server import corpora

PATH = "/add_external_corpus"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server() as running:
        yield running


def added(server: Running) -> AddCorpus:
    engine: Any = server.engine
    return engine.commands[-1]


def test_documents_and_chunks_become_tokens(server: Running) -> None:
    answer = ask(server, PATH, {"corpus_id": "a", "documents": ["ab", "c"]}).json
    assert answer == {
        "success": True,
        "corpus_id": "a",
        "message": "",
        "loaded_token_count": 3,
    }
    assert added(server).name == "a"
    assert array("i", added(server).tokens).tolist() == [97, 98, -1, 99, -1]
    answer = ask(server, PATH, {"token_chunks": [[5, 6], [], [7]]}).json
    assert array("i", added(server).tokens).tolist() == [5, 6, -1, -1, 7, -1]
    assert answer["corpus_id"] == added(server).name and answer["loaded_token_count"] == 3


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "documents"),
        ({"documents": ["a"], "token_chunks": [[1]]}, "token_chunks"),
        ({"file_path": "/etc/passwd"}, "file_path"),
        ({"documents": ["a"], "file_path": "/etc/passwd"}, "file_path"),
        ({"token_chunks": [[1, -1]]}, "token_chunks"),
        ({"token_chunks": [[1 << 31]]}, "token_chunks"),
        ({"documents": ["a" * 40]}, "documents"),
        ({"token_chunks": [[1] * 10, [1] * 10]}, "token_chunks"),
        ({"documents": "a"}, "documents"),
    ],
)
def test_what_is_no_corpus_is_refused(
    server: Running, body: dict[str, Any], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpora, "IDS", 20)
    engine: Any = server.engine
    before = len(engine.commands)
    answer = ask(server, PATH, body)
    assert answer.status == 400 and field in answer.json["param"]
    assert len(engine.commands) == before
