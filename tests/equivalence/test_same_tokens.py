"""The same tokens, whatever is switched on: a pairwise array over the engine's features.

Every row runs the same requests (half greedy, half seeded, some with penalties and shared prefixes)
through the real scheduler, loop and worker on a toy Llama, in float32 or in GGUF's 4-bit blocks
(which the kernels multiply with activations in int8), and must give exactly the tokens of the
plainest engine: one request at a time, nothing cached, nothing chunked, every step eager. With the
native kernels log-probabilities are the same too, bit by bit.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
from engine_under_test import (
    Answer,
    Engine,
    Setting,
    build_engine,
    skip_unbuilt,
    toy_requests,
    write_toy_llama,
)
from gguf import GGMLQuantizationType as Kind
from gguf_toys import write
from mxfp4_toys import make_mxfp4
from pairwise import pairwise
from served_toy import toy_llama
from toy_models import make

from vivace.protocol.messages import Request
from vivace.protocol.tasks import GENERATE

SETTINGS = {
    "batch": [1, 7, 32],
    "chunk": [-1, 1, 17, 64],
    "radix": ["off", "cold", "warm", "partly evicted", "moved"],
    "depth": [1, 2],
    "page": [1, 16],
    "mixed": [False, True],
    "stall": [0.0, 0.001, 50.0],
    "retraction": [False, True],
    "stream": [False, True],
    "operations": ["captured", "eager", "torch"],
    "captures": [None, (1, 2, 6)],
    "exact": [False, True],
    "weights": [
        "float32",
        "q4_1",
        "gemma3",
        "mistral",
        "mixture",
        "gpt-oss",
        "latent",
        "llama4",
    ],
    "windows": ["one pool", "own", "tight"],
}
ROWS = pairwise(SETTINGS, seed=11)
"""with the seed of 200 whose rows take the fewest steps"""
COUNT = 24
SLIDING = ("gemma3", "mistral", "gpt-oss")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("equivalence")
    blocks = folder / "toy-Q4_1.gguf"
    write(toy_llama(), blocks, "llama", Kind.Q4_1)
    sliding = {"vocab_size": 300, "max_position_embeddings": 512, "sliding_window": 24}
    make("Gemma3Text", folder / "gemma3", **sliding, head_dim=16, sliding_window_pattern=2)
    make("Mistral", folder / "mistral", **sliding, head_dim=16)
    make(
        "Qwen2Moe",
        folder / "mixture",
        **{**sliding, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40},
        shared_expert_intermediate_size=48,
        mlp_only_layers=[1],
    )
    make_mxfp4(
        folder / "gpt-oss",
        **{**sliding, "num_local_experts": 6, "num_experts_per_tok": 3},
    )
    make(
        "DeepseekV3",
        folder / "latent",
        **{**sliding, "num_key_value_heads": 6, "q_lora_rank": 24},
        kv_lora_rank=40,
        qk_nope_head_dim=16,
        qk_rope_head_dim=16,
        v_head_dim=24,
        n_routed_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=40,
        n_group=3,
        topk_group=2,
        first_k_dense_replace=1,
    )
    make(
        "Llama4Text",
        folder / "llama4",
        **{**sliding, "num_local_experts": 3, "intermediate_size_mlp": 112, "head_dim": 16},
        attention_chunk_size=24,
        floor_scale=10,
        interleave_moe_layer_step=2,
        no_rope_layer_interval=2,
    )
    return {
        "float32": write_toy_llama(folder / "float32"),
        "q4_1": blocks,
        "gemma3": folder / "gemma3",
        "mistral": folder / "mistral",
        "mixture": folder / "mixture",
        "gpt-oss": folder / "gpt-oss",
        "latent": folder / "latent",
        "llama4": folder / "llama4",
    }


@cache
def plain_answers(model: Path, arithmetic: str) -> dict[str, Answer]:
    """`arithmetic`: "eager" is the kernels', captured or not."""
    plain = Setting(batch=1, chunk=-1, radix="off", depth=1, page=1, operations=arithmetic)
    return build_engine(model, plain).run(toy_requests(COUNT, stream=False))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row.values())))
def test_same_tokens(models: dict[str, Path], row: dict[str, object]) -> None:
    setting, model = Setting(**row), models[str(row["weights"])]  # type: ignore[arg-type]
    skip_unbuilt(setting.operations)
    engine = build_engine(model, setting)
    requests = asked(setting, COUNT)
    warm(engine, setting, requests)
    answers = engine.run(requests, arrivals=random.Random(1))
    if setting.operations == "torch":
        plain = plain_answers(model, "torch")
        other = [rid for rid in answers if answers[rid].tokens != plain[rid].tokens]
        assert len(other) <= 1, "sums that depend on the batch may decide one tie"
    else:
        plain = plain_answers(model, "eager")
        assert answers == {rid: plain[rid] for rid in answers}
    if setting.retraction and setting.batch > 1 and setting.chunk != 1:
        assert engine.retractions > 0, "the row was meant to force retractions"
    assert (engine.replays() > 0) is (setting.operations == "captured")
    own = 1 if setting.windows != "one pool" and setting.weights in SLIDING else 0
    assert len(engine.window_pages()) == own
    assert engine.audit() == []
    assert engine.held_tokens() == 0


def test_log_probabilities_are_compared(models: dict[str, Path]) -> None:
    """Half of the requests ask for them, and the two arithmetics do not give the same bits."""
    skip_unbuilt("eager")
    model = models["float32"]
    kernels, torch = plain_answers(model, "eager"), plain_answers(model, "torch")
    requests = toy_requests(COUNT, stream=False)
    asked = [request.rid for request in requests if request.logprobs]
    assert len(asked) == 3 * COUNT // 8
    assert all(len(kernels[rid].logprobs) == len(kernels[rid].tokens) for rid in asked)
    assert any(kernels[rid].prompt_logprobs for rid in asked)
    assert answer_tokens(kernels) == answer_tokens(torch) and kernels != torch
    numbers = [request.rid for request in requests if request.task != GENERATE]
    assert len(numbers) == 3 * COUNT // 8 and all(kernels[rid].numbers for rid in numbers)


def test_int8_activations_are_compared(models: dict[str, Path]) -> None:
    """They change tokens of a random model, so the rows with blocks did multiply with int8."""
    skip_unbuilt("eager")
    blocks = models["q4_1"]
    assert answer_tokens(plain_answers(blocks, "eager")) != answer_tokens(
        plain_answers(blocks, "torch")
    )


def answer_tokens(answers: dict[str, Answer]) -> dict[str, list[int]]:
    return {rid: answer.tokens for rid, answer in answers.items()}


def asked(setting: Setting, count: int) -> list[Request]:
    """Half as many, of every kind, where each token of a prompt is a step."""
    single = setting.chunk == setting.page == 1
    return toy_requests(count // 2 if single else count, stream=setting.stream)


def warm(engine: Engine, setting: Setting, requests: list[Request]) -> None:
    """Fill the prefix cache with some of the prompts before the run that counts."""
    others = toy_requests(len(requests) // 2, stream=False, seed=99)
    if setting.radix == "warm":
        engine.run(requests[::2])
    if setting.radix == "partly evicted":
        engine.run(requests[::2])
        engine.run(others)
    if setting.radix == "moved":
        engine.run(others)
        engine.run(requests[::2])
        before = engine.resident()
        assert engine.rest() > 0
        assert engine.resident() < before
