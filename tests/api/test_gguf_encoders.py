"""Encoders from GGUF files in whole engines, vocabularies included, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embedding_toys import reference_embedding
from encoder_toys import read_inputs, write_encoder
from gguf_encoder_toys import CLS, LAST, MEAN, RANK, write_gguf_encoder
from gguf_toys import write
from toy_models import make, tokens

import vivace
from vivace.api import Engine
from vivace.checkpoint.source import SourceError, locate

TEXTS = ["The sea is wide.", "why?", "THE skies are h\u00efgh, how [high]? fishers"]
PAIRS = [["why?", "The sea is wide."], ["how high is the sky?", "ten"]]
FLAGS: dict[str, Any] = {"dtype": "float32", "cpu_threads": 1, "max_total_tokens": 1024}


@pytest.mark.parametrize("name", ["BertModel", "XLMRobertaModel", "NomicBertModel"])
@pytest.mark.parametrize("pooling", [MEAN, CLS])
def test_vectors_are_those_of_transformers(tmp_path: Path, name: str, pooling: int) -> None:
    file = tmp_path / "toy.gguf"
    model = write_encoder(tmp_path, name)
    write_gguf_encoder(model, tmp_path, file, pooling)
    with Engine(file, **FLAGS) as engine:
        answers: Any = engine.encode(TEXTS)
        spaced: Any = engine.encode(" The  sea is wide. ")
        assert engine.get_server_info()["is_embedding"] is True
    assert spaced["embedding"] == answers[0]["embedding"]
    for text, answer in zip(TEXTS, answers, strict=True):
        inputs = read_inputs(tmp_path, text)
        with torch.inference_mode():
            states = model(**inputs).last_hidden_state[0].double()
        pooled = states.mean(0) if pooling == MEAN else states[0]
        assert answer["meta_info"]["prompt_tokens"] == inputs["input_ids"].numel()
        np.testing.assert_allclose(answer["embedding"], pooled / pooled.norm(), atol=1e-5)


def test_a_cross_encoder_ranks_pairs(tmp_path: Path) -> None:
    file = tmp_path / "toy.gguf"
    model = write_encoder(tmp_path, "XLMRobertaForSequenceClassification", num_labels=1)
    write_gguf_encoder(model, tmp_path, file, RANK)
    with Engine(file, **FLAGS) as engine:
        answers: Any = engine.rerank(PAIRS)
    for (query, document), answer in zip(PAIRS, answers, strict=True):
        with torch.inference_mode():
            (number,) = model(**read_inputs(tmp_path, query, document)).logits[0].tolist()
        assert answer["embedding"] == pytest.approx(1 / (1 + np.exp(-number)), abs=1e-5)


@pytest.mark.parametrize(("kind", "pooling"), [(MEAN, "mean"), (CLS, "cls"), (LAST, "last")])
def test_a_decoder_says_what_it_pools(tmp_path: Path, kind: int, pooling: str) -> None:
    """As Qwen3-Embedding's files do"""
    model, file = make("Qwen3", tmp_path, head_dim=16), tmp_path / "toy.gguf"
    write(model, file, "qwen3", pooling=kind)
    ids = tokens(20)
    with Engine(file, is_embedding=True, skip_tokenizer_init=True, **FLAGS) as engine:
        answer: Any = engine.encode(input_ids=ids)
    expected = reference_embedding(model, ids, pooling)
    np.testing.assert_allclose(answer["embedding"], expected, atol=1e-5)


def test_files_that_are_no_encoder_of_ours(tmp_path: Path) -> None:
    model, file = write_encoder(tmp_path, "BertModel"), tmp_path / "toy.gguf"
    write_gguf_encoder(model, tmp_path, file, RANK)
    with pytest.raises(vivace.CannotStart, match="pooling_type"):
        Engine(file, **FLAGS)
    judge = write_encoder(tmp_path, "XLMRobertaForSequenceClassification", num_labels=1)
    write_gguf_encoder(judge, tmp_path, file, RANK)
    (tmp_path / "bad.gguf").write_bytes(file.read_bytes().replace(b"cls.weight", b"cls.w3ight"))
    with pytest.raises(SourceError, match="pooler"):
        locate(str(tmp_path / "bad.gguf"))
    write_gguf_encoder(write_encoder(tmp_path, "XLMRobertaModel"), tmp_path, file)
    (tmp_path / "bad.gguf").write_bytes(file.read_bytes().replace(b"unknown_t", b"unkn0wn_t"))
    with pytest.raises(vivace.CannotStart, match="unknown_token_id"):
        Engine(tmp_path / "bad.gguf", **FLAGS)
    for tensor in ("position_embd", "token_types"):
        data = file.read_bytes().replace(f"{tensor}.weight".encode(), f"{tensor}.w3ight".encode())
        (tmp_path / "bad.gguf").write_bytes(data)
        with pytest.raises(SourceError, match=tensor):
            locate(str(tmp_path / "bad.gguf"))
