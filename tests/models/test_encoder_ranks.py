"""Encoders whose layers ranks share, or stages divide: the hidden states of one process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from encoder_toys import write_encoder
from paged_model import PagedModel, load
from test_pipeline_stages import LAYERS, StagedModel
from thread_ranks import ThreadRanks
from torch import Tensor

TEXTS: dict[str, Sequence[int]] = {"a": [2, 7, 9, 4, 3], "b": [2, 3], "c": [2, *range(5, 25), 3]}
SIZES: dict[str, Any] = {
    "num_attention_heads": 6,
    "num_hidden_layers": LAYERS,
    "intermediate_size": 96,
}
NAMES = "BertModel", "XLMRobertaForSequenceClassification", "NomicBertModel"


@pytest.mark.parametrize("name", NAMES)
def test_ranks_and_stages_compute_what_one_process_does(name: str, tmp_path: Path) -> None:
    write_encoder(tmp_path, name, **SIZES)
    whole = StagedModel(tmp_path, 1)
    wanted = whole.stages[0].forward(TEXTS)
    for size in (2, 3):
        first, *others = compute_on_ranks(tmp_path, size)
        assert all(torch.equal(first, other) for other in others), size
        torch.testing.assert_close(first, wanted, atol=1e-5, rtol=1e-5)
    staged = StagedModel(tmp_path, 3)
    for stage in staged.stages[:-1]:
        stage.forward(TEXTS)
    assert torch.equal(staged.stages[-1].forward(TEXTS), wanted)
    assert sum(staged.read) == whole.read[0] > max(staged.read)


def compute_on_ranks(path: Path, size: int) -> list[Tensor]:
    """Of each rank [T, hidden]"""
    ranks = ThreadRanks(path, size)
    assert max(ranks.read) < sum(ranks.read)
    return ranks.each(lambda model: model.forward(TEXTS))


def test_a_text_in_parts_is_refused(tmp_path: Path) -> None:
    write_encoder(tmp_path, "BertModel")
    model = PagedModel(load(tmp_path))
    model.forward({"a": [2, 7]})
    with pytest.raises(ValueError, match="whole"):
        model.forward({"a": [3]})
