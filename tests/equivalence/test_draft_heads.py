"""Heads that draft from a model's hidden states: what they propose is what the papers define, and
the tokens are those without drafts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from draft_head_toys import NEXTN, ReferenceHead, ReferenceNextn, write_eagle, write_eagle3
from engine_under_test import Answer, Setting, build_config, build_engine, toy_requests
from layout_engines import LayoutEngines
from safetensors.torch import save_file
from served_toy import write_byte_tokenizer
from toy_models import make

from vivace.platforms.rows import RowColumns
from vivace.protocol.messages import Request, SamplingParams
from vivace.worker.drafters.head_drafter import HeadDrafter

SHAPE = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 256,
    "eos_token_id": 257,
}
AFTER = [0, 1, 2]
PLAIN = Setting(batch=4, chunk=64, radix="on", depth=1, page=16)
SETTINGS = {
    "captured": PLAIN,
    "eager": Setting(batch=4, chunk=7, radix="on", depth=1, page=1, operations="eager"),
    "torch": Setting(batch=4, chunk=32, radix="on", depth=2, page=4, operations="torch"),
    "retracted": Setting(
        batch=8, chunk=64, radix="partly evicted", depth=1, page=16, retraction=True
    ),
    "mixed": Setting(batch=3, chunk=16, radix="off", depth=1, page=16, mixed=True),
}


@dataclass(frozen=True)
class Toys:
    folder: Path
    heads: dict[str, ReferenceHead]


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Toys:
    folder = tmp_path_factory.mktemp("heads")
    model = make("Llama", folder / "model", **SHAPE)
    write_byte_tokenizer(folder / "model")
    heads = {
        "EAGLE3": ReferenceHead(model, write_eagle3(folder / "EAGLE3", AFTER), AFTER),
        "EAGLE": ReferenceHead(model, write_eagle(folder / "EAGLE", bias=True), None),
    }
    heads["plain EAGLE"] = ReferenceHead(
        model, write_eagle(folder / "plain EAGLE", bias=False), None
    )
    for kind, settings in NEXTN.items():
        own = make(kind, folder / kind, **{**SHAPE, **settings})
        write_byte_tokenizer(folder / kind)
        heads[kind] = ReferenceNextn(own, folder / kind)
    return Toys(folder, heads)


def place_of_model(toys: Toys, head: str) -> Path:
    return toys.folder / (head if head in NEXTN else "model")


def flags(toys: Toys, head: str, steps: int, *, fixed: bool = True) -> dict[str, Any]:
    path = {} if head in NEXTN else {"speculative_draft_model_path": str(toys.folder / head)}
    return {
        **path,
        "speculative_algorithm": "NEXTN" if head in NEXTN else head.split()[-1],
        "speculative_num_steps": steps,
        "speculative_fixed_width": fixed,
    }


@pytest.fixture
def proposals(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[list[int], list[int]]]]:
    """(what a row knew, what was proposed)"""
    found: list[tuple[list[int], list[int]]] = []
    propose = HeadDrafter.propose

    def watched(
        self: HeadDrafter, columns: RowColumns, rows: np.ndarray, counts: np.ndarray
    ) -> None:
        propose(self, columns, rows, counts)
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            known = int(columns.known[row])
            tokens = columns.tokens[row, : known + count].tolist()
            if count:
                found.append((tokens[:known], tokens[known:]))

    monkeypatch.setattr(HeadDrafter, "propose", watched)
    yield found


def greedy(count: int, longest: int = 24) -> list[Request]:
    chance = random.Random(2)
    return [
        Request(
            key=0,
            rid=str(index),
            tokens=[chance.randrange(3, 250) for _ in range(chance.randint(1, 90))],
            sampling=SamplingParams(
                max_new_tokens=chance.randint(4, longest), temperature=0.0, ignore_eos=True
            ),
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("head", ["EAGLE3", "EAGLE", "plain EAGLE", *NEXTN])
@pytest.mark.parametrize("name", ["captured", "eager", "torch"])
def test_drafts_are_those_of_the_definition(
    toys: Toys, head: str, name: str, proposals: list[tuple[list[int], list[int]]]
) -> None:
    """Behind prompts in chunks, behind cached prefixes, and behind drafts of which some were right
    and some were not."""
    engine = build_engine(place_of_model(toys, head), SETTINGS[name], **flags(toys, head, 3))
    engine.run(greedy(4, 12), arrivals=random.Random(3))
    reference = toys.heads[head]
    assert len(proposals) > 12
    for known, drafts in proposals:
        assert drafts == reference.drafts(known, len(drafts)), len(known)


@cache
def plain_answers(model: Path, setting: Setting) -> dict[str, Answer]:
    return build_engine(model, setting).run(toy_requests(10, stream=False))


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(
    ("head", "fixed"),
    [("EAGLE3", True), ("EAGLE3", False), ("EAGLE", True), ("DeepseekV3", True)],
)
def test_tokens_are_those_without_drafts(toys: Toys, name: str, head: str, fixed: bool) -> None:
    setting = SETTINGS[name]
    options = flags(toys, head, 3, fixed=fixed)
    model = place_of_model(toys, head)
    engine = build_engine(model, setting, **options)
    answers = engine.run(toy_requests(10, stream=False), arrivals=random.Random(3))
    plain = plain_answers(model, setting)
    assert {rid: one.tokens for rid, one in answers.items()} == {
        rid: one.tokens for rid, one in plain.items()
    }
    assert not engine.audit()


@pytest.mark.parametrize("head", ["EAGLE3", "EAGLE", "DeepseekV3"])
@pytest.mark.parametrize("layout", [{"tp_size": 2}, {"tp_size": 2, "dp_size": 2}])
def test_ranks_draft_alike(
    toys: Toys, head: str, layout: dict[str, int], proposals: list[tuple[list[int], list[int]]]
) -> None:
    attention = {"enable_dp_attention": True} if "dp_size" in layout else {}
    options = {**layout, **attention, **flags(toys, head, 2)}
    model = place_of_model(toys, head)
    engines = LayoutEngines(build_config(model, PLAIN, **options), PLAIN)
    try:
        answers = engines.run(greedy(4))
    finally:
        engines.close()
    drafted = list(proposals)
    plain = build_engine(model, PLAIN).run(greedy(4))
    assert {rid: one.tokens for rid, one in answers.items()} == {
        rid: one.tokens for rid, one in plain.items()
    }
    assert drafted
    for known, drafts in drafted:
        assert drafts == toys.heads[head].drafts(known, len(drafts))


@pytest.mark.parametrize("head", ["EAGLE", "Glm4Moe"])
@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_a_token_map_limits_what_is_proposed(
    toys: Toys,
    head: str,
    suffix: str,
    tmp_path: Path,
    proposals: list[tuple[list[int], list[int]]],
) -> None:
    ids, file = list(range(1, 300, 3)), tmp_path / f"frequent{suffix}"
    if suffix == ".json":
        file.write_text(json.dumps(ids))
    else:
        save_file({"ids": torch.tensor(ids)}, file)
    options = {**flags(toys, head, 2), "speculative_token_map": str(file)}
    model, reference = place_of_model(toys, head), toys.heads[head]
    build_engine(model, PLAIN, **options).run(greedy(2, 12))
    reference.ids = ids
    try:
        assert proposals
        for known, drafts in proposals:
            assert drafts == reference.drafts(known, len(drafts))
    finally:
        reference.ids = None
