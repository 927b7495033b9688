"""Both SamplingOps, the native ones on every instruction set, against definitions in float64.

Rows are multiples of 1/8, so that different logits have clearly different probabilities. Where a
border of top-p, min-p or the cumulative sum lies within EDGE (relative) of a token, float32 may
decide either way: such tokens may stay or go, and such draws may take the neighbor.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from every_isa import USABLE, load_kernels
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vivace.platforms.cpu.native_ops import NativeSampling
from vivace.platforms.ops.sampling import Penalties, SamplingBatch, TorchSampling, Truncations

EDGE = 1e-5
IMPLEMENTATIONS = ("torch", *USABLE)
each = pytest.mark.parametrize("name", IMPLEMENTATIONS)
each_native = pytest.mark.parametrize("name", USABLE)
WIDTHS = st.sampled_from([1, 2, 15, 16, 17, 100, 511, 512, 513, 1025, 5000])


@cache
def load_ops(name, threads=2):
    return TorchSampling() if name == "torch" else NativeSampling(load_kernels(name, threads))


def random_logits(seed, rows, width, spread, masked=0.0):
    random = np.random.default_rng(seed)
    values = np.round(random.normal(0, spread, (rows, width)) * 8) / 8
    values[random.random((rows, width)) < masked] = -np.inf
    values[np.arange(rows), random.integers(0, width, rows)] = 1.0
    return torch.from_numpy(values.astype(np.float32))


def drawing(count, *, temperature=1.0, top_k: Any = 0, top_p=1.0, min_p=0.0, uniform: Any = 0.5):
    def column(value: Any, dtype: type[np.floating] = np.float64) -> np.ndarray:
        return np.array(np.broadcast_to(np.asarray(value, dtype), count), np.float64)

    cuts = {"top_k": column(top_k), "top_p": column(top_p), "min_p": column(min_p, np.float32)}
    return SamplingBatch(
        temperature=torch.from_numpy(column(temperature, np.float32)),
        **{name: torch.from_numpy(values) for name, values in cuts.items()},
        uniform=torch.from_numpy(column(uniform)),
        host=Truncations(**cuts),
    )


def draw(ops, logits, entries, batch):
    """Ids [m] in numpy, of numpy's `entries[m]`."""
    return ops.sample(logits, torch.from_numpy(np.asarray(entries)), batch).numpy()


def kept_weights(row, temperature, top_k, top_p, min_p):
    """(float64 weights relative to the largest, 0 where excluded; is it clear what stays?)"""
    row = row.astype(np.float64)
    weights = np.exp((row - row.max()) / np.float64(np.float32(temperature)))
    order = np.argsort(-row, kind="stable")
    first = np.searchsorted(-row[order], -row)  # how many have a larger logit
    above = np.concatenate(([0.0], weights[order].cumsum()))[first]
    limit, least = top_p * weights.sum(), np.float64(np.float32(min_p))
    kept, clear = np.ones(len(row), bool), True
    if top_k > 0:
        kept &= first < top_k
    if top_p < 1:
        kept &= above <= limit
        clear &= not (np.abs(above - limit) <= EDGE * above).any()
    if min_p > 0:
        kept &= weights >= least
        clear &= not ((np.abs(weights - least) <= EDGE * least) & (weights != 1)).any()
    return np.where(kept, weights, 0.0), clear


def assert_drawn(token, weights, uniform):
    ends = weights.cumsum()
    target, edge = uniform * ends[-1], EDGE * ends[-1]
    assert weights[token] > 0
    assert ends[token] - weights[token] - edge <= target <= ends[token] + edge


SETTINGS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.1, 0.7, 1.0, 5.0]),
        "top_k": st.sampled_from([0, 0, 1, 2, 40, 700, 100_000]),
        "top_p": st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.05, 1e-6]),
        "min_p": st.sampled_from([0.0, 0.0, 0.02, 0.5, 1.0]),
    }
)


@each
@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32),
    width=WIDTHS,
    spread=st.sampled_from([0.0, 0.2, 1.0, 4.0, 40.0]),
    masked=st.sampled_from([0.0, 0.5, 1.0]),
    asked=SETTINGS,
    uniform=st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2.0**-53])),
)
def test_draw_by_the_definition(name, seed, width, spread, masked, asked, uniform):
    logits = random_logits(seed, 1, width, spread, masked)
    weights, clear = kept_weights(logits[0].numpy(), **asked)
    assume(clear)
    found = draw(load_ops(name), logits, np.arange(1), drawing(1, **asked, uniform=uniform))
    assert_drawn(found[0], weights, uniform)


@each
def test_draw_from_a_whole_vocabulary(name):
    logits, random = random_logits(3, 12, 49152, 3.0), np.random.default_rng(4)
    for asked in (
        {},
        {"temperature": 0.6, "top_p": 0.95},
        {"top_k": 50, "top_p": 0.9},
        {"temperature": 3.0, "top_p": 0.99},
        {"top_k": 20_000},
        {"min_p": 0.3},
    ):
        full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **asked}
        uniform = random.random(12)
        found = draw(load_ops(name), logits, np.arange(12), drawing(12, **full, uniform=uniform))
        for token, row, one in zip(found, logits.numpy(), uniform, strict=True):
            weights, clear = kept_weights(row, **full)
            if clear:
                assert_drawn(token, weights, one)


@each
@pytest.mark.parametrize(
    "asked", [{}, {"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.1}, {"temperature": 2.0, "top_p": 0.6}]
)
def test_evenly_spread_uniforms_draw_every_token_by_its_share(name, asked):
    count, logits = 20_000, random_logits(5, 1, 600, 2.0)
    full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **asked}
    weights, clear = kept_weights(logits[0].numpy(), **full)
    assert clear
    uniform = (np.arange(count) + 0.5) / count
    entries = np.zeros(count, np.int64)
    found = draw(load_ops(name), logits, entries, drawing(count, **full, uniform=uniform))
    wanted = count * weights / weights.sum()
    assert np.abs(np.bincount(found, minlength=600) - wanted).max() <= 1.5
    assert (np.diff(found) >= 0).all()


@each
def test_hot_and_cold_extremes(name):
    ops, one = load_ops(name), np.arange(1)
    logits = random_logits(6, 1, 1000, 3.0)
    hot = [
        int(draw(ops, logits, one, drawing(1, temperature=1e9, uniform=u))[0])
        for u in (0.0, 0.25, 0.5005, 0.9999)
    ]
    assert hot == [0, 250, 500, 999]
    best = int(ops.argmax(logits)[0][0])
    for asked in ({"temperature": 1e-5}, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        for uniform in (0.0, 0.5, 1 - 2.0**-53):
            assert draw(ops, logits, one, drawing(1, **asked, uniform=uniform))[0] == best
    only = torch.full((1, 1000), -torch.inf)
    only[0, 777] = -3.0
    for uniform in (0.0, 1 - 2.0**-53):
        assert draw(ops, only, one, drawing(1, top_k=5, uniform=uniform))[0] == 777


@each
def test_ties_stay_together(name):
    logits = torch.zeros(1, 40)
    logits[0, [3, 20, 39]] = 2.0
    for asked in ({"top_k": 1}, {"top_k": 3}, {"top_p": 0.01}, {"min_p": 1.0}):
        uniform = (np.arange(9) + 0.5) / 9
        entries = np.zeros(9, np.int64)
        found = draw(load_ops(name), logits, entries, drawing(9, **asked, uniform=uniform))
        assert found.tolist() == [3] * 3 + [20] * 3 + [39] * 3
    everything = drawing(40, top_k=4, uniform=(np.arange(40) + 0.5) / 40)
    found = draw(load_ops(name), logits, np.zeros(40, np.int64), everything)
    assert set(found.tolist()) > {0, 3, 20, 38, 39}  # the fourth ties with all the others


@each_native
def test_a_row_is_drawn_the_same_in_any_batch_beside_any_neighbor(name):
    random = np.random.default_rng(8)
    logits = torch.from_numpy(random.normal(0, 3, (9, 4099)).astype(np.float32))
    full = {
        "temperature": random.uniform(0.3, 2, 9).astype(np.float32),
        "top_k": random.integers(0, 60, 9),
        "top_p": random.uniform(0.3, 1, 9),
        "min_p": random.uniform(0, 0.05, 9),
        "uniform": random.random(9),
    }
    temperature = torch.from_numpy(full["temperature"])
    together = draw(load_ops(name), logits, np.arange(9), drawing(9, **full))
    totals = load_ops(name).logsumexp(logits, temperature)
    spoilt = logits.clone()
    spoilt[[0, 2, 4, 6, 8]] = torch.tensor([[torch.nan], [torch.inf], [-torch.inf], [0.0], [1e38]])
    for threads in (1, 2, 3):
        ops = load_ops(name, threads)
        for row in range(9):
            single = drawing(1, **{name: values[[row]] for name, values in full.items()})
            assert draw(ops, logits, np.array([row]), single)[0] == together[row]
            alone = ops.logsumexp(logits[row : row + 1], temperature[[row]])
            assert torch.equal(alone, totals[[row]])
        beside = draw(ops, spoilt, np.arange(9), drawing(9, **full))
        assert beside[1::2].tolist() == together[1::2].tolist()
        assert ((beside >= 0) & (beside < 4099)).all()


@each
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), width=WIDTHS, spread=st.sampled_from([0.1, 3.0]))
def test_best_is_the_first_of_the_largest(name, seed, width, spread):
    logits = random_logits(seed, 4, width, spread, masked=0.3)
    tokens, bad = load_ops(name).argmax(logits)
    assert not bad.any()
    assert tokens.tolist() == logits.numpy().argmax(-1).tolist()


@each
@pytest.mark.parametrize("place", [0, 16, 1023, 1024, 1300, 1302])
def test_best_marks_rows_without_one(name, place):
    logits = random_logits(9, 6, 1303, 2.0)
    wanted = logits.numpy().argmax(-1)
    logits[0, place], logits[2, place], logits[3] = torch.nan, torch.inf, -torch.inf
    logits[4, place] = -torch.inf
    wanted[4] = logits[4].argmax()
    tokens, bad = (one.numpy() for one in load_ops(name).argmax(logits))
    assert bad.tolist() == [True, False, True, True, False, False]
    assert tokens[~bad].tolist() == wanted[~bad].tolist()
    assert ((tokens >= 0) & (tokens < 1303)).all()


@each
@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    width=WIDTHS,
    temperature=st.sampled_from([0.2, 1.0, 3.0]),
    masked=st.sampled_from([0.0, 0.6]),
)
def test_logsumexp(name, seed, width, temperature, masked):
    logits = random_logits(seed, 3, width, 3.0, masked)
    found = load_ops(name).logsumexp(logits, torch.full((3,), temperature))
    exact = (logits.double() / np.float64(np.float32(temperature))).logsumexp(-1)
    torch.testing.assert_close(found.double(), exact, rtol=2e-7, atol=2e-6)


@each
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), width=WIDTHS, count=st.sampled_from([1, 5, 20, 600, 5000]))
def test_top(name, seed, width, count):
    logits, count = random_logits(seed, 3, width, 3.0, masked=0.2), min(count, width)
    values, ids = (one.numpy() for one in load_ops(name).topk(logits, count))
    order = np.argsort(-logits.numpy(), axis=-1, kind="stable")[:, :count]
    assert values.tolist() == np.take_along_axis(logits.numpy(), order, -1).tolist()
    if name == "torch":  # which of those that tie is torch's affair
        order = ids
    assert ids.tolist() == order.tolist()
    assert np.take_along_axis(logits.numpy(), ids, -1).tolist() == values.tolist()


@each
@pytest.mark.parametrize("width", [1, 16, 31, 576])
def test_bad_tokens(name, width):
    hidden = torch.randn(70, width + 3)[:, :width] * 1e38  # the sum of a row may be infinite
    hidden.clamp_(-3e38, 3e38)
    assert not load_ops(name).bad_tokens(hidden).any()
    for row, column, value in ((0, 0, torch.nan), (33, -1, torch.inf), (69, -1, -torch.inf)):
        hidden[row, column] = value
    bad = load_ops(name).bad_tokens(hidden)
    assert np.flatnonzero(bad).tolist() == [0, 33, 69]


@each_native
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), width=WIDTHS, longest=st.sampled_from([39, 41, 50]))
def test_penalties_are_those_of_torch_bit_by_bit(name, seed, width, longest):
    random = np.random.default_rng(seed)
    logits = torch.from_numpy(random.normal(0, 3, (5, width)).astype(np.float32))
    prompt = random.integers(1, 20, 3)

    def column(values):
        return torch.from_numpy(random.choice(values, 3).astype(np.float32).astype(np.float64))

    penalties = Penalties(
        rows=torch.from_numpy(random.permutation(8)[:3]),
        prompt=torch.from_numpy(prompt),
        known=torch.from_numpy(prompt + random.integers(0, 20, 3)),
        frequency=column([0, 0.3, -1.1]),
        presence=column([0, 0.7]),
        repetition=column([1, 1.3, 0.6]),
        tokens=torch.from_numpy(random.integers(0, min(width + 2, 30), (8, 41)).astype(np.int32)),
        longest=longest,
    )
    entries, wanted = torch.tensor([0, 2, 4]), logits.clone()
    load_ops("torch").apply_penalties(wanted, entries, penalties)
    load_ops(name).apply_penalties(logits, entries, penalties)
    assert logits.numpy().tobytes() == wanted.numpy().tobytes()


@each_native
def test_tables_that_the_kernels_cannot_read_are_refused(name):
    with pytest.raises(ValueError, match="float32"):
        load_ops(name).bad_tokens(torch.zeros(2, 4, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="strides"):
        load_ops(name).argmax(torch.zeros(4, 6).t())
