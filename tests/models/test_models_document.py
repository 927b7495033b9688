"""docs/models.md follows from the code and from the table of what was tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from vivace.checkpoint.source import ModelSource, SourceError
from vivace.models.document import GGUF, document, own_families
from vivace.models.registry import ARCHITECTURES, check_architecture
from vivace.models.transformers_support import read_support

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(autouse=True)
def operations() -> None:
    """Once: nothing is computed."""


def test_the_document_is_up_to_date() -> None:
    assert (DOCS / "models.md").read_text() == document(), "run python -m vivace.models.document"


def test_a_family_that_no_gguf_file_names_is_said_to_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "| `Qwen3ForCausalLM` | qwen3 | qwen3 |" in own_families()
    monkeypatch.delitem(GGUF, "qwen3")
    assert "| `Qwen3ForCausalLM` | qwen3 | no |" in own_families()
    assert "| `MistralForCausalLM` | mistral | as llama |" in own_families()


def refusal(architecture: str, tmp_path: Path) -> str:
    source = ModelSource(
        path=tmp_path,
        format="dummy",
        files=(),
        config={"architectures": [architecture]},
        tokenizer_path=tmp_path,
    )
    with pytest.raises(SourceError) as caught:
        check_architecture(source)
    return str(caught.value)


def test_a_refusal_recommends_transformers_only_where_that_works(tmp_path: Path) -> None:
    """Every architecture of the table, and one that nobody knows."""
    equal = {one.architecture for one in read_support().models if one.equal}
    for one in read_support().models:
        if one.architecture in ARCHITECTURES:
            continue
        said = refusal(one.architecture, tmp_path)
        assert ("add --model-impl transformers" in said) == (one.architecture in equal)
        assert one.architecture in equal or one.refused in said or one.untried in said
    assert "add --model-impl" not in refusal("XyzzyForCausalLM", tmp_path)
