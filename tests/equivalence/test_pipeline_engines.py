"""Engines of several stages: the tokens, log-probabilities and vectors of one stage, to the bit,
with everything a scheduler does."""

from __future__ import annotations

import dataclasses
import os
import random
from contextlib import closing
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from draft_head_toys import RECURRENT
from engine_under_test import Answer, Setting, build_config, toy_requests
from layout_engines import LayoutEngines
from msgspec.structs import replace
from toy_models import make

from vivace.config.errors import ConfigError
from vivace.offline.sharded_state import save_sharded_state
from vivace.platforms.cpu.facts import has_kernels
from vivace.protocol.messages import Cancel, Request

pytestmark = pytest.mark.skipif(not has_kernels(), reason="the native kernels were not built")
SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 3,
    "max_position_embeddings": 512,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
MODELS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen3Moe": EXPERTS,
    "Qwen3Next": RECURRENT,
    "Qwen3Next, mixed": {
        **RECURRENT,
        "layer_types": ["full_attention", "linear_attention", "full_attention"],
    },
    "DeepseekV3": LATENT,
    "GptOss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 24},
}
DEEPER = {"pp_async_batch_depth": 1, "enable_dynamic_chunking": True}
LAYOUTS = [(2, 1, {}), (3, 1, {}), (2, 2, {}), (2, 1, DEEPER)]
PLAIN = Setting(batch=8, chunk=48, radix="on", depth=1, page=16)
COUNT = 12 if os.environ.get("VIVACE_SLOW_TESTS") else 2


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("stages")
    for name, more in MODELS.items():
        make(name.partition(",")[0], folder / name, **{**SIZES, **more})
    return {name: folder / name for name in MODELS}


def draw_setting(chance: random.Random) -> Setting:
    pick = chance.choice
    return Setting(
        batch=pick([3, 8]),
        chunk=pick([16, 48, -1]),
        radix=pick(["on", "off", "partly evicted"]),
        depth=1,
        page=pick([1, 16]),
        mixed=pick([False, True]),
        stall=pick([0.0, 50.0]),
        retraction=pick([False, True]),
        operations=pick(["captured", "native"]),
        windows=pick(["one pool", "own pools", "tight"]),
    )


@cache
def wanted(path: Path, tp: int, seed: int) -> dict[str, Answer]:
    """Of one stage, one request at a time."""
    config = build_config(path, dataclasses.replace(PLAIN, batch=1), tp_size=tp)
    with closing(LayoutEngines(config, PLAIN)) as alone:
        return alone.run(toy_requests(10, stream=True, seed=seed))


@pytest.mark.parametrize(("pp", "tp", "more"), LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_stages_answer_as_one_does(
    models: dict[str, Path], name: str, pp: int, tp: int, more: dict[str, int]
) -> None:
    for seed in range(COUNT):
        chance = random.Random(f"{name} {pp} {tp} {seed}")
        setting = draw_setting(chance)
        options = {"pp_size": pp, "tp_size": tp, **more}
        config = build_config(models[name], setting, **options)
        setting = dataclasses.replace(setting, depth=config.depth)
        with closing(LayoutEngines(config, setting)) as staged:
            answers = staged.run(toy_requests(10, stream=True, seed=seed), arrivals=chance)
            assert answers == wanted(models[name], tp, seed), (seed, setting)
            assert staged.engines[0].audit() == []
            assert staged.engines[0].held_tokens() == 0


def test_greedy_and_seeded_tokens_do_not_depend_on_the_layout(models: dict[str, Path]) -> None:
    for name in ("Llama", "Qwen3Moe", "DeepseekV3"):
        one, two = (wanted(models[name], tp, 0) for tp in (1, 2))
        assert {rid: answer.tokens for rid, answer in one.items()} == {
            rid: answer.tokens for rid, answer in two.items()
        }


def test_stages_work_at_the_same_time_on_parts_of_the_streams(models: dict[str, Path]) -> None:
    """No step has a sequence that another one in flight has drawn no token for, and none has more
    of them than it may."""
    setting = dataclasses.replace(PLAIN, depth=2)
    config = build_config(models["Llama"], setting, pp_size=2, pp_max_micro_batch_size=3)
    requests = [
        Request(key=0, rid=str(i), tokens=[5 + i, 6], sampling=one.sampling)
        for i, one in enumerate(toy_requests(8, stream=True, seed=1))
        if one.sampling.max_new_tokens
    ]
    with closing(LayoutEngines(config, setting)) as staged:
        staged.run(requests)
        plans = staged.plans()
    assert max(len(plan.rows) for plan in plans) <= 3
    assert sum(bool(plan.drawn) for plan in plans) >= len(plans) // 2
    decodes = [set(plan.rows) for plan in plans if set(plan.counts) == {1}]
    assert any(not one & two for one, two in pairwise(decodes))


@pytest.mark.parametrize(
    "more",
    [
        {"pp_size": 3, "tp_size": 2, "moe_a2a_backend": "deepep"},
        {"pp_size": 2, "tp_size": 4, "ep_size": 2, "moe_dense_tp_size": 1},
        {"pp_size": 2, "tp_size": 2, "ep_size": 2, "enable_eplb": True},
    ],
    ids=["tokens that travel", "dense layers alone", "experts that move"],
)
@pytest.mark.parametrize("name", ["Qwen3Moe", "DeepseekV3"])
def test_engines_share_layers_of_every_stage(
    models: dict[str, Path], name: str, more: dict[str, Any]
) -> None:
    """With requests of their own. Of some only one engine has any left at the end."""
    setting = dataclasses.replace(PLAIN, depth=more["pp_size"], chunk=64, operations="captured")
    shared = {"dp_size": 2, "enable_dp_attention": True, "eplb_rebalance_num_iterations": 5}
    config = build_config(models[name], setting, **more, **shared)
    with closing(LayoutEngines(config, setting)) as staged:
        answers = staged.run(toy_requests(10, stream=True, seed=0), arrivals=random.Random(3))
        found = {rid: answer.tokens for rid, answer in answers.items()}
        plain = wanted(models[name], 1, 0)
        assert found == {rid: answer.tokens for rid, answer in plain.items()}
        assert [engine.audit() for engine in staged.engines] == [[], []]
        assert staged.moves() > 0 or "enable_eplb" not in more


def test_every_rank_of_a_stage_reads_what_was_saved_for_it(
    models: dict[str, Path], tmp_path: Path
) -> None:
    """Also of engines that share layers, with fewer layers in the last stage."""
    layout = {"pp_size": 2, "tp_size": 2, "dp_size": 2, "enable_dp_attention": True, "ep_size": 2}
    for name, more in (("Llama", {"pp_size": 3, "tp_size": 2}), ("Qwen3Moe", layout)):
        setting = dataclasses.replace(PLAIN, depth=more["pp_size"], chunk=64)
        saved = tmp_path / name
        config = build_config(models[name], setting, **more)
        save_sharded_state(config, saved, report=lambda stage, fraction: None)
        again = build_config(saved, setting, load_format="sharded_state", **more)
        requests = toy_requests(6, stream=True, seed=3)
        answers = []
        for one in (config, again):
            with closing(LayoutEngines(one, setting)) as staged:
                answers.append(staged.run(requests))
        assert answers[0] == answers[1]
        with pytest.raises(ConfigError, match="pipeline-parallel-size"):
            build_config(saved, setting, load_format="sharded_state", tp_size=2, pp_size=1)


def test_clients_that_leave_are_forgotten_in_every_stage(models: dict[str, Path]) -> None:
    setting = dataclasses.replace(PLAIN, depth=3, chunk=16)
    config = build_config(models["Qwen3Moe"], setting, pp_size=3)
    requests = toy_requests(10, stream=True, seed=0)
    before = wanted(models["Qwen3Moe"], 1, 0)
    with closing(LayoutEngines(config, setting)) as staged:
        (found,) = staged.engines
        assert staged.run(requests, arrivals=random.Random(1)) == before
        mailbox = found._mailbox
        for turn in range(30):
            if turn < 10:
                mailbox.post(with_key(requests[0], 1000 + turn))
            if turn % 3 == 2:
                mailbox.post(Cancel(keys=[1000 + turn // 3]))
            found._loop.step(0)
        mailbox.post(Cancel(keys=list(range(1000, 1010))))
        assert found.held_tokens() == 0
        assert found.audit() == []
        mailbox.collect()
        assert staged.run(requests, arrivals=random.Random(2)) == before


def with_key(request: Request, key: int) -> Request:
    return replace(request, key=key)


@pytest.mark.parametrize("name", ["Llama", "Qwen3Next", "Qwen3Next, mixed"])
def test_stages_take_back_what_was_refused(models: dict[str, Path], name: str) -> None:
    """Layers that keep a state go on behind the drafts that stay. Asked again, most do."""
    drafts = {
        "speculative_algorithm": "NGRAM",
        "speculative_num_draft_tokens": 5,
        "speculative_fixed_width": True,
        "speculative_ngram_max_bfs_breadth": 1,
    }
    requests = toy_requests(10, stream=True, seed=0)
    plain = {rid: answer.tokens for rid, answer in wanted(models[name], 1, 0).items()}
    config = build_config(models[name], PLAIN, pp_size=2, **drafts)
    setting, rates = dataclasses.replace(PLAIN, depth=config.depth), list[float]()
    with closing(LayoutEngines(config, setting)) as staged:
        for turn in range(2):
            answers = staged.run(requests, arrivals=random.Random(turn))
            assert {rid: answer.tokens for rid, answer in answers.items()} == plain
            rates.append(staged.engines[0].accept_rate() or 0.0)
        assert staged.engines[0].audit() == []
    assert rates[0] < 0.1 < 0.3 < rates[1]
