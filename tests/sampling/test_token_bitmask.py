"""Masks of allowed tokens: whatever computes them does what the words say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_sampler import native

from vivace.platforms.ops.sampling import SamplingOps, TokenMasks, TorchSampling

KINDS: list[SamplingOps | str] = [TorchSampling(), TorchSampling(reads=True), native()]


def expected(logits: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Of one row."""
    masked = np.where(allowed, logits, -np.inf)
    if allowed.any() and (masked == -np.inf).all():
        masked[allowed] = 0.0
    return masked


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(logits[n, V], entries[m], allowed[m, V])"""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    rows, width = draw(st.integers(1, 5)), draw(st.integers(1, 100))
    logits = rng.normal(size=(rows, width)).astype(np.float32)
    logits[rng.random(logits.shape) < draw(st.sampled_from([0, 0.3, 1]))] = -np.inf
    logits[rng.random(logits.shape) < draw(st.sampled_from([0, 0, 0.1]))] = np.nan
    entries = np.flatnonzero(rng.random(rows) < 0.7)
    allowed = rng.random((len(entries), width)) < draw(st.sampled_from([0, 0.1, 0.5, 1]))
    return logits, entries, allowed


@pytest.mark.parametrize("ops", KINDS, ids=["torch", "host", "native"])
@given(cases())
def test_a_mask_leaves_what_is_allowed(
    ops: SamplingOps | str, case: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    if isinstance(ops, str):
        pytest.skip(ops)
    logits, entries, allowed = case
    width = logits.shape[1]
    bits = np.zeros((len(entries), -(-width // 32) * 32), bool)
    bits[:, :width] = allowed
    bits[:, width:] = True  # of no token
    mask = np.packbits(bits, axis=1, bitorder="little").view(np.int32)
    wanted = logits.copy()
    for row, one in zip(entries, allowed, strict=True):
        wanted[row] = expected(logits[row], one)
    found = torch.from_numpy(logits.copy())
    masks = TokenMasks(entries=torch.from_numpy(entries), bits=torch.from_numpy(mask))
    tokens, bad = ops.argmax(found, masks)
    np.testing.assert_array_equal(found.numpy(), wanted)
    best = [line.max() for line in wanted]
    assert bad.tolist() == [not np.isfinite(one) for one in best]
    good = np.isfinite(best)
    assert tokens.numpy()[good].tolist() == wanted.argmax(1)[good].tolist()
