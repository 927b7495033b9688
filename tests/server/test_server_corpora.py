"""/add_external_corpus: what goes to the engines, and what is refused."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from server_kit import Running, ask, running_server, some_state

from vivace.protocol.workers import AddCorpus, RemoveCorpus, WorkerState
from vivace.server import corpora
from vivace.server.settings import ServerSettings

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
        ({"documents": ["a" * 6000]}, "documents"),
        ({"token_chunks": [[1] * 10, [1] * 10]}, "token_chunks"),
        ({"documents": "a"}, "documents"),
        ({"documents": [""]}, "documents"),
        ({"token_chunks": [[], []]}, "token_chunks"),
    ],
)
def test_what_is_no_corpus_is_refused(
    server: Running, body: dict[str, Any], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpora, "IDS", 20)
    engine: Any = server.engine
    before = engine.commands.copy()
    answer = ask(server, PATH, body)
    assert answer.status == 400 and field in answer.json["param"]
    assert answer.json["message"].startswith(answer.json["param"])
    assert not any(isinstance(one, AddCorpus) for one in engine.commands[len(before) :])


def test_limits_are_those_of_corpora_and_not_of_prompts(server: Running) -> None:
    """Far more than the model's context, in one text or list, and many values in all."""
    assert ask(server, PATH, {"documents": ["a" * 300_000]}).json["loaded_token_count"] == 300_000
    chunks = [[65] * 60_000, *([66] * 16_000 for _ in range(20))]
    answer = ask(server, PATH, {"token_chunks": chunks}).json
    assert answer.get("loaded_token_count") == 380_000, answer


def test_corpora_are_listed_and_removed(server: Running) -> None:
    engine: Any = server.engine
    answer = ask(server, "/remove_external_corpus", {"corpus_id": "a"})
    assert answer.json == {"success": True, "message": "a was removed"}
    assert engine.commands[-1] == RemoveCorpus("a")
    assert ask(server, "/remove_external_corpus", {}).status == 400
    engine.state = some_state()
    engine.state.workers = [WorkerState(), WorkerState(rank=1, corpora={"b": 3})]
    answer = ask(server, "/list_external_corpora", method="GET")
    assert answer.json == {"success": True, "corpus_token_counts": {"b": 3}, "message": ""}


def test_what_engines_would_refuse_is_refused_before_texts_are_encoded(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def encode(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(corpora, "encode_texts", encode)
    engine: Any = server.engine
    engine.state = some_state()
    engine.state.workers = [WorkerState(), WorkerState(rank=1, corpora={"b": 3})]
    answer = ask(server, PATH, {"corpus_id": "b", "documents": ["a"]})
    assert answer.status == 400 and answer.json["param"] == "corpus_id"
    assert ask(server, PATH, {"corpus_id": "c", "documents": ["a"]}).status == 500
    with running_server(ServerSettings(takes_corpora=False)) as without:
        answer = ask(without, PATH, {"documents": ["a"]})
    assert answer.status == 400 and "NGRAM" in answer.json["message"]
