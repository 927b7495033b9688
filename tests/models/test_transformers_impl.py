"""--model-impl transformers: architectures nobody wrote here, over our paged attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from paged_model import PagedModel, load
from toy_models import make, reference, tokens

from vivace.checkpoint.source import SourceError
from vivace.models import registry

GENERIC: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "mistral-sliding": ("Mistral", {"sliding_window": 7}),
    "gemma2": ("Gemma2", {"sliding_window": 7, "head_dim": 16}),
    "phi3": ("Phi3", {"sliding_window": None}),
    "olmo2": ("Olmo2", {}),
    "granite": ("Granite", {"attention_multiplier": 0.3, "logits_scaling": 2.0}),
    "stablelm": ("StableLm", {"use_qkv_bias": True}),
    "cohere": ("Cohere", {"logit_scale": 0.5}),
}


@pytest.mark.parametrize("name", GENERIC)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    kind, settings = GENERIC[name]
    theirs = make(kind, tmp_path, **settings)
    ours = PagedModel(load(tmp_path, implementation="transformers"))
    ids, other = tokens(26, 1), tokens(9, 2)
    wanted = reference(theirs, ids)
    first = ours.step({"a": ids[:15], "b": other})
    rest = [ours.step({"a": [token]})["a"] for token in ids[15:]]
    found = torch.cat([first["a"], *rest])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-4)
    torch.testing.assert_close(first["b"], reference(theirs, other), rtol=1e-4, atol=2e-4)


def test_model_type_nobody_knows(tmp_path: Path) -> None:
    make("Llama", tmp_path)
    with pytest.raises(SourceError, match="no model type 'foo'"):
        load(tmp_path, implementation="transformers", overrides={"model_type": "foo"})


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make("Llama", tmp_path)
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    with pytest.raises(SourceError, match=r"pip install 'vivace\[transformers\]'"):
        load(tmp_path, implementation="transformers")


def test_configurations_that_transformers_refuses(tmp_path: Path) -> None:
    make("Llama", tmp_path)
    for change in ({"hidden_act": "quantum"}, {"rope_parameters": [1]}, {"rms_norm_eps": "x"}):
        with pytest.raises(SourceError, match="cannot build LlamaForCausalLM") as caught:
            load(tmp_path, implementation="transformers", overrides=change)
        assert str(caught.value).isprintable()
