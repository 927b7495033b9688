"""Embeddings and hidden states of whole engines, against transformers' own forward pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embedding_toys import (
    END,
    reference_embedding,
    reference_states,
    write_embedding_toy,
    write_modules,
)
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

import vivace
from vivace.api import Engine

TEXTS = ["a", "The sea is wide.", "The sea is wide, and the sky wider.", "x" * 70]
EXACT = {"rtol": 3e-4, "atol": 3e-5}
"""float32 sums in other orders"""


def read_ids(text: str) -> list[int]:
    return [*text.encode(), END]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("toy")
    return folder, write_embedding_toy(folder)


Start = Callable[..., Engine]


@pytest.fixture
def start(toy: tuple[Path, Any]) -> Iterator[Start]:
    """Engines on the toy, shut down at the end; `pooling` is written into its files."""
    engines: list[Engine] = []

    def begin(pooling: str = "last", *, normalize: bool = True, **flags: Any) -> Engine:
        write_modules(toy[0], pooling, normalize)
        flags = {"is_embedding": True, "dtype": "float32", "cpu_threads": 1, **flags}
        engines.append(Engine(toy[0], max_total_tokens=4096, **flags))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.shutdown()


def check(model: Any, answers: list[Any], texts: list[str], pooling: str, **settings: Any) -> None:
    for answer, text in zip(answers, texts, strict=True):
        expected = reference_embedding(model, read_ids(text), pooling, **settings)
        np.testing.assert_allclose(answer["embedding"], expected, **EXACT)
        assert answer["meta_info"]["prompt_tokens"] == len(text) + 1
        assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}


def test_texts_end_as_the_tokenizer_of_the_checkpoint_ends_them(toy: tuple[Path, Any]) -> None:
    words = AutoTokenizer.from_pretrained(toy[0])
    assert [words(text)["input_ids"] for text in TEXTS] == [read_ids(text) for text in TEXTS]


@pytest.mark.parametrize("pooling", ["last", "mean", "cls"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("flags", [{}, {"disable_cpu_kernels": True}, {"chunked_prefill_size": 16}])
def test_a_batch_is_what_transformers_makes_of_it(
    toy: tuple[Path, Any], start: Start, pooling: str, normalize: bool, flags: dict[str, Any]
) -> None:
    engine = start(pooling, normalize=normalize, **flags)
    for _ in range(2):  # the second time prefixes are cached
        answers: Any = engine.encode(TEXTS)
        check(toy[1], answers, TEXTS, pooling, normalize=normalize)
    assert engine.get_server_info()["audit"] == []


@pytest.mark.parametrize("pooling", ["last", "mean", "cls"])
def test_few_rows_change_nothing(toy: tuple[Path, Any], start: Start, pooling: str) -> None:
    engine = start(pooling, max_running_requests=2, chunked_prefill_size=16)
    answers: Any = engine.encode(TEXTS * 3)
    check(toy[1], answers, TEXTS * 3, pooling)


def test_prefixes_are_used_where_the_last_token_is_pooled(start: Start) -> None:
    for pooling, cached in (("last", True), ("mean", False), ("cls", False)):
        engine = start(pooling, page_size=16)
        first: Any = engine.encode("y" * 70)
        again: Any = engine.encode("y" * 70)
        assert (again["meta_info"]["cached_tokens"] >= 64) is cached
        assert again["embedding"] == first["embedding"]


def test_dimensions_are_cut_before_the_length_is_one(toy: tuple[Path, Any], start: Start) -> None:
    answer: Any = start().encode(TEXTS[1], dimensions=7)
    assert len(answer["embedding"]) == 7
    check(toy[1], [answer], [TEXTS[1]], "last", dimensions=7)


def test_ids_and_concurrent_calls(toy: tuple[Path, Any], start: Start) -> None:
    engine = start()
    answer: Any = engine.encode(input_ids=read_ids("abc"))
    check(toy[1], [answer], ["abc"], "last")

    async def several() -> list[Any]:
        return await asyncio.gather(*(engine.async_encode(text) for text in TEXTS))

    check(toy[1], asyncio.run(several()), TEXTS, "last")


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ({"prompt": "a", "dimensions": 0}, "dimensions"),
        ({"prompt": "a", "dimensions": 97}, "dimensions"),
        ({"prompt": "a", "dimensions": "many"}, "dimensions"),
        ({"prompt": "a", "image_data": "x"}, "image_data"),
        ({"prompt": "a", "lora_path": "x"}, "lora_path"),
        ({"prompt": ["a", "b"], "rid": ["x"]}, "rid"),
        ({"prompt": []}, "prompt"),
        ({"prompt": "a", "input_ids": [1]}, "prompt"),
        ({"input_ids": [999]}, "input_ids"),
        ({"prompt": "a" * 200}, "prompt"),
    ],
)
def test_bad_calls(start: Start, call: dict[str, Any], field: str) -> None:
    with pytest.raises(vivace.BadRequest) as caught:
        start().encode(**call)
    assert caught.value.field == field


def test_each_kind_of_engine_refuses_the_other_kind(start: Start) -> None:
    with pytest.raises(vivace.BadRequest, match="is_embedding=True"):
        start().generate("a")
    with pytest.raises(vivace.BadRequest, match="is_embedding=True"):
        start(is_embedding=False).encode("a")


def test_a_text_may_fill_the_whole_context(toy: tuple[Path, Any], start: Start) -> None:
    answer: Any = start("mean").encode("z" * 127)
    check(toy[1], [answer], ["z" * 127], "mean")


@pytest.mark.parametrize("tied", [True, False])
def test_files_without_a_head_and_without_its_names(tmp_path: Path, tied: bool) -> None:
    """As AutoModel writes a model, and so Qwen3-Embedding is published."""
    model = write_embedding_toy(tmp_path, None, tie_word_embeddings=tied)
    file = tmp_path / "model.safetensors"
    bare = {
        name.removeprefix("model."): weight
        for name, weight in load_file(file).items()
        if name != "lm_head.weight"
    }
    save_file(bare, file)
    with Engine(tmp_path, is_embedding=True, dtype="float32", max_total_tokens=512) as engine:
        answers: Any = engine.encode(TEXTS)
        check(model, answers, TEXTS, "last")


# --- hidden states --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def generating(toy: tuple[Path, Any]) -> Iterator[Engine]:
    flags = {"enable_return_hidden_states": True, "dtype": "float32", "cpu_threads": 1}
    with Engine(toy[0], max_total_tokens=4096, chunked_prefill_size=16, **flags) as engine:
        yield engine


GREEDY = {"temperature": 0.0, "max_new_tokens": 6, "ignore_eos": True}


def test_hidden_states_are_those_of_transformers(toy: tuple[Path, Any], generating: Engine) -> None:
    for _ in range(2):  # whatever is cached
        answers: Any = generating.generate(TEXTS, GREEDY, return_hidden_states=True)
        for answer, text in zip(answers, TEXTS, strict=True):
            prompt, *tokens = answer["meta_info"]["hidden_states"]
            known = [*read_ids(text), *answer["output_ids"][:-1]]
            assert (len(prompt), len(tokens)) == (len(text) + 1, 5)
            expected = reference_states(toy[1], known)
            np.testing.assert_allclose([*prompt, *tokens], expected, rtol=1e-3, atol=1e-3)


def test_tokens_are_the_same_with_and_without(generating: Engine) -> None:
    plain: Any = generating.generate(TEXTS, GREEDY)
    mixed: Any = generating.generate(TEXTS, GREEDY, return_hidden_states=[True, False, True, False])
    assert [one["output_ids"] for one in mixed] == [one["output_ids"] for one in plain]
    assert ["hidden_states" in one["meta_info"] for one in mixed] == [True, False, True, False]


def test_streams_show_them_at_their_end(generating: Engine) -> None:
    whole: Any = generating.generate(TEXTS[1], GREEDY, return_hidden_states=True)
    events: Any = list(
        generating.generate(TEXTS[1], GREEDY, return_hidden_states=True, stream=True)
    )
    *earlier, last = [event["meta_info"] for event in events]
    assert last["hidden_states"] == whole["meta_info"]["hidden_states"]
    assert earlier and not any("hidden_states" in meta for meta in earlier)
    nothing: Any = generating.generate(
        TEXTS[1], {**GREEDY, "max_new_tokens": 0}, return_hidden_states=True
    )
    assert nothing["meta_info"]["hidden_states"] == whole["meta_info"]["hidden_states"][:1]


def test_they_are_refused_without_the_flag(start: Start) -> None:
    with pytest.raises(vivace.BadRequest, match="--enable-return-hidden-states") as caught:
        start(is_embedding=False).generate("a", return_hidden_states=True)
    assert caught.value.field == "return_hidden_states"
