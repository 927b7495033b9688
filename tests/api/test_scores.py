"""Scores and reranking of whole engines, against transformers' own forward pass."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embedding_toys import END, reference_embedding, write_embedding_toy

import vivace
from vivace.api import Engine
from vivace.frontend.chat_template import ChatTemplate
from vivace.requests.scores import INSTRUCTION, SYSTEM

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is false %}<think>\n\n"
    "</think>\n\n{% endif %}{% endif %}"
)
PAIRS = [["how high?", "The sky is high."], ["how high?", "ten meters"], ["sea", "The sea."]]
ITEMS = ["The sky is high.", "x" * 40, "ten"]
LABELS = [ord("y"), ord("n"), 7]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("toy")
    model = write_embedding_toy(folder, None, max_position_embeddings=1024)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder, model


@pytest.fixture(scope="module")
def engine(toy: tuple[Path, Any]) -> Iterator[Engine]:
    """As SGLang wants it for multi-item scoring; the prefix cache stays on."""
    flags: dict[str, Any] = {"dtype": "float32", "cpu_threads": 1, "max_total_tokens": 8192}
    flags |= {"enable_mis": True, "disable_radix_cache": True}
    with Engine(toy[0], **flags) as engine:
        yield engine


def reference(model: Any, ids: list[int]) -> np.ndarray:
    """Probabilities of the next token, by the definition."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
    return logits.double().softmax(-1).numpy()


def test_scores_are_those_of_transformers(toy: tuple[Path, Any], engine: Engine) -> None:
    ids = [[*f"Is it so? {item}".encode(), END] for item in ITEMS]
    expected = np.array([reference(toy[1], one)[LABELS] for one in ids])
    found = engine.score("Is it so? ", ITEMS, LABELS)
    np.testing.assert_allclose(found.scores, expected, atol=1e-5)
    assert found.prompt_tokens == sum(map(len, ids))
    normal = engine.score("Is it so? ", ITEMS, LABELS, apply_softmax=True)
    np.testing.assert_allclose(
        normal.scores, expected / expected.sum(axis=1, keepdims=True), atol=1e-5
    )
    own = asyncio.run(engine.async_score("Is it so? ", ITEMS, [[1], [2, 3], [4]]))
    assert [len(row) for row in own.scores] == [1, 2, 1]


def test_items_share_what_is_computed_of_the_query(engine: Engine) -> None:
    """As SGLang's multi-item scoring, without a mask: each item is a prompt of its own, and of the
    query nothing is computed again."""
    query = "q" * 300
    first = engine.score(query, ["once"], LABELS)
    before = cached_tokens(engine)
    many = engine.score(query, ["once", "x" * 30, "ten"], LABELS)
    assert cached_tokens(engine) - before >= 3 * 300
    assert many.scores[0] == pytest.approx(first.scores[0], rel=1e-5)


def cached_tokens(engine: Engine) -> int:
    counters = engine.get_server_info()["internal_states"][0]["metrics"]["counters"]
    return counters["cached_tokens_total"]


def asked(query: str, document: str, instruct: str = INSTRUCTION) -> list[int]:
    user = f"<Instruct>: {instruct}\n<Query>: {query}\n<Document>: {document}"
    text = f"<|system|>{SYSTEM}\n<|user|>{user}\n<|assistant|><think>\n\n</think>\n\n"
    return [*text.encode()]


def test_a_reranker_is_asked_for_yes_or_no(
    toy: tuple[Path, Any], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[Any] = []
    render = ChatTemplate.render

    def counted(self: ChatTemplate, messages: Any, **options: Any) -> str:
        rendered.append(messages)
        return render(self, messages, **options)

    monkeypatch.setattr(ChatTemplate, "render", counted)
    answers: Any = engine.rerank(PAIRS)
    assert len(rendered) == 2  # once for each query
    for (query, document), answer in zip(PAIRS, answers, strict=True):
        found = reference(toy[1], asked(query, document))
        yes, no = found[ord("y")], found[ord("n")]
        assert answer["embedding"] == pytest.approx(yes / (yes + no), abs=1e-5)
        assert answer["meta_info"]["prompt_tokens"] == len(asked(query, document))
    query, document = PAIRS[0]
    other: Any = engine.rerank([(query, document)], instruct="Find numbers")
    found = reference(toy[1], asked(query, document, "Find numbers"))
    share = found[ord("y")] / (found[ord("y")] + found[ord("n")])
    assert other[0]["embedding"] == pytest.approx(share, abs=1e-5)


@pytest.mark.parametrize(
    ("pairs", "field"),
    [
        ("a", "prompt"), ([], "prompt"), ([["a"]], "prompt"), ([["a", 5]], "prompt"),
        ([["", "a"]], "query"), ([["a", ""]], "documents[0]"),
        ([["a", "x" * 2000]], "input_ids[0]"),
    ],
)  # fmt: skip
def test_bad_pairs(engine: Engine, pairs: Any, field: str) -> None:
    with pytest.raises(vivace.BadRequest) as caught:
        engine.rerank(pairs)
    assert caught.value.field == field


def test_a_model_without_a_template_cannot_be_asked(tmp_path: Path) -> None:
    write_embedding_toy(tmp_path, None)
    engine = Engine(tmp_path, max_total_tokens=512)
    with engine, pytest.raises(vivace.BadRequest, match="template"):
        engine.rerank(PAIRS)


def test_vectors_of_qwen3_embedding_are_those_of_transformers(tmp_path: Path) -> None:
    """As docs/pooling.md says: the last token of a text with its instruction, normalized."""
    model = write_embedding_toy(tmp_path, max_position_embeddings=256)
    texts = [f"Instruct: {INSTRUCTION}\nQuery: {query}" for query, _ in PAIRS] + ITEMS
    with Engine(tmp_path, is_embedding=True, dtype="float32", max_total_tokens=4096) as engine:
        answers: Any = engine.encode(texts)
        cut: Any = engine.encode(texts, dimensions=32)
    for text, answer, short in zip(texts, answers, cut, strict=True):
        ids = [*text.encode(), END]
        for found, size in ((answer, 0), (short, 32)):
            expected = reference_embedding(model, ids, "last", dimensions=size)
            np.testing.assert_allclose(found["embedding"], expected, atol=1e-5, rtol=0)
