"""Heads that draft from a model's hidden states: what they propose is what the papers define, and
the tokens are those without drafts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from draft_head_toys import (
    AFTER,
    LAYERED,
    NEXTN,
    HeadToys,
    ReferenceHead,
    export_layer,
    rewrite,
    write_eagle3,
    write_toys,
)
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
from safetensors.torch import save_file

from vivace.config.draft_heads import TAPPED
from vivace.engine.drafts.widths import FixedWidth
from vivace.engine.sequence import Sequence
from vivace.worker.drafters import features, head_drafter
from vivace.worker.drafters.head_drafter import HeadDrafter
from vivace.worker.drafters.layered_drafter import LayeredDrafter
from vivace.worker.drafters.passes import DraftPasses
from vivace.worker.drafters.place import DrafterPlace

TREE = {"speculative_eagle_topk": 3, "speculative_num_draft_tokens": 12}


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> HeadToys:
    return write_toys(tmp_path_factory.mktemp("heads"), SHAPE)


def flags(toys: HeadToys, head: str, steps: int, **others: Any) -> dict[str, Any]:
    return {
        **toys.flags(head),
        "speculative_num_steps": steps,
        "speculative_fixed_width": True,
        **others,
    }


@pytest.fixture
def proposals(monkeypatch: pytest.MonkeyPatch) -> list[Proposal]:
    found: list[Proposal] = []
    for kind in (HeadDrafter, LayeredDrafter):
        check_size(monkeypatch, kind)
        watch(monkeypatch, kind, found)
    return found


def check_size(monkeypatch: pytest.MonkeyPatch, drafter: type[Any]) -> None:
    """What it keeps is as it was sized."""
    attach = drafter.attach

    def checked(self: Any, place: DrafterPlace) -> None:
        attach(self, place)
        assert self.row_numbers * place.rows.rows == self._kept.numbers

    monkeypatch.setattr(drafter, "attach", checked)


@pytest.mark.parametrize("head", ["EAGLE3", "EAGLE", "plain EAGLE", *NEXTN, *LAYERED])
@pytest.mark.parametrize("name", ["captured", "eager", "torch"])
def test_drafts_are_those_of_the_definition(
    toys: HeadToys, head: str, name: str, proposals: list[Proposal]
) -> None:
    """Behind prompts in chunks, behind cached prefixes, and behind drafts of which some were right
    and some were not."""
    steps = 2 if head == "two layers" else 3
    engine = build_engine(toys.model(head), SETTINGS[name], **flags(toys, head, steps))
    engine.run(draft_requests(4, 12), arrivals=random.Random(3))
    assert len(proposals) > 12
    for one in proposals:
        assert one.drafts == toys.heads[head].drafts(one.known, len(one.drafts)), len(one.known)


@pytest.mark.parametrize("name", ["captured", "eager"])
@pytest.mark.parametrize("head", ["EAGLE3", "EAGLE", "DeepseekV3"])
def test_drafts_come_back_whole_after_steps_without_any(
    toys: HeadToys,
    head: str,
    name: str,
    proposals: list[Proposal],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many: the head has what it missed. (But what it had not computed of a prefix that was
    cached meanwhile, as of a retracted request.)"""
    choose, chance = FixedWidth.choose, random.Random(1)

    def seldom(self: FixedWidth, decoding: list[Sequence]) -> list[int]:
        return choose(self, decoding) if chance.random() < 0.1 else [1] * len(decoding)

    monkeypatch.setattr(FixedWidth, "choose", seldom)
    engine = build_engine(toys.model(head), SETTINGS[name], **flags(toys, head, 3))
    engine.run(draft_requests(6, 40, temperature=0.8, seed=4), arrivals=random.Random(3))
    assert len(proposals) > 5
    for one in proposals:
        assert one.drafts == toys.heads[head].drafts(one.known, len(one.drafts)), len(one.known)


def as_body(name: str) -> str:
    return f"model.{name}"


def as_layer(name: str) -> str:
    return name.replace("midlayer.", "layers.0.")


def without_words(name: str) -> str | None:
    return None if name in ("lm_head.weight", "d2t", "t2d", "fc.weight") else name


@pytest.mark.parametrize(
    ("named", "after", "keys"),
    [
        (as_body, [0, 1, 3], {TAPPED: [1, 2, 4], "norm_before_residual": True}),
        (as_layer, AFTER, {TAPPED: [], "eagle_config": {TAPPED: AFTER}, "norm_output": True}),
        (
            without_words,
            [],
            {"draft_vocab_size": None, "eagle_config": {"use_aux_hidden_state": False}},
        ),
    ],
)
def test_heads_are_computed_as_they_say(
    toys: HeadToys,
    named: Callable[[str], str | None],
    after: list[int],
    keys: dict[str, Any],
    proposals: list[Proposal],
    tmp_path: Path,
) -> None:
    """Saved as the body of a model, with an embedding; without words of its own; other norms, and
    other layers of the model, also its last one."""
    config = {"eagle_config": None, **keys}
    weights = rewrite(toys.folder / "EAGLE3", tmp_path / "head", named, **config)
    if named is as_body:
        weights["model.embed_tokens.weight"] = torch.zeros(300, 64)
        save_file(weights, tmp_path / "head" / "model.safetensors")
    norms = tuple(key for key in keys if key.startswith("norm_"))
    bare = {name.removeprefix("model."): one for name, one in weights.items()}
    bare = {name.replace("layers.0.", "midlayer."): one for name, one in bare.items()}
    reference = ReferenceHead(toys.heads["EAGLE3"].model, bare, after, norms)
    options = flags(toys, "EAGLE3", 3, speculative_draft_model_path=str(tmp_path / "head"))
    engine = build_engine(toys.model("EAGLE3"), PLAIN, **options)
    engine.run(draft_requests(3, 12))
    assert len(proposals) > 6
    for one in proposals:
        assert one.drafts == reference.drafts(one.known, len(one.drafts)), len(one.known)


@pytest.mark.parametrize("hidden", [48, 96])
def test_a_head_of_another_width_has_an_embedding(
    toys: HeadToys, hidden: int, tmp_path: Path, proposals: list[Proposal]
) -> None:
    weights = write_eagle3(tmp_path, AFTER, hidden)
    reference = ReferenceHead(toys.heads["EAGLE3"].model, weights, AFTER)
    options = flags(toys, "EAGLE3", 3, speculative_draft_model_path=str(tmp_path))
    build_engine(toys.model("EAGLE3"), PLAIN, **options).run(draft_requests(3, 12))
    assert len(proposals) > 6
    for one in proposals:
        assert one.drafts == reference.drafts(one.known, len(one.drafts)), len(one.known)


def test_a_layer_that_was_saved_alone_drafts(
    toys: HeadToys, tmp_path: Path, proposals: list[Proposal]
) -> None:
    export_layer(toys.model("DeepseekV3"), tmp_path, 4)
    options = flags(toys, "DeepseekV3", 2, speculative_draft_model_path=str(tmp_path))
    build_engine(toys.model("DeepseekV3"), PLAIN, **options).run(draft_requests(2, 12))
    assert proposals
    for one in proposals:
        assert one.drafts == toys.heads["DeepseekV3"].drafts(one.known, len(one.drafts))


@pytest.mark.parametrize(
    ("head", "name"),
    [(head, "captured") for head in ("EAGLE3", "EAGLE", "Glm4Moe", "DeepseekV3")]
    + [(head, "eager") for head in ("EAGLE3", "DeepseekV3")],
)
def test_trees_are_those_of_the_definition(
    toys: HeadToys, head: str, name: str, proposals: list[Proposal]
) -> None:
    """Also behind branches that were accepted."""
    engine = build_engine(toys.model(head), SETTINGS[name], **flags(toys, head, 3, **TREE))
    engine.run(draft_requests(3, 12, temperature=0.8, seed=4), arrivals=random.Random(3))
    assert len(proposals) > 12
    certain = 0
    for one in proposals:
        wanted = draft_tree(toys.heads[head].behind(one.known), 3, 3, len(one.drafts))
        certain += wanted.certain
        if wanted.certain:
            assert (one.drafts, one.parents) == (wanted.tokens, wanted.parents), len(one.known)
    assert certain > 0.8 * len(proposals)


@cache
def plain_answers(model: Path, setting: Setting) -> dict[str, Answer]:
    return build_engine(model, setting).run(toy_requests(10, stream=False))


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(
    ("head", "others"),
    [
        ("EAGLE3", {}),
        ("EAGLE3", {"speculative_fixed_width": False}),
        ("EAGLE3", TREE),
        ("EAGLE", {}),
        ("DeepseekV3", {}),
        ("three layers", {"speculative_fixed_width": False}),
        ("DeepseekV3", {**TREE, "speculative_fixed_width": False}),
    ],
)
def test_tokens_are_those_without_drafts(
    toys: HeadToys,
    name: str,
    head: str,
    others: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let_drafts_pay(monkeypatch)
    setting, model = SETTINGS[name], toys.model(head)
    if setting.operations == "torch" and "speculative_eagle_topk" in others:
        return  # refused: tests/config/test_draft_flags.py
    engine = build_engine(model, setting, **flags(toys, head, 3, **others))
    assert_same_tokens(run_toys(engine), plain_answers(model, setting))
    assert engine.accept_rate() is not None, "something was drafted"


@pytest.mark.parametrize("head", ["EAGLE3", "two layers"])
def test_many_rows_that_asked_for_no_drafts_pass_no_head(
    toys: HeadToys, head: str, monkeypatch: pytest.MonkeyPatch, proposals: list[Proposal]
) -> None:
    choose, gather, passed = FixedWidth.choose, DraftPasses.gather, list[int]()

    def first(self: FixedWidth, decoding: list[Sequence]) -> list[int]:
        return [*choose(self, decoding)[:1], *[1] * (len(decoding) - 1)]

    def watched(self: DraftPasses, rows: np.ndarray, counts: np.ndarray) -> Any:
        passed.append(len(rows))
        return gather(self, rows, counts)

    monkeypatch.setattr(FixedWidth, "choose", first)
    for kind in (features, head_drafter):
        monkeypatch.setattr(kind, "FEW_ROWS", 0)
    monkeypatch.setattr(DraftPasses, "gather", watched)
    engine = build_engine(toys.model(head), PLAIN, **flags(toys, head, 2))
    passed.clear()
    engine.run(draft_requests(4, 12))
    assert proposals and set(passed) == {1}


@pytest.mark.parametrize(
    ("head", "tree"),
    [("EAGLE3", {}), pytest.param("EAGLE3", TREE, marks=TREES), ("EAGLE", {}), ("two layers", {})],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_draft_alike(
    toys: HeadToys,
    head: str,
    tree: dict[str, int],
    layout: dict[str, Any],
    proposals: list[Proposal],
) -> None:
    options = {**layout, **flags(toys, head, 2, **tree)}
    model, reference = toys.model(head), toys.heads[head]
    engines = LayoutEngines(build_config(model, PLAIN, **options), PLAIN)
    try:
        answers = engines.run(draft_requests(4))
    finally:
        engines.close()
    drafted = list(proposals)
    assert_same_tokens(answers, build_engine(model, PLAIN).run(draft_requests(4)))
    assert drafted
    for one in drafted:
        if tree:
            wanted = draft_tree(reference.behind(one.known), 3, 2, len(one.drafts))
            same = (one.drafts, one.parents) == (wanted.tokens, wanted.parents)
            assert same or not wanted.certain
        else:
            assert one.drafts == reference.drafts(one.known, len(one.drafts))


@pytest.mark.parametrize("head", ["EAGLE", "Glm4Moe"])
@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_a_token_map_limits_what_is_proposed(
    toys: HeadToys, head: str, suffix: str, tmp_path: Path, proposals: list[Proposal]
) -> None:
    ids, file = list(range(1, 300, 3)), tmp_path / f"frequent{suffix}"
    if suffix == ".json":
        file.write_text(json.dumps(ids))
    else:
        save_file({"ids": torch.tensor(ids)}, file)
    options = flags(toys, head, 2, speculative_token_map=str(file))
    model, reference = toys.model(head), toys.heads[head]
    build_engine(model, PLAIN, **options).run(draft_requests(2, 12))
    reference.ids = ids
    try:
        assert proposals
        for one in proposals:
            assert one.drafts == reference.drafts(one.known, len(one.drafts))
    finally:
        reference.ids = None
