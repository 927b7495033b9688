"""The same tokens, however ranks and engines divide a model: a pairwise array over layouts.

Every row runs the same requests (greedy and seeded ones, some with penalties and shared prefixes)
on all ranks of a layout, in one process, and must give the tokens of one engine alone that computes
one request at a time; with sums in one order also the same log-probabilities, to the last bit. What
`vivace serve` refuses to start is no row, so that a layout is tried as soon as it is allowed. Ranks
are compared with each other in every step.
"""

from __future__ import annotations

import random
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import transformers
from engine_under_test import (
    Answer,
    Engine,
    Setting,
    build_config,
    skip_unbuilt,
    toy_requests,
)
from layout_engines import LayoutEngines
from pairwise import Row, pairwise
from toy_models import SHAPE, make

from vivace.checkpoint.source import ModelSource
from vivace.config.errors import ConfigError
from vivace.config.parsing import from_arguments
from vivace.config.resolution import resolve
from vivace.models.facts import ModelFacts, read_facts
from vivace.platforms.platform import detect
from vivace.worker.build import build_worker

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "num_attention_heads": 24,
    "intermediate_size": 96,
}
EXPERTS = 8
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", SIZES | {"num_key_value_heads": 1, "head_dim": 16}),
    "mixture": ("Qwen3Moe", SIZES | {
        "num_key_value_heads": 24, "head_dim": 16, "num_experts": EXPERTS,
        "num_experts_per_tok": 3, "moe_intermediate_size": 96, "mlp_only_layers": [1]}),
    "recurrent": ("Qwen3Next", SIZES | {
        "num_key_value_heads": 24, "head_dim": 16, "num_experts": EXPERTS,
        "num_experts_per_tok": 3, "moe_intermediate_size": 96, "linear_num_key_heads": 24,
        "linear_num_value_heads": 48, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
        "shared_expert_intermediate_size": 96, "full_attention_interval": 2}),
    "latent": ("DeepseekV3", SIZES | {
        "num_key_value_heads": 24, "q_lora_rank": 24, "kv_lora_rank": 40, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": EXPERTS,
        "num_experts_per_tok": 2, "moe_intermediate_size": 96, "n_group": 2, "topk_group": 1,
        "first_k_dense_replace": 1}),
}  # fmt: skip
LAYOUT: dict[str, list[Any]] = {
    "model": list(MODELS),
    "tp": [1, 2, 3, 4, 8],
    "pp": [1, 2],
    "dp": [1, 2],
    "attention": [False, True],
    "ep": [1, 2, 4],
    "copies": ["none", "static", "moved"],
    "fixed": [False, True],
    "drafts": [0, 4],
}
SETTINGS: dict[str, list[Any]] = {
    **LAYOUT,
    "batch": [3, 7],
    "chunk": [-1, 17],
    "radix": ["off", "cold", "warm"],
    "depth": [1, 2],
    "page": [1, 16],
    "retraction": [False, True],
    "operations": ["captured", "eager"],
}
COUNT = 12
FIRST = 14
"""rows that are always run"""
MOVING_STEPS = 6


machine = cache(partial(detect, "cpu"))


def layout_flags(row: Row) -> dict[str, Any]:
    flags: dict[str, Any] = {
        "tp_size": row["tp"],
        "pp_size": row["pp"],
        "dp_size": row["dp"],
        "enable_dp_attention": row["attention"],
        "ep_size": row["ep"],
        "enable_deterministic_inference": row["fixed"],
    }
    if row["copies"] != "none":
        flags |= {"ep_num_redundant_experts": row["ep"]}
    if row["drafts"]:
        flags |= {
            "speculative_algorithm": "NGRAM",
            "speculative_num_draft_tokens": 1 + row["drafts"],
            "speculative_fixed_width": True,
            "speculative_ngram_max_bfs_breadth": 3 if "kernels" in machine().features else 1,
        }
    if row["copies"] == "moved":
        flags |= {"enable_eplb": True, "eplb_rebalance_num_iterations": MOVING_STEPS}
    return flags


@cache
def described(model: str) -> tuple[ModelSource, ModelFacts]:
    """What a server reads of its files before it starts."""
    kind, settings = MODELS[model]
    config = getattr(transformers, f"{kind}Config")(**SHAPE | settings).to_dict()
    source = ModelSource(
        path=Path("/models/toy"),
        format="safetensors",
        files=(Path("/models/toy/model.safetensors"),),
        config=config | {"architectures": [f"{kind}ForCausalLM"]},
        tokenizer_path=Path("/models/toy"),
    )
    return source, read_facts(source)


@cache
def starts(*values: Any) -> bool:
    """Whether a server does, with the flags of a layout."""
    row = dict(zip(LAYOUT, values, strict=True))
    options = from_arguments(model_path="toy", dtype="float32", **layout_flags(row))
    try:
        resolve(options, *described(row["model"]), machine())
    except ConfigError:
        return False
    return row["dp"] > 1 or not row["attention"]  # of one engine it is no other layout


def legal(row: Row) -> bool:
    return starts(*(row[name] for name in LAYOUT))


ROWS = pairwise(SETTINGS, seed=58, legal=legal)
"""with the seed of 60 whose first rows have the most pairs: 670 of 690"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("layouts")
    for name, (kind, settings) in MODELS.items():
        make(kind, folder / name, **settings)
    return {name: folder / name for name in MODELS}


@cache
def plain_answers(model: Path, fixed: bool) -> dict[str, Answer]:
    plain = Setting(batch=1, chunk=-1, radix="off", depth=1, page=1, operations="eager")
    config = build_config(model, plain, enable_deterministic_inference=fixed)
    engine = Engine(build_worker(config, lambda stage, done: None), config, plain)
    return engine.run(toy_requests(COUNT, stream=False))


def tokens(answers: dict[str, Answer]) -> dict[str, list[int]]:
    return {rid: answer.tokens for rid, answer in answers.items()}


def accepted_drafts(engine: Engine) -> float:
    state = engine.state()
    return (state.avg_spec_accept_rate or 0.0) * sum(
        drafts * spans for drafts, spans in state.spec_draft_widths.items()
    )


def limited(rows: list[Row]) -> list[Any]:
    return [
        pytest.param(row, marks=[] if i < FIRST else [pytest.mark.slow])
        for i, row in enumerate(rows)
    ]


@pytest.mark.parametrize("row", limited(ROWS), ids=lambda row: "-".join(map(str, row.values())))
def test_same_tokens(models: dict[str, Path], row: Row) -> None:
    skip_unbuilt(row["operations"])
    model = models[row["model"]]
    rest = {name: value for name, value in row.items() if name not in LAYOUT}
    setting = Setting(**rest)
    config = build_config(model, setting, **layout_flags(row))
    requests = toy_requests(COUNT, stream=False)
    with closing(LayoutEngines(config, setting)) as group:
        if setting.radix == "warm":
            group.run(requests[::2])
        answers = group.run(requests, arrivals=random.Random(1))
        plain = plain_answers(model, row["fixed"])
        assert tokens(answers) == tokens(plain)
        assert answers == plain or not row["fixed"]
        assert [engine.audit() for engine in group.engines] == [[] for _ in group.engines]
        if row["drafts"]:
            assert sum(accepted_drafts(engine) for engine in group.engines) > 0
        if row["copies"] == "moved":
            assert group.moves() > 0, "the row was meant to move experts"


def test_every_size_is_in_a_row() -> None:
    """Of what can be started now; the first rows have most of it."""
    for name, values in LAYOUT.items():
        assert {row[name] for row in ROWS} == set(values), name
    assert {row["model"] for row in ROWS[:FIRST]} == set(MODELS)
    assert any(row["attention"] for row in ROWS[:FIRST])
    assert not legal({**ROWS[0], "tp": 3, "ep": 2})
