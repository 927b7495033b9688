"""Layers for multi-token prediction that checkpoints have behind the last one: left where they
are, and told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from draft_head_toys import NEXTN
from paged_model import PagedModel, load
from safetensors.torch import load_file, save_file
from toy_models import make, tokens

from vivace.checkpoint.source import locate
from vivace.checkpoint.weights import CheckpointError
from vivace.models.facts import read_facts

KINDS = {
    "Glm4Moe": NEXTN["Glm4Moe"],
    "DeepseekV3": {**NEXTN["DeepseekV3"], "num_key_value_heads": 6},
}


def with_draft_layer(kind: str, folder: Path) -> Path:
    """A toy with a copy of its last layer behind it, and what DeepSeek V3's files have beside."""
    make(kind, folder, **KINDS[kind])
    file = folder / "model.safetensors"
    found = load_file(file)
    last = {name: one for name, one in found.items() if name.startswith("model.layers.2.")}
    copies = {name.replace("layers.2.", "layers.3.", 1): one + 1 for name, one in last.items()}
    extra = {
        "enorm.weight": torch.ones(96),
        "hnorm.weight": torch.ones(96),
        "eh_proj.weight": torch.ones(96, 192),
        "eh_proj.weight_scale_inv": torch.ones(1, 2),
        "embed_tokens.weight": torch.ones(96, 96),
        "shared_head.norm.weight": torch.ones(96),
        "shared_head.head.weight": torch.ones(96, 96),
    }
    more = {f"model.layers.3.{name}": one for name, one in extra.items()}
    save_file({**found, **copies, **more}, file)
    return file


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_left_in_the_checkpoint(kind: str, tmp_path: Path) -> None:
    make(kind, tmp_path / "plain", **KINDS[kind])
    with_draft_layer(kind, tmp_path / "draft")
    ids = tokens(12)
    found, wanted = (
        PagedModel(load(tmp_path / name)).feed("a", ids, [12]) for name in ("draft", "plain")
    )
    assert torch.equal(found, wanted)
    facts = read_facts(locate(str(tmp_path / "draft")))
    assert facts.draft_layers == 1
    assert facts.parameters == read_facts(locate(str(tmp_path / "plain"))).parameters
    (told,) = facts.notices
    assert "num_nextn_predict_layers is 1" in told and "not loaded" in told


@pytest.mark.parametrize("kind", KINDS)
def test_those_that_the_configuration_does_not_have_are_left_over(
    kind: str, tmp_path: Path
) -> None:
    with_draft_layer(kind, tmp_path)
    none = {"num_nextn_predict_layers": 0}
    assert read_facts(locate(str(tmp_path), overrides=none)).notices == ()
    with pytest.raises(CheckpointError, match=r"layers\.3"):
        load(tmp_path, overrides=none)
