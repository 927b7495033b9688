"""The table of ggml's types, and numbers as a file's author wrote them."""

from enum import IntEnum

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vivace.checkpoint.gguf_blocks import decode_blocks
from vivace.checkpoint.gguf_metadata import as_written
from vivace.checkpoint.gguf_types import GGML_QUANT_SIZES, GGMLQuantizationType


def test_types_and_blocks_are_those_of_the_gguf_package() -> None:
    known = {kind.name: (kind.value, size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    ours = {kind.name: (kind.value, size) for kind, size in GGML_QUANT_SIZES.items()}
    assert known.items() <= ours.items(), "an older package knows fewer"
    assert set(GGML_QUANT_SIZES) == set(GGMLQuantizationType)


def test_a_type_newer_than_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gguf.constants.GGMLQuantizationType", IntEnum("Older", {"F32": 0}))
    with pytest.raises(NotImplementedError):
        decode_blocks(np.zeros((1, 18), np.uint8), GGMLQuantizationType.Q1_0, torch.float32)


@given(st.floats(0, 1e6, width=32) | st.floats(allow_nan=False))
@pytest.mark.filterwarnings("ignore:overflow")
def test_a_number_is_the_shortest_that_became_the_float32(value: float) -> None:
    with np.errstate(over="ignore"):
        stored = np.float32(value)
        found = as_written(float(stored))
        assert np.float32(found) == stored
    assert len(repr(found)) <= len(repr(float(str(stored))))


@pytest.mark.parametrize("value", [0.95, 0.2, 0.9, 1.1, 1e-8, 40.0])
def test_recommended_settings_read_as_they_were_written(value: float) -> None:
    assert as_written(float(np.float32(value))) == value
    assert as_written(7) == 7
