"""Decoding blocks in threads gives the gguf package's numbers, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from vivace.checkpoint.gguf_blocks import (
    DECODERS,
    ELEMENTS_AT_ONCE,
    ELEMENTS_PER_TASK,
    decode_blocks,
)

HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
          "Q4_1": (0, 2), "Q5_1": (0, 2), "IQ4_NL": (0,), "Q4_0": (0,), "Q5_0": (0,),
          "Q8_0": (0,), "MXFP4": ()}  # fmt: skip


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def random_rows(kind: GGMLQuantizationType, rows: int, columns: int) -> np.ndarray:
    size, nbytes = GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(int(kind))
    blocks = random.integers(0, 256, (rows * columns // size, nbytes), dtype=np.uint8)
    for at in HALVES[kind.name]:
        scales = random.standard_normal(len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("kind", DECODERS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("inference", [False, True])
def test_bits_equal_gguf(kind: GGMLQuantizationType, inference: bool, threads: int) -> None:
    """More than two tasks, the last one with a piece of odd size."""
    columns = 1024
    rows = 2 * ELEMENTS_PER_TASK // columns + ELEMENTS_AT_ONCE // columns + 3
    data = random_rows(kind, rows, columns)
    data.setflags(write=False)
    wanted = torch.from_numpy(np.array(dequantize(data, kind), dtype=np.float32))
    with torch.inference_mode(inference):
        found = decode_blocks(data, kind, torch.float32)
        assert torch.equal(found, wanted)
        assert torch.equal(decode_blocks(data[:5], kind, torch.bfloat16), wanted[:5].bfloat16())


def test_a_type_without_a_decoder_of_its_own() -> None:
    data = random_rows(GGMLQuantizationType.IQ4_NL, 3, 64)
    wanted = np.array(dequantize(data, GGMLQuantizationType.IQ4_NL), dtype=np.float32)
    found = decode_blocks(data, GGMLQuantizationType.IQ4_NL, torch.float32)
    assert torch.equal(found, torch.from_numpy(wanted))


def test_a_type_nobody_decodes() -> None:
    with pytest.raises(NotImplementedError):
        decode_blocks(np.zeros((1, 40), np.uint8), GGMLQuantizationType.Q8_1, torch.float32)
