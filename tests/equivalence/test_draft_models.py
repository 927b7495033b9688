"""A smaller model drafts: the tokens are those without drafts, and a draft that is the model itself
is always right."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from engine_under_test import Answer, Setting, build_config, build_engine, toy_requests
from layout_engines import LayoutEngines
from served_toy import write_byte_tokenizer
from toy_models import make

from vivace.protocol.messages import Request, SamplingParams

SHAPE = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 256,
    "eos_token_id": 257,
}
DRAFTS: dict[str, tuple[str, dict[str, Any]]] = {
    "itself": ("Llama", {}),
    "window": ("Mistral", {"num_hidden_layers": 3, "sliding_window": 9}),
    "odd": ("Qwen3", {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}),
    "wider": ("Llama", {"num_hidden_layers": 1, "vocab_size": 330}),
    "narrower": ("Qwen2", {"num_hidden_layers": 1, "vocab_size": 270}),
    "latents": (
        "DeepseekV3",
        {
            "num_hidden_layers": 1,
            "num_key_value_heads": 4,
            "q_lora_rank": 24,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 16,
            "v_head_dim": 16,
            "first_k_dense_replace": 1,
            "n_routed_experts": 8,
            "n_group": 2,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
        },
    ),
}
"""transformers' family and what it has besides SHAPE: also heads that two ranks do not divide, and
vocabularies with more and with fewer ids"""
PLAIN = Setting(batch=4, chunk=64, radix="on", depth=1, page=16)
SETTINGS = {
    "captured": PLAIN,
    "eager": Setting(batch=4, chunk=7, radix="on", depth=1, page=1, operations="eager"),
    "torch": Setting(batch=4, chunk=33, radix="on", depth=2, page=4, operations="torch"),
    "retracted": Setting(
        batch=8, chunk=64, radix="partly evicted", depth=1, page=16, retraction=True
    ),
    "mixed": Setting(batch=3, chunk=16, radix="off", depth=1, page=16, mixed=True),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafts")
    for name, (kind, settings) in DRAFTS.items():
        make(kind, folder / name, **{**SHAPE, **settings})
        write_byte_tokenizer(folder / name)
    return folder


def flags(models: Path, draft: str, steps: int, *, fixed: bool = True) -> dict[str, Any]:
    return {
        "speculative_algorithm": "STANDALONE",
        "speculative_draft_model_path": str(models / draft),
        "speculative_num_steps": steps,
        "speculative_fixed_width": fixed,
    }


@cache
def plain_answers(models: Path, setting: Setting) -> dict[str, Answer]:
    return build_engine(models / "itself", setting).run(toy_requests(10, stream=False))


def greedy(count: int) -> list[Request]:
    chance = random.Random(2)
    return [
        Request(
            key=0,
            rid=str(index),
            tokens=[chance.randrange(3, 250) for _ in range(chance.randint(1, 90))],
            sampling=SamplingParams(
                max_new_tokens=chance.randint(8, 40), temperature=0.0, ignore_eos=True
            ),
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("name", SETTINGS)
def test_the_model_itself_is_always_right(models: Path, name: str) -> None:
    engine = build_engine(models / "itself", SETTINGS[name], **flags(models, "itself", 3))
    engine.run(greedy(6), arrivals=random.Random(3))
    assert engine.accept_rate() == 1.0
    assert not engine.audit()


@pytest.mark.parametrize(
    ("name", "draft", "steps"),
    [
        *((name, "itself", 3) for name in SETTINGS),
        *(("captured", draft, 2) for draft in DRAFTS if draft != "itself"),
        ("torch", "latents", 1),
    ],
)
@pytest.mark.parametrize("fixed", [True, False])
def test_tokens_are_those_without_drafts(
    models: Path, name: str, draft: str, steps: int, fixed: bool
) -> None:
    setting = SETTINGS[name]
    options = flags(models, draft, steps, fixed=fixed)
    engine = build_engine(models / "itself", setting, **options)
    answers = engine.run(toy_requests(10, stream=False), arrivals=random.Random(steps))
    plain = plain_answers(models, setting)
    assert {rid: one.tokens for rid, one in answers.items()} == {
        rid: one.tokens for rid, one in plain.items()
    }
    assert not engine.audit()
    assert (engine.retractions > 0) == setting.retraction


def test_a_cached_prefix_has_the_draft_s_keys_too(models: Path) -> None:
    """A second request begins where the first one's prompt ends, and its first drafts are right."""
    engine = build_engine(models / "itself", PLAIN, **flags(models, "itself", 3))
    first, *_ = greedy(1)
    stem = list(range(3, 83))
    for tokens in (stem, [*stem, 7, 9]):
        engine.run([Request(key=0, rid="", tokens=tokens, sampling=first.sampling)])
    assert engine.accept_rate() == 1.0


@pytest.mark.parametrize("draft", ["itself", "odd", "latents"])
@pytest.mark.parametrize("layout", [{"tp_size": 2}, {"tp_size": 2, "dp_size": 2}])
def test_ranks_propose_the_same(models: Path, draft: str, layout: dict[str, int]) -> None:
    """They divide the draft, or each has all of it; engines that share layers draft each for
    itself."""
    attention = {"enable_dp_attention": True} if "dp_size" in layout else {}
    options = {**layout, **attention, **flags(models, draft, 2)}
    config = build_config(models / "itself", PLAIN, **options)
    engines = LayoutEngines(config, PLAIN)
    try:
        answers = engines.run(greedy(6))
        plain = build_engine(models / "itself", PLAIN).run(greedy(6))
        assert {rid: one.tokens for rid, one in answers.items()} == {
            rid: one.tokens for rid, one in plain.items()
        }
        if draft == "itself":
            assert all(one.accept_rate() == 1.0 for one in engines.engines)
    finally:
        engines.close()
