"""What a stage without a head remembers of the steps whose tokens it has not heard."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from vivace.platforms.rows import Spans
from vivace.protocol.step import DrawnTokens, StepPlan
from vivace.worker.stage_heads import HeadsElsewhere


def one_row() -> Spans:
    numbers = np.zeros(1, np.int64)
    on_device = torch.zeros(1, dtype=torch.int64)
    return Spans(
        rows=numbers, counts=numbers + 1, starts=np.array([0, 1]), before=numbers, final=numbers,
        last=numbers, ahead=None, entry_rows=on_device, positions=on_device,
    )  # fmt: skip


def test_tokens_that_a_refused_plan_brought_are_forgotten() -> None:
    rows: Any = SimpleNamespace(joined=np.zeros(1, np.int64), drafts=0)
    ops: Any = SimpleNamespace(bad_tokens=lambda hidden: hidden.isnan().any(-1))
    step: Any = None
    heads = HeadsElsewhere(ops, rows)
    for number in (1, 2, 3):
        heads.update(StepPlan(number=number))
        heads.read(step, one_row(), torch.ones(1, 4))
        rows.joined = rows.joined + 1  # it leaves its row
    heads.update(StepPlan(number=5, drawn=[DrawnTokens(2, [1], [[7]])]))  # 4 was refused
    assert list(heads._awaited) == [3]
