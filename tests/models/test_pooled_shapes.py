"""Sizes of models that answer with numbers, as facts and `vivace check` say them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from encoder_toys import write_encoder, write_judge

from vivace.checkpoint.source import SourceError, locate
from vivace.models.pooling.facts import read_served_facts
from vivace.models.pooling.kinds import ENCODERS
from vivace.models.pooling.shapes import parse_served

HEADS = ("pooler", "classifier")


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_keep_nothing_of_a_token(tmp_path: Path, name: str) -> None:
    model = write_encoder(tmp_path, name)
    source = locate(str(tmp_path))
    facts, shape = read_served_facts(source), parse_served(source.config, "toy")
    assert (facts.kv_elements, shape.kv_elements(1), shape.full_kv_elements(1)) == (0, 0, 0)
    named = model.named_parameters()
    real = sum(one.numel() for name, one in named if not set(HEADS) & set(name.split(".")))
    assert facts.parameters == real
    hidden, inner = facts.hidden_size, facts.intermediate_size
    layers = shape.parameters() - shape.vocabulary * hidden
    matrices = 3 if name == "NomicBertModel" else 2
    wanted = shape.layers * (4 * hidden**2 + matrices * hidden * inner)
    assert layers == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Gemma2"])
def test_judges_have_the_sizes_of_their_family(tmp_path: Path, family: str) -> None:
    write_judge(tmp_path, family, num_labels=3, head_dim=16)
    source = locate(str(tmp_path))
    facts, shape = read_served_facts(source), parse_served(source.config, "toy")
    assert facts.architecture == f"{family}ForCausalLM"
    assert facts.pooled is not None and facts.pooled.classifier is not None
    assert facts.pooled.classifier.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert shape.kv_elements(1) == facts.kv_elements > 0


@pytest.mark.parametrize("name", ["T5ForSequenceClassification", "InternLM2ForTokenClassification"])
def test_others_are_refused(tmp_path: Path, name: str) -> None:
    write_judge(tmp_path, "Llama")
    source: Any = locate(str(tmp_path), overrides={"architectures": [name]})
    with pytest.raises(SourceError, match=name):
        read_served_facts(source)
