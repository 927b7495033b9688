"""A smaller model drafts: the tokens are those without drafts, and a draft that is the model itself
is always right."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drafting_engines import (
    LAYOUTS,
    PLAIN,
    SETTINGS,
    SHAPE,
    TREES,
    Proposal,
    assert_same_tokens,
    draft_requests,
    let_drafts_pay,
    run_toys,
    watch,
)
from engine_under_test import Answer, Setting, build_config, build_engine, toy_requests
from layout_engines import LayoutEngines
from reference_trees import draft_tree
from served_toy import write_byte_tokenizer
from toy_models import make, reference

from vivace.engine.drafts.widths import FixedWidth
from vivace.engine.sequence import Sequence
from vivace.protocol.messages import Request
from vivace.worker.drafters import draft_model
from vivace.worker.drafters.draft_model import ModelDrafter
from vivace.worker.drafters.passes import DraftPasses
from vivace.worker.step_input import StepInput

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
TREE = {"speculative_eagle_topk": 4, "speculative_num_draft_tokens": 14}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """transformers' models, by what they draft as"""
    folder = tmp_path_factory.mktemp("drafts")
    found = {}
    for name, (kind, settings) in DRAFTS.items():
        found[name] = make(kind, folder / name, **{**SHAPE, "num_hidden_layers": 2, **settings})
        write_byte_tokenizer(folder / name)
    return {"folder": folder, **found}


@pytest.fixture(scope="module")
def models(made: dict[str, Any]) -> Path:
    return made["folder"]


def flags(models: Path, draft: str, steps: int, **others: Any) -> dict[str, Any]:
    return {
        "speculative_algorithm": "STANDALONE",
        "speculative_draft_model_path": str(models / draft),
        "speculative_num_steps": steps,
        "speculative_fixed_width": True,
        **others,
    }


@cache
def plain_answers(models: Path, setting: Setting) -> dict[str, Answer]:
    return build_engine(models / "itself", setting).run(toy_requests(10, stream=False))


@pytest.mark.parametrize("name", SETTINGS)
def test_the_model_itself_is_always_right(models: Path, name: str) -> None:
    engine = build_engine(models / "itself", SETTINGS[name], **flags(models, "itself", 3))
    engine.run(draft_requests(6, 40), arrivals=random.Random(3))
    assert engine.accept_rate() == 1.0
    assert not engine.audit()


@pytest.mark.parametrize(
    ("draft", "name"),
    [("itself", "captured"), ("itself", "eager"), ("window", "captured"), ("latents", "captured")],
)
def test_trees_are_those_of_the_definition(
    made: dict[str, Any], draft: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind branches that were accepted, of which the model itself has many."""
    proposals, folder = watch(monkeypatch, ModelDrafter), made["folder"]
    options = flags(folder, draft, 3, **TREE)
    engine = build_engine(folder / "itself", SETTINGS[name], **options)
    requests = draft_requests(4, 40, temperature=1.0, seed=7)
    answers = engine.run(requests, arrivals=random.Random(3))
    assert len(proposals) > 12
    certain = [matches(made[draft], one) for one in proposals]
    assert certain.count(True) > 0.8 * len(certain)
    if draft == "itself":
        tokens = [[*one.tokens, *answers[one.rid].tokens] for one in requests]
        assert sum(took_a_branch(one, tokens) for one in proposals) > 3


def matches(model: Any, one: Proposal) -> bool:
    """Whether the tree is certain; then it is what was proposed."""

    def say(way: tuple[int, ...]) -> tuple[torch.Tensor, range]:
        logits = reference(model, [*one.known, *way])[-1]
        return logits, range(len(logits))

    wanted = draft_tree(say, 4, 3, len(one.drafts))
    if wanted.certain:
        assert (one.drafts, one.parents) == (wanted.tokens, wanted.parents), len(one.known)
    return wanted.certain


def took_a_branch(one: Proposal, answers: list[list[int]]) -> bool:
    """A draft came that was not the likeliest behind the one before it."""
    length = len(one.known)
    (coming,) = {tuple(each[length:]) for each in answers if each[:length] == one.known}
    assert one.parents is not None
    at = -1
    for token in coming:
        behind = [place for place, parent in enumerate(one.parents) if parent == at]
        agrees = [place for place in behind if one.drafts[place] == token]
        if not agrees or agrees[0] != behind[0]:
            return bool(agrees)
        at = agrees[0]
    return False


@pytest.mark.parametrize(
    ("name", "draft", "steps", "others"),
    [
        *((name, "itself", 3, {}) for name in SETTINGS),
        *((name, "itself", 3, TREE) for name in SETTINGS if name != "torch"),
        *(("captured", draft, 2, {}) for draft in DRAFTS if draft != "itself"),
        *(("captured", draft, 2, TREE) for draft in ("odd", "narrower", "latents")),
        ("torch", "latents", 1, {}),
    ],
)
@pytest.mark.parametrize("fixed", [True, False])
def test_tokens_are_those_without_drafts(
    models: Path,
    name: str,
    draft: str,
    steps: int,
    others: dict[str, int],
    fixed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let_drafts_pay(monkeypatch)
    setting = SETTINGS[name]
    options = flags(models, draft, steps, **others, speculative_fixed_width=fixed)
    engine = build_engine(models / "itself", setting, **options)
    assert_same_tokens(run_toys(engine, seed=steps), plain_answers(models, setting))
    assert engine.accept_rate() is not None, "something was drafted"
    assert (engine.retractions > 0) == setting.retraction


def test_rows_catch_up_some_tokens_at_a_time(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they said without drafts is not computed in one step; then drafts are right again."""
    steps, passed, choose = [0], list[int](), FixedWidth.choose
    gather = DraftPasses.gather

    def late(self: FixedWidth, decoding: list[Sequence]) -> list[int]:
        steps[0] += 1
        return [1] * len(decoding) if steps[0] < 50 else choose(self, decoding)

    def watched(self: DraftPasses, rows: np.ndarray, counts: np.ndarray) -> Any:
        passed.append(int(counts.sum()))
        return gather(self, rows, counts)

    ready, said = ModelDrafter.ready, list[list[int]]()

    def saying(self: ModelDrafter, rows: list[int]) -> list[int]:
        said.append(ready(self, rows))
        return said[-1]

    monkeypatch.setattr(ModelDrafter, "ready", saying)
    monkeypatch.setattr(FixedWidth, "choose", late)
    monkeypatch.setattr(DraftPasses, "gather", watched)
    monkeypatch.setattr(draft_model, "MOST_MISSED", 24)
    requests = draft_requests(4, 100)
    engine = build_engine(models / "itself", PLAIN, **flags(models, "itself", 3))
    found = engine.run(requests)
    assert max(passed) <= 24 + 2 * len(requests) < 45 * len(requests) < sum(passed)
    assert set(said[0]) == {3} and [] in said, "who comes is told, and others where it is news"
    assert (engine.accept_rate() or 0) > 0.8 and not engine.audit()
    assert_same_tokens(found, build_engine(models / "itself", PLAIN).run(requests))


def test_a_cached_prefix_has_the_draft_s_keys_too(models: Path) -> None:
    """A second request begins where the first one's prompt ends, and its first drafts are right."""
    engine = build_engine(models / "itself", PLAIN, **flags(models, "itself", 3))
    first, *_ = draft_requests(1, 40)
    stem = list(range(3, 83))
    for tokens in (stem, [*stem, 7, 9]):
        engine.run([Request(key=0, rid="", tokens=tokens, sampling=first.sampling)])
    assert engine.accept_rate() == 1.0


def test_prompts_that_nobody_reads_are_read_when_drafts_are_wanted(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another request computed the prefix, which has none of the draft's keys then."""
    paused, follow, read = [True], DraftPasses.follow, list[int]()

    def unread(self: FixedWidth, chunks: list[Sequence], tokens: int) -> list[int]:
        return [sequence.row for sequence in chunks] if paused[0] else []

    def choose(self: FixedWidth, decoding: list[Sequence]) -> list[int]:
        return [1 if paused[0] else 1 + sequence.ready_drafts for sequence in decoding]

    def watched(self: DraftPasses, step: StepInput, ids: torch.Tensor) -> torch.Tensor:
        read.append(len(ids))
        return follow(self, step, ids)

    monkeypatch.setattr(FixedWidth, "unread", unread)
    monkeypatch.setattr(FixedWidth, "choose", choose)
    monkeypatch.setattr(DraftPasses, "follow", watched)
    engine = build_engine(models / "itself", PLAIN, **flags(models, "itself", 3))
    first, *_ = draft_requests(1, 40)
    stem = list(range(3, 83))
    engine.run([Request(key=0, rid="", tokens=stem, sampling=first.sampling)])
    assert not read
    paused[0] = False
    for tail in (range(20, 40), range(20, 65)):
        tokens = [*stem, *tail]
        engine.run([Request(key=0, rid="", tokens=tokens, sampling=first.sampling)])
    assert read and engine.accept_rate() == 1.0 and not engine.audit()


@pytest.mark.parametrize(
    ("draft", "tree"),
    [("itself", {}), pytest.param("itself", TREE, marks=TREES), ("odd", {}), ("latents", {})],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_propose_the_same(
    models: Path, draft: str, tree: dict[str, int], layout: dict[str, Any]
) -> None:
    """They divide the draft, or each has all of it; engines that share layers draft each for
    itself."""
    options = {**layout, **flags(models, draft, 2, **tree)}
    config = build_config(models / "itself", PLAIN, **options)
    engines = LayoutEngines(config, PLAIN)
    try:
        answers = engines.run(draft_requests(6, 40))
        wanted = build_engine(models / "itself", PLAIN).run(draft_requests(6, 40))
        assert_same_tokens(answers, wanted)
        if draft == "itself" and not tree:
            assert all(one.accept_rate() == 1.0 for one in engines.engines)
    finally:
        engines.close()
