"""/v1/score and /v1/rerank of a model that generates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from server_kit import CONTEXT, MODEL, Running, ask, make_tokenizer, running_server

from vivace.protocol.tasks import Embed
from vivace.requests.scores import INSTRUCTION, SYSTEM

SCORE = {"query": "ab", "items": ["c", "de"], "label_token_ids": [65, 70]}
RERANK = {"query": "ab", "documents": ["c", "de", "f"]}
RERANKER = (
    f"<system>{SYSTEM}<user><Instruct>: {{{{ instruct | default('usual') }}}}\n"
    "<Query>: {{ messages[0]['content'] }}\n<Document>: {{ messages[1]['content'] }}<assistant>"
)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server() as running:
        yield running


def sent(server: Running, count: int) -> list[str]:
    return [bytes(one.tokens).decode() for one in server.engine.requests[-count:]]


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_probabilities_of_each_label_behind_each_item(server: Running, path: str) -> None:
    answer = ask(server, path, SCORE).json
    row = [math.exp(-0.065), math.exp(-0.07)]  # of the scripted engine
    assert answer["scores"] == [pytest.approx(row), pytest.approx(row)]
    assert (answer["object"], answer["model"]) == ("scoring", MODEL)
    assert answer["usage"]["prompt_tokens"] == 7
    assert sent(server, 2) == ["abc", "abde"]
    request = server.engine.requests[-1]
    assert request.logprobs is not None and request.logprobs.token_ids == (65, 70)
    assert (request.sampling.max_new_tokens, request.sampling.temperature) == (1, 1.0)


def test_items_first_ids_and_labels_of_each(server: Running) -> None:
    ask(server, "/v1/score", {**SCORE, "item_first": True, "items": "x"})
    assert sent(server, 1) == ["xab"]
    body = {"query": [97], "items": [[98], [99, 100]], "label_token_ids": [[65], [66, 67]]}
    answer = ask(server, "/v1/score", {**body, "apply_softmax": True}).json
    assert [len(row) for row in answer["scores"]] == [1, 2]
    assert [sum(row) for row in answer["scores"]] == [pytest.approx(1), pytest.approx(1)]
    assert sent(server, 2) == ["ab", "acd"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("query", 5), ("query", None), ("query", [[1]]), ("query", "x" * CONTEXT),
        ("items", []), ("items", None), ("items", 5), ("items", [[1]]), ("items", ["a"] * 2049),
        ("label_token_ids", []), ("label_token_ids", None), ("label_token_ids", [[65]]),
        ("label_token_ids", ["a"]), ("label_token_ids", [99999]), ("label_token_ids", [-1]),
        ("label_token_ids", [[65], []]), ("label_token_ids", [65, [65]]),
        ("label_token_ids", list(range(257))), ("temperature", -1), ("temperature", "x"),
        ("apply_softmax", "maybe"), ("item_first", 3),
    ],
)  # fmt: skip
def test_bad_scores(server: Running, field: str, value: Any) -> None:
    before = len(server.engine.requests)
    answer = ask(server, "/v1/score", {**SCORE, field: value})
    assert answer.status == 400, answer.text
    named = answer.json["param"].partition("[")[0]
    assert named == field or (field == "query" and named == "items")
    assert len(server.engine.requests) == before


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
def test_the_best_documents_come_first(server: Running, path: str) -> None:
    answer = ask(server, path, RERANK).json
    yes = 1 / (1 + math.exp((ord("y") - ord("n")) / 1000))
    assert [one["score"] for one in answer] == [pytest.approx(yes)] * 3
    assert [(one["index"], one["document"]) for one in answer] == [(0, "c"), (1, "de"), (2, "f")]
    asked = f"<system>{SYSTEM}\n<user><Instruct>: {INSTRUCTION}\n<Query>: ab\n<Document>: "
    assert sent(server, 3) == [f"{asked}{one}\n<assistant>" for one in RERANK["documents"]]
    assert answer[0]["meta_info"]["prompt_tokens"] == len(sent(server, 3)[0])
    few = ask(server, path, {**RERANK, "top_n": 2, "return_documents": False}).json
    assert len(few) == 2 and not any("document" in one for one in few)


def test_clients_of_others_get_their_own_form(server: Running) -> None:
    """litellm (hosted_vllm, cohere, jina_ai) reads `results`."""
    mine = ask(server, "/v1/rerank", RERANK).json
    answer = ask(server, "/v2/rerank", {**RERANK, "top_n": 2}).json
    assert answer["id"].startswith("rerank") and answer["model"] == MODEL
    assert [
        (one["index"], one["relevance_score"], one["document"]["text"]) for one in answer["results"]
    ] == [(one["index"], one["score"], one["document"]) for one in mine[:2]]
    tokens = sum(one["meta_info"]["prompt_tokens"] for one in mine)
    assert answer["usage"]["total_tokens"] == tokens
    objects = [{"text": one, "title": "x"} for one in RERANK["documents"]]
    for path in ("/v1/rerank", "/v2/rerank"):
        named = ask(server, path, {**RERANK, "documents": objects, "return_documents": False})
        assert named.status == 200 and sent(server, 3) == sent(server, 6)[:3]
    bare = ask(server, "/v2/rerank", {**RERANK, "return_documents": False}).json["results"]
    assert len(bare) == 3 and not any("document" in one for one in bare)


def test_a_template_that_was_written_for_it() -> None:
    with running_server(tokenizer=make_tokenizer(RERANKER)) as server:
        for instruct in ("usual", "find"):
            given = {} if instruct == "usual" else {"instruct": instruct}
            assert ask(server, "/v1/rerank", {**RERANK, **given}).status == 200
            asked = f"<system>{SYSTEM}<user><Instruct>: {instruct}\n<Query>: ab\n<Document>: "
            assert sent(server, 3)[1] == f"{asked}de<assistant>"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("query", ""), ("query", " "), ("query", None), ("query", 5), ("query", ["a"]),
        ("query", "x" * CONTEXT), ("documents", []), ("documents", None), ("documents", "a"),
        ("documents", [""]), ("documents", ["a", 5]), ("documents", ["a"] * 2049),
        ("documents", ["x" * CONTEXT]), ("documents", [{"text": ""}]),
        ("documents", [{"title": "a"}]), ("instruct", 5), ("instruct", "x" * CONTEXT),
        ("top_n", 0), ("top_n", -1), ("top_n", "x"), ("return_documents", "x"),
    ],
)  # fmt: skip
def test_bad_documents(server: Running, field: str, value: Any) -> None:
    answer = ask(server, "/v1/rerank", {**RERANK, field: value})
    assert answer.status == 400, answer.text
    assert answer.json["param"].partition("[")[0] == field


def test_servers_that_cannot() -> None:
    with running_server(task=Embed()) as server:
        for path, body in (("/v1/score", SCORE), ("/v1/rerank", RERANK)):
            answer = ask(server, path, body)
            assert answer.status == 400 and "--is-embedding" in answer.json["message"]
    with running_server(tokenizer=False) as server:
        assert ask(server, "/v1/score", SCORE).status == 400
        assert ask(server, "/v1/rerank", RERANK).status == 400
