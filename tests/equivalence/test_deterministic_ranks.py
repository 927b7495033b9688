"""--enable-deterministic-inference: logits with the same bits on any number of ranks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import paged_model
import pytest
import rank_toys
import torch
from descriptors import rank_memories
from engine_under_test import Answer, Setting, build_config, toy_requests
from fp8_toys import make_fp8
from gguf import GGMLQuantizationType as Kind
from gguf_toys import write
from layout_engines import LayoutEngines
from mxfp4_toys import make_mxfp4
from quantized_toys import (
    AWQ,
    StoredModel,
    awq,
    awq_meant,
    dynamic,
    dynamic_meant,
    static,
    static_meant,
    store_static,
)
from rank_toys import FAMILIES
from thread_ranks import ThreadRanks
from torch import Tensor
from toy_models import make, tokens

from vivace.checkpoint.open import open_weights
from vivace.checkpoint.source import locate
from vivace.errors import CannotStart
from vivace.layers.expert_location import ExpertLocations
from vivace.models.facts import read_facts
from vivace.platforms.cpu.native import Kernels, NoKernels
from vivace.platforms.cpu.platform import NativePlatform
from vivace.platforms.cpu.shared_group import SharedMemoryGroup
from vivace.platforms.groups import SINGLE_RANK, Group
from vivace.platforms.platform import detect

SIZES: dict[str, Any] = {
    **rank_toys.SIZES,
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_attention_heads": 24,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 96}
LATENT: dict[str, Any] = {
    **FAMILIES["DeepseekV3"],
    "moe_intermediate_size": 96,
    "num_key_value_heads": 24,
    "q_lora_rank": 32,
}
FUSED = {**FAMILIES["GptOss"], "sliding_window": 24}
IDS, CHUNKS = tokens(21), [9, 1, 11]


def of_family(
    kind: str,
    quantization: str | None = None,
    dtype: torch.dtype = torch.float32,
    **more: Any,
) -> Callable[[Path], dict[str, Any]]:
    def write_files(folder: Path) -> dict[str, Any]:
        make(kind, folder / "model", **{**SIZES, **more})
        return {"path": folder / "model", "quantization": quantization, "dtype": dtype}

    return write_files


def as_gguf(kind: Kind, **how: Any) -> Callable[[Path], dict[str, Any]]:
    def write_files(folder: Path) -> dict[str, Any]:
        sizes = {**SIZES, "hidden_size": 192, "intermediate_size": 768, "head_dim": 32}
        model = make("Llama", folder / "model", **sizes)
        write(model, folder / "model.gguf", "llama", kind)
        return {"path": folder / "model.gguf", **how}

    return write_files


def stored_as(kind: str, stored: Any, meant: Any, **config: Any) -> Callable[[Path], Any]:
    def write_files(folder: Path) -> dict[str, Any]:
        sizes = {**SIZES, "intermediate_size": 768, "head_dim": 32}
        toy = StoredModel(folder / "model", "Qwen2", **sizes)
        toy.store(stored, meant, kind=kind)
        toy.save(**config)
        if kind:
            toy.describe()
        return {"path": folder / "model"}

    return write_files


def as_mxfp4(folder: Path) -> dict[str, Any]:
    sizes = {**SIZES, "intermediate_size": 768, "sliding_window": 7}
    make_mxfp4(folder / "model", **sizes, num_local_experts=4, num_experts_per_tok=2)
    return {"path": folder / "model"}


def as_fp8(folder: Path) -> dict[str, Any]:
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128}
    settings: dict[str, Any] = {**sizes, "intermediate_size": 1024}
    stored, _ = make_fp8(folder / "model", "Llama", **settings)
    return {"path": stored}


def with_static_experts(folder: Path) -> dict[str, Any]:
    store_static(folder, **{**SIZES, **EXPERTS})
    return {"path": folder}


MODELS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "Llama": of_family("Llama"),
    "Gemma2": of_family("Gemma2", num_key_value_heads=24),
    "Qwen2, biases": of_family("Qwen2"),
    "Qwen3Moe": of_family("Qwen3Moe", **EXPERTS),
    "Qwen2Moe": of_family("Qwen2Moe", **EXPERTS, shared_expert_intermediate_size=192),
    "Qwen3Next": of_family(
        "Qwen3Next",
        **EXPERTS,
        shared_expert_intermediate_size=192,
        linear_num_key_heads=24,
        linear_num_value_heads=48,
        linear_key_head_dim=8,
        linear_value_head_dim=16,
        full_attention_interval=2,
    ),
    "DeepseekV3": of_family("DeepseekV3", **LATENT),
    "Llama4": of_family("Llama4Text", num_local_experts=4, intermediate_size_mlp=96),
    "GptOss, MXFP4": as_mxfp4,
    "FP8": as_fp8,
    "Q4_0": as_gguf(Kind.Q4_0),
    "Q4_0 by int8": as_gguf(Kind.Q4_0, int8_activations=True),
    "Q8_0": as_gguf(Kind.Q8_0),
    "AWQ": stored_as("", awq, awq_meant, quantization_config=AWQ),
    "static int8": stored_as("W8A8", static, static_meant),
    "dynamic int8": stored_as("W8A8_DYNAMIC", dynamic, dynamic_meant),
    "static int8 experts": with_static_experts,
    "int8 experts": of_family("Qwen3Moe", "w8a8_int8", **EXPERTS),
    "w8a16 experts": of_family("Qwen3Moe", "w8a16", **EXPERTS),
    "bfloat16": of_family("Qwen3Moe", dtype=torch.bfloat16, **EXPERTS),
}
OTHERS = {"FP8": (2, 4, 8)}
"""Sizes of those that three ranks cannot divide"""


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        native = NativePlatform(detect("cpu"), Kernels(1))
    except NoKernels as reason:
        pytest.skip(str(reason))
    monkeypatch.setattr(paged_model, "PLATFORM", native)


def compute(size: int, path: Path, **how: Any) -> Tensor:
    """[prompt, vocabulary]"""
    return joined(size, path, **how).feed(IDS, CHUNKS)


def joined(size: int, path: Path, *, deterministic: bool = True, **how: Any) -> ThreadRanks:
    """Ranks that exchange over shared memory"""
    memories = rank_memories(size)

    def join(kernels: Kernels, rank: int) -> Group:
        if size == 1:
            return SINGLE_RANK
        return SharedMemoryGroup(kernels, memories[rank], rank, size)

    return ThreadRanks(path, size, make_group=join, deterministic=deterministic, **how)


@pytest.mark.parametrize("name", MODELS)
def test_any_number_of_ranks(name: str, tmp_path: Path) -> None:
    how = MODELS[name](tmp_path)
    wanted = compute(1, **how)
    for size in OTHERS.get(name, (2, 3, 4, 8)):
        found = compute(size, **how)
        assert torch.equal(found, wanted), (size, (found - wanted).abs().max())


@pytest.mark.parametrize("name", ["Qwen3Moe", "Qwen2Moe", "DeepseekV3", "GptOss, MXFP4"])
def test_experts_on_any_ranks(name: str, tmp_path: Path) -> None:
    """Whole ones on different ranks, with copies, and ranks that divide their inside."""
    how = MODELS[name](tmp_path)
    wanted = compute(1, **how)
    for size, ep, redundant in ((2, 2, 0), (4, 2, 2), (4, 4, 0), (8, 4, 4), (6, 2, 4)):
        experts = ExpertLocations(redundant=redundant, algorithm="dynamic")
        found = compute(size, ep=ep, experts=experts, **how)
        assert torch.equal(found, wanted), (size, ep, (found - wanted).abs().max())


def test_experts_that_move_and_prompts_that_are_cut_otherwise(tmp_path: Path) -> None:
    how, count = MODELS["Qwen3Moe"](tmp_path), EXPERTS["num_experts"]
    wanted, source = compute(1, **how), locate(str(how["path"]))
    ranks = joined(4, ep=2, experts=ExpertLocations(redundant=4, counted=True), **how)
    found = [ranks.feed(IDS[:3], [3])]
    for seed in range(3):
        placed = [*range(count), *random.Random(seed).choices(range(count), k=4)]
        random.Random(seed).shuffle(placed)
        for rank, layer in itertools.product(range(4), range(2)):
            weights = open_weights(source, read_facts(source), seed=0, progress=lambda *_: None)
            with torch.inference_mode():
                ranks.experts(rank)[layer].move(placed, weights)()
        found.append(ranks.feed(IDS[3 + 6 * seed : 9 + 6 * seed], [1, 5]))
    assert torch.equal(torch.cat(found), wanted)


@pytest.mark.parametrize("name", ["Llama", "DeepseekV3", "GptOss"])
def test_stages_of_any_number_of_ranks(name: str, tmp_path: Path) -> None:
    """Engines: log-probabilities of prompts and answers, whatever step they are computed in."""
    more = {"DeepseekV3": LATENT, "GptOss": FUSED}.get(name, {})
    sizes = {**SIZES, "num_hidden_layers": 3, "vocab_size": 300, "max_position_embeddings": 512}
    model = tmp_path / "model"
    make(name, model, **{**sizes, **more})
    found = [answers(model, pp, tp) for pp, tp in ((1, 1), (2, 3), (3, 1), (3, 4))]
    assert all(one == found[0] for one in found)


def answers(model: Path, pp: int, tp: int) -> dict[str, Answer]:
    setting = Setting(batch=8, chunk=17, radix="on", depth=pp, page=16)
    sizes = {"pp_size": pp, "tp_size": tp}
    config = build_config(model, setting, **sizes, enable_deterministic_inference=True)
    with closing(LayoutEngines(config, setting)) as engines:
        return engines.run(toy_requests(6, stream=True, seed=1))


@pytest.mark.parametrize("name", ["Llama", "Qwen3Moe"])
def test_without_the_mode_ranks_round_otherwise(name: str, tmp_path: Path) -> None:
    """So the tests above are about something."""
    how = MODELS[name](tmp_path)
    wanted, found = (compute(size, deterministic=False, **how) for size in (1, 4))
    assert not torch.equal(found, wanted)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def test_the_mode_computes_the_same_model(tmp_path: Path) -> None:
    how = MODELS["DeepseekV3"](tmp_path)
    found, wanted = (compute(1, deterministic=one, **how) for one in (True, False))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def test_ranks_that_would_part_segments_are_refused(tmp_path: Path) -> None:
    how = of_family("Llama", num_attention_heads=32, hidden_size=128, intermediate_size=160)
    with pytest.raises(CannotStart, match="deterministic"):
        compute(16, **how(tmp_path))
