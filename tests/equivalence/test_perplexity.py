"""The kernels predict a text as well as the arithmetic they replace.

Perplexity of a fixed text under the embedded model, from the engine's own prompt log-probabilities,
as it is served by default: stored blocks with activations in int8, or bfloat16 weights; keys and
values in bfloat16. The
reference is float32 throughout, by torch's operations, over the same weights.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from embedded_model import write_checkpoint
from engine_under_test import skip_unbuilt

import vivace
from vivace.checkpoint.source import locate
from vivace.platforms.cpu.library import best_isa

TEXT = """
The lighthouse on the northern point was built when ships still carried grain and timber along the
coast. Its first keeper, a retired sailor, lived there with two daughters and a goat that refused to
leave the kitchen. Every evening he climbed one hundred and twelve steps, cleaned the glass, trimmed
the wick and wrote a short note about the weather in a blue book. Most of the notes are dull: wind
from the west, light rain, nothing seen. But on the fourth of March 1871 he filled three pages. A
schooner had lost its rudder in the night and drifted toward the rocks. He could not reach it with
a boat, so he tied lanterns along the beach to show the only channel that was deep enough.

The crew understood. They raised what was left of one sail, waited for the tide, and followed the
lights between the stones until the keel touched sand. Eleven people walked ashore. The captain gave
the keeper his compass, which is still shown in the small museum of the village, next to the blue
book. Today the lamp is electric and nobody lives in the tower. A computer switches it on at dusk
and reports to an office two hundred miles away when a bulb has failed. Visitors come in summer to
see the view, and children ask whether the goat was real. The guide always says yes, because there
is a drawing of it on the last page, signed by the younger daughter.
"""
CONTEXT = 512


def perplexity(ids: list[int] | None = None, **flags: Any) -> tuple[float, list[int]]:
    """(perplexity, the text's tokens)"""
    settings = {"context_length": CONTEXT, "max_total_tokens": CONTEXT, "max_running_requests": 2}
    prompt: dict[str, Any] = {"prompt": TEXT} if ids is None else {"input_ids": ids}
    with vivace.Engine(**settings, cpu_threads=2, **flags) as engine:
        answer: Any = engine.generate(
            **prompt,
            sampling_params={"max_new_tokens": 1, "temperature": 0.0},
            return_logprob=True,
            logprob_start_len=0,
        )
    entries = answer["meta_info"]["input_token_logprobs"]
    scored = [entry[0] for entry in entries[1:]]
    return math.exp(-sum(scored) / len(scored)), [entry[1] for entry in entries]


@pytest.fixture(scope="module")
def bfloat16_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("bfloat16")
    return str(write_checkpoint(locate(None).path, folder, torch.bfloat16))


@pytest.fixture(scope="module")
def reference() -> tuple[float, list[int]]:
    """Of the decoded blocks; and the tokens."""
    return perplexity(disable_cpu_kernels=True, dtype="float32")


def test_the_text_is_one_that_the_model_can_predict(reference: tuple[float, list[int]]) -> None:
    found, ids = reference
    assert 250 < len(ids) < CONTEXT
    assert 10 < found < 100, "of 49,152 tokens"


def test_stored_blocks(reference: tuple[float, list[int]]) -> None:
    skip_unbuilt("eager")
    exact, ids = reference
    found, same = perplexity(chunked_prefill_size=128)
    assert same == ids
    assert found == pytest.approx(exact, rel=1e-2), "activations in int8"
    assert found != pytest.approx(exact, rel=1e-4)


def test_stored_blocks_with_float_activations(reference: tuple[float, list[int]]) -> None:
    skip_unbuilt("eager")
    exact, ids = reference
    same: dict[str, Any] = {"activation_dtype": "float", "skip_tokenizer_init": True}
    found, _ = perplexity(ids, chunked_prefill_size=128, **same)
    assert found == pytest.approx(exact, rel=1e-3)
    in_float32, _ = perplexity(ids, dtype="float32", **same)
    assert in_float32 == pytest.approx(exact, rel=1e-5), "keys and values in float32 too"


def test_bfloat16_weights(reference: tuple[float, list[int]], bfloat16_model: str) -> None:
    skip_unbuilt("eager")
    _, ids = reference
    same: dict[str, Any] = {"model_path": bfloat16_model, "skip_tokenizer_init": True}
    exact, _ = perplexity(ids, disable_cpu_kernels=True, dtype="float32", **same)
    found, _ = perplexity(ids, dtype="bfloat16", **same)
    rounded, _ = perplexity(ids, disable_cpu_kernels=True, dtype="bfloat16", **same)
    rounding = 3e-3 if best_isa() != "avx2" else 6e-3  # torch is further off
    assert found == pytest.approx(rounded, rel=rounding), "torch rounds at much the same places"
    assert found == pytest.approx(exact, rel=4e-3), "a cosine's last bit moves it by up to 2e-3"


@pytest.mark.parametrize(("quantization", "part"), [("w8a16", 0.01), ("w8a8_int8", 0.04)])
def test_int8(reference: tuple[float, list[int]], quantization: str, part: float) -> None:
    """Of layers that were in four bits already; activations in int8 cost more than weights."""
    skip_unbuilt("eager")
    exact, ids = reference
    found, _ = perplexity(ids, quantization=quantization, skip_tokenizer_init=True)
    assert found == pytest.approx(exact, rel=part)
    assert found != pytest.approx(exact, rel=1e-4)
