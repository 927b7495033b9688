"""What only drafts, given where a whole model is meant, is told what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from draft_head_toys import (
    HEADS,
    HIDDEN,
    NEXTN,
    VOCABULARY,
    ReferenceNextn,
    export_layer,
    write_eagle,
    write_eagle3,
)
from served_toy import write_byte_tokenizer, write_toy_llama
from toy_models import make

from vivace.config.parsing import from_arguments
from vivace.deploy.own_checks import why_model_refused
from vivace.errors import CannotStart
from vivace.launch.configure import configure

ALGORITHM = {"eagle": "EAGLE", "eagle3": "EAGLE3", "layer": "NEXTN"}
"""that each of the folders below is for"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("roles")
    write_toy_llama(folder / "model")
    write_eagle(folder / "eagle", bias=False)
    write_eagle3(folder / "eagle3", [0, 1])
    shape = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_attention_heads": HEADS}
    whole = make("DeepseekV3", folder, **shape, **NEXTN["DeepseekV3"])
    ReferenceNextn(whole, folder)
    export_layer(folder, folder / "layer", len(whole.model.layers))
    for draft in ALGORITHM:
        write_byte_tokenizer(folder / draft)
    return folder


def refusal(**flags: Any) -> str:
    with pytest.raises(CannotStart) as raised:
        configure(from_arguments(**flags))
    return str(raised.value)


@pytest.mark.parametrize("draft", ALGORITHM)
def test_what_only_drafts_is_no_smaller_model(draft: str, folder: Path) -> None:
    said = refusal(
        model_path=str(folder / "model"),
        speculative_algorithm="STANDALONE",
        speculative_draft_model_path=str(folder / draft),
    )
    assert said.endswith(f"--speculative-algorithm {ALGORITHM[draft]}")


@pytest.mark.parametrize("draft", ["eagle3", "layer"])
def test_what_only_drafts_is_not_served(draft: str, folder: Path) -> None:
    said = refusal(model_path=str(folder / draft))
    assert "--model-path" in said
    assert said.endswith(f"--speculative-algorithm {ALGORITHM[draft]}")


@pytest.mark.parametrize("algorithm", ["NEXTN", "EAGLE"])
@pytest.mark.parametrize("served", ["Llama", "Glm4Moe", "Qwen3Next"])
def test_layers_of_another_class_are_refused(
    folder: Path, served: str, algorithm: str, tmp_path: Path
) -> None:
    """Though they are as wide and have as many tokens: what they said would be wrong every time."""
    model = folder / "model"
    if served in NEXTN:
        model = tmp_path
        shape = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_attention_heads": HEADS}
        make(served, model, **shape, **NEXTN[served])
        write_byte_tokenizer(model)
    flags = {"speculative_algorithm": algorithm, "speculative_draft_model_path": str(folder)}
    assert "trained" in refusal(model_path=str(model), **flags)
    options = from_arguments(model_path=str(model), **flags)
    (found,) = why_model_refused(options, layout_known=True, steps_known=True)
    assert "trained" in found
