"""GGUF files that other tools write: served, or refused with what to do, before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Kind

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.gguf_config import NOT_READ
from vivace.checkpoint.gguf_file import GGUFFile
from vivace.checkpoint.gguf_weights import MOST_HELD, GGUFWeights
from vivace.checkpoint.source import locate
from vivace.checkpoint.weights import CheckpointError
from vivace.frontend.errors import TokenizerError
from vivace.frontend.tokenizer_gguf import build_tokenizer
from vivace.models.document import treatment

Change = Callable[[gguf.GGUFWriter], object]


def nothing(_writer: gguf.GGUFWriter) -> None:
    pass


def write(
    folder: Path, change: Change = nothing, architecture: str = "llama", *, tensors: bool = True
) -> Path:
    """The header of a byte-level model and one matrix."""
    file = folder / "toy.gguf"
    writer = gguf.GGUFWriter(str(file), architecture)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab"])
    if tensors:
        writer.add_tensor("token_embd.weight", np.zeros((3, 32), np.float32))
    change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize(
    "change, architecture, said",
    [
        (lambda it: it.add_type("adapter"), "llama", "LoRA.*merge"),
        (lambda it: it.add_type("imatrix"), "imatrix", "importance matrix.*give the model"),
        (lambda it: it.add_type("mmproj"), "clip", "projector.*give the model"),
        (nothing, "clip", "projector.*give the model"),
        (nothing, "controlvector", "control vector"),
        (nothing, "rwkv7", "rwkv7.*not supported.*--model-impl transformers"),
        (lambda it: it.add_expert_count(8), "qwen2", "expert_count.*--model-impl transformers"),
        (lambda it: it.add_tensor("x", np.zeros(3)), "llama", "'x' is F64.*another type"),
    ],
)
def test_what_is_no_dense_model(
    change: Change, architecture: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=said):
        locate(str(write(tmp_path, change, architecture)))


def test_a_vocabulary_alone(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="vocabulary"):
        locate(str(write(tmp_path, tensors=False)))


def test_a_first_part_without_tensors_is_a_part(tmp_path: Path) -> None:
    file = write(tmp_path, lambda it: it.add_uint16("split.count", 3), tensors=False)
    with pytest.raises(SourceError, match=r" 3 .*--merge"):
        locate(str(file))


def test_types_that_are_not_read_are_those_nobody_decodes() -> None:
    refused = {kind.name for kind in Kind if treatment(kind) == "refused"}
    numbers = {kind.name for kind in Kind if not treatment(kind)}
    assert refused | numbers == NOT_READ & set(Kind.__members__)  # older packages know fewer


def test_a_vocabulary_that_does_not_say_how_texts_are_split(tmp_path: Path) -> None:
    file = write(tmp_path)
    (notice,) = locate(str(file)).notices
    assert "tokenizer.ggml.pre is missing" in notice and "--tokenizer-path" in notice
    assert not locate(str(file), tokenizer_path=str(file.parent)).notices
    named = write(tmp_path, lambda it: it.add_tokenizer_pre("qwen2"))
    assert not locate(str(named)).notices


def test_a_byte_level_vocabulary_has_merges() -> None:
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b", "ab"]}
    with pytest.raises(TokenizerError, match=r"no tokenizer\.ggml\.merges.*--tokenizer-path"):
        build_tokenizer(metadata, "toy.gguf")
    core = build_tokenizer({**metadata, "tokenizer.ggml.merges": ["a b"]}, "toy.gguf")[0]
    assert core.encode("ab").ids == [2]


@pytest.mark.parametrize("name", ["{:10000000}{{}}", "x{}{a}", "{}{}", "blk.0.nextn.{0.x}{{}}.a"])
def test_a_name_with_braces_is_none(name: str, tmp_path: Path) -> None:
    file = write(tmp_path, lambda it: it.add_tensor(name, np.zeros((4, 1, 1), np.float16)), "llama")
    facts: Any = SimpleNamespace(model_type="llama", heads=1, kv_heads=1, tied=False)
    with pytest.raises(CheckpointError, match="name"):
        GGUFWeights(GGUFFile(file), facts)


@pytest.mark.parametrize("tensors", [1, 3])
def test_more_experts_than_a_model_has_are_not_listed(tensors: int, tmp_path: Path) -> None:
    """Small ones in a small file: a list of them would take far more memory than that."""

    def add(writer: gguf.GGUFWriter) -> None:
        for layer in range(tensors):
            many = np.zeros((MOST_HELD // tensors + 1, 1, 1), np.float16)
            writer.add_tensor(f"blk.{layer}.ffn_gate_exps.weight", many)

    file = write(tmp_path, add, "qwen3moe")
    facts: Any = SimpleNamespace(model_type="qwen3_moe", heads=1, kv_heads=1, tied=False)
    with pytest.raises(CheckpointError, match="experts"):
        GGUFWeights(GGUFFile(file), facts)
