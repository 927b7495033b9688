"""Toys that tests of drafts share: a model's shape, settings of engines, requests, and what was
proposed to whom."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from engine_under_test import Answer, Engine, Setting, toy_requests

from vivace.engine.drafts.widths import StepSeconds
from vivace.platforms.cpu.facts import has_kernels
from vivace.platforms.rows import RowColumns
from vivace.protocol.messages import Request, SamplingParams
from vivace.protocol.metrics import StepCosts
from vivace.worker.drafters import step_costs

SHAPE = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 256,
    "eos_token_id": 257,
}
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
TREES = pytest.mark.skipif(not has_kernels(), reason="trees of drafts need the CPU kernels")
LAYOUTS: list[dict[str, Any]] = [
    {"tp_size": 2},
    {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True},
]


def draft_requests(count: int, longest: int = 24, **sampling: Any) -> list[Request]:
    """Prompts of 1 to 90 tokens; greedy, unless something else is said."""
    chance = random.Random(2)
    return [
        Request(
            key=0,
            rid=str(index),
            tokens=[chance.randrange(3, 250) for _ in range(chance.randint(1, 90))],
            sampling=SamplingParams(
                max_new_tokens=chance.randint(longest // 4, longest),
                ignore_eos=True,
                **(sampling or {"temperature": 0.0}),
            ),
        )
        for index in range(count)
    ]


@dataclass(frozen=True)
class Proposal:
    known: list[int]
    drafts: list[int]
    parents: list[int] | None
    """None: a chain"""


def watch(
    monkeypatch: pytest.MonkeyPatch, drafter: type[Any], found: list[Proposal] | None = None
) -> list[Proposal]:
    """What drafters of this class propose from now on."""
    found = [] if found is None else found
    propose = drafter.propose

    def watched(self: Any, columns: RowColumns, rows: np.ndarray, counts: np.ndarray) -> None:
        propose(self, columns, rows, counts)
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            known = int(columns.known[row])
            tokens, above = columns.tokens[row, : known + count].tolist(), columns.parents
            parents = None if above is None else above[row, :count].tolist()
            if count:
                found.append(Proposal(tokens[:known], tokens[known:], parents))

    monkeypatch.setattr(drafter, "propose", watched)
    return found


def let_drafts_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """What steps take is given, not measured: drafts cost next to nothing."""
    costs = StepCosts(tokens=[1, 128], seconds=[1.0, 1.01], draft_seconds=[0.0, 0.0])
    monkeypatch.setattr(step_costs, "measure_steps", lambda *_: costs)
    monkeypatch.setattr(StepSeconds, "observe", lambda *_: None)


def run_toys(engine: Engine, seed: int = 3) -> dict[str, Answer]:
    """Requests of every kind, that come between steps; nothing is left behind."""
    answers = engine.run(toy_requests(10, stream=False), arrivals=random.Random(seed))
    assert not engine.audit()
    return answers


def assert_same_tokens(found: dict[str, Answer], wanted: dict[str, Answer]) -> None:
    assert {rid: one.tokens for rid, one in found.items()} == {
        rid: one.tokens for rid, one in wanted.items()
    }
