"""/classify, /v1/classify and /v1/rerank of models with a head."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from server_kit import CONTEXT, MODEL, Running, ask, make_vector, running_server

from vivace.checkpoint.classifier import IDENTITY, SIGMOID, Classifier
from vivace.protocol.tasks import GENERATE, STEPS, Embed

LABELS = ("sad", "glad", "mad", "bad")
PAIRS = {"query": "ab", "documents": ["c", "defg", "hi"]}


def judge(labels: tuple[str, ...], *, independent: bool = False, activation: str = IDENTITY) -> Any:
    """Keywords of a server whose model makes a number for each label."""
    classifier = Classifier(labels=labels, independent=independent, activation=activation)
    task = Embed(pooling="cls", normalize=False, dimensions=len(labels) % 4)
    return {"classifier": classifier, "task": task}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server(**judge(LABELS)) as running:
        yield running


def vector(text: str) -> list[float]:
    return make_vector(list(text.encode()))


def test_the_heads_own_numbers(server: Running) -> None:
    assert ask(server, "/classify", {"text": "ab"}).json["embedding"] == vector("ab")
    answers = ask(server, "/classify", {"input_ids": [[97], [98, 99]]}).json
    assert [one["embedding"] for one in answers] == [vector("a"), vector("bc")]
    assert answers[0]["meta_info"]["prompt_tokens"] == 1
    assert ask(server, "/classify", {"text": "a", "dimensions": 0}).status == 400


@pytest.mark.parametrize("given", ["ab", ["ab"], [97, 98], [[97, 98]]])
def test_probabilities_of_labels(server: Running, given: Any) -> None:
    answer = ask(server, "/v1/classify", {"input": given}).json
    (entry,) = answer["data"]
    numbers = np.array(vector("ab"))
    weights = np.exp(numbers - numbers.max())
    assert entry["probs"] == pytest.approx(list(weights / weights.sum()))
    assert (entry["label"], entry["num_classes"], entry["index"]) == ("glad", 4, 0)
    assert (answer["object"], answer["model"]) == ("list", MODEL)
    assert answer["usage"]["prompt_tokens"] == 2 and answer["id"].startswith("classify-")


def test_labels_of_their_own() -> None:
    with running_server(**judge(LABELS, independent=True)) as server:
        (entry,) = ask(server, "/v1/classify", {"input": "a"}).json["data"]
        assert entry["probs"] == pytest.approx([1 / (1 + math.exp(-x)) for x in vector("a")])


def test_steps_are_judged_one_by_one() -> None:
    """The scripted model makes two steps of a text's four numbers."""
    judge = Classifier(labels=("wrong", "right"), independent=False, activation=IDENTITY)
    task = Embed(pooling=STEPS, normalize=False)
    with running_server(classifier=judge, task=task, step_token=97) as server:
        numbers = vector("ab")
        answer = ask(server, "/classify", {"text": "ab"}).json
        assert answer["embedding"] == [numbers[:2], numbers[2:]]
        entries = ask(server, "/v1/classify", {"input": ["a", "ab"]}).json["data"]
        assert [(one["index"], one["step"]) for one in entries] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert [one["label"] for one in entries] == ["right", "wrong"] * 2
        assert entries[3]["probs"][1] == pytest.approx(1 / (1 + math.exp(0.5 + 1.25)))
        refused = ask(server, "/v1/classify", {"input": ["a", "b"]})
        assert (refused.status, refused.json["param"]) == (400, "input[1]")
        assert ask(server, "/v1/embeddings", {"input": "a", "model": MODEL}).status == 400


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
@pytest.mark.parametrize("activation", [SIGMOID, IDENTITY])
def test_pairs_are_ranked(path: str, activation: str) -> None:
    with running_server(**judge(("score",), activation=activation), pair_step=1000) as server:
        answer = ask(server, path, {**PAIRS, "top_n": 2}).json
        numbers = [6.0, 4.0]  # the scripted model says how many tokens a pair has
        if activation == SIGMOID:
            numbers = [1 / (1 + math.exp(-number)) for number in numbers]
        assert [one["score"] for one in answer] == pytest.approx(numbers)
        assert [one["index"] for one in answer] == [1, 2]
        assert server.engine.requests[-3].task == server.frontend.served.task
        # a byte-level tokenizer has no types of its own
        assert sorted(map(len, (one.tokens for one in server.engine.requests[-3:]))) == [3, 4, 6]


BAD: list[tuple[str, Any]] = [
    ("input", None), ("input", 5), ("input", ""), ("input", []), ("input", ["a", ""]),
    ("input", [1, "a"]), ("input", [[]]), ("input", [-1]), ("input", ["a"] * 2049),
    ("input", "x" * (CONTEXT + 1)), ("model", 5), ("rid", 5), ("priority", "x"), ("user", 5),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_fields_are_refused_by_name(server: Running, name: str, value: Any) -> None:
    before = len(server.engine.requests)
    answer = ask(server, "/v1/classify", {"input": "ab", name: value})
    assert answer.status == 400, answer.text
    assert answer.json["param"].partition("[")[0] == name
    assert len(server.engine.requests) == before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("query", "x" * CONTEXT * 100), ("query", " "), ("documents", ["a", "x" * CONTEXT]),
        ("documents", ["a", ""]), ("instruct", "find"), ("top_n", 0), ("documents", ["a"] * 2049),
    ],
)  # fmt: skip
def test_bad_pairs(field: str, value: Any) -> None:
    with running_server(**judge(("score",))) as server:
        answer = ask(server, "/v1/rerank", {**PAIRS, field: value})
        assert answer.status == 400, answer.text
        assert answer.json["param"].partition("[")[0] == field
        assert not server.engine.requests


def test_servers_without_such_a_head(server: Running) -> None:
    for task in (Embed(), GENERATE):
        with running_server(task=task) as other:
            for path, body in (("/classify", {"text": "a"}), ("/v1/classify", {"input": "a"})):
                answer = ask(other, path, body)
                assert answer.status == 400 and "with a head for" in answer.text
    assert ask(server, "/v1/rerank", PAIRS).status == 400
    assert ask(server, "/v1/score", {**PAIRS, "items": "a", "label_token_ids": [1]}).status == 400
    assert ask(server, "/generate", {"text": "a"}).status == 400
