"""Models that also read pictures: the language model in them is served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from paged_model import PagedModel, load
from safetensors.torch import load_file, save_file
from toy_models import SHAPE, reference, scramble, tokens

from vivace.checkpoint.source import locate
from vivace.checkpoint.weights import CheckpointError
from vivace.models.class_name import LANGUAGE_MODELS
from vivace.models.facts import read_facts
from vivace.models.registry import ARCHITECTURES, check_architecture

TEXT = {
    "head_dim": 16,
    "num_hidden_layers": 4,
    "num_local_experts": 4,
    "intermediate_size_mlp": 112,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": 10,
    "floor_scale": 8,
    "attn_scale": 0.4,
}
PICTURES = {
    "hidden_size": 16,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
    "vision_output_dim": 16,
    "projector_input_dim": 16,
    "projector_output_dim": 16,
}


@pytest.fixture(scope="module")
def llama4(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """transformers' language model, and the folder of the whole model, as Scout's is."""
    folder = tmp_path_factory.mktemp("llama4")
    torch.manual_seed(4)
    config: Any = transformers.Llama4Config(text_config={**SHAPE, **TEXT}, vision_config=PICTURES)
    config.text_config._attn_implementation = "eager"
    whole = transformers.Llama4ForConditionalGeneration(config)
    scramble(whole.language_model)
    whole.save_pretrained(folder)
    return whole.language_model.eval(), folder


def test_the_language_model_is_served(llama4: tuple[Any, Path]) -> None:
    theirs, folder = llama4
    source = locate(str(folder))
    check_architecture(source)
    facts = read_facts(source)
    assert facts.architecture == type(theirs).__name__
    (notice,) = facts.notices
    assert "pictures" in notice
    ids = tokens(30)
    ours, wanted = PagedModel(load(folder)), reference(theirs, ids)
    torch.testing.assert_close(ours.feed("a", ids, [13, 16, 1]), wanted, rtol=1e-4, atol=2e-4)
    found = [int(ours.feed("b", ids[:9], [9])[-1].argmax())]
    while len(found) < 64:
        found.append(int(ours.step({"b": found[-1:]})["b"].argmax()))
    with torch.inference_mode():
        drawn = theirs.generate(
            torch.tensor([ids[:9]]), max_new_tokens=64, do_sample=False, eos_token_id=None
        )
    assert found == drawn[0, 9:].tolist()


def test_a_tensor_that_is_of_no_part_is_left_over(llama4: tuple[Any, Path], tmp_path: Path) -> None:
    _, folder = llama4
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    tensors["language_model.model.layers.0.extra.weight"] = torch.zeros(2)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="extra"):
        load(tmp_path)


def test_served_classes_are_known() -> None:
    assert set(LANGUAGE_MODELS.values()) <= set(ARCHITECTURES)
    assert not set(LANGUAGE_MODELS) & set(ARCHITECTURES)
