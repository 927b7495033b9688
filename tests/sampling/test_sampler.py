"""The sampler against slow one-row definitions, and its independence of the batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.engine.oracle import splitmix64 as scalar_splitmix64
from vivace.platforms.cpu.native import Kernels, NoKernels
from vivace.platforms.cpu.native_ops import NativeSampling
from vivace.platforms.host import HOST
from vivace.platforms.ops.sampling import (
    CANDIDATES,
    SamplingBatch,
    SamplingOps,
    TorchSampling,
    Truncations,
    invert,
    mask_excluded,
)
from vivace.protocol.messages import LogprobOptions, SamplingParams
from vivace.protocol.step import Join, StepPlan
from vivace.sampling.processors import (
    Entries,
    Histories,
    LogitsProcessors,
    standard_processors,
)
from vivace.sampling.sampler import ExactDraw, Sampler, SamplingRows, splitmix64, uniforms

VOCABULARY = 50


def native() -> SamplingOps | str:
    """The kernels' operations, or why there are none."""
    try:
        return NativeSampling(Kernels(2))
    except NoKernels as error:
        return str(error)


NATIVE = native()
each = pytest.mark.parametrize(
    "ops",
    [
        pytest.param(TorchSampling(), id="torch"),
        pytest.param(TorchSampling(reads=True), id="torch that reads"),
        pytest.param(
            NATIVE,
            id="kernels",
            marks=pytest.mark.skipif(isinstance(NATIVE, str), reason=str(NATIVE)),
        ),
    ],
)


def make_joins(params, stop_ids):
    return [
        Join(
            row=row,
            key=row,
            tokens=[1],
            prompt=1,
            cached=0,
            pages=[],
            sampling=one,
            stop_ids=tuple(stop_ids),
        )
        for row, one in enumerate(params)
    ]


class Table:
    """Rows of requests with some history, ready to draw."""

    def __init__(self, ops, params, *, stop_ids=(), seed=0, options=None):
        self.ops = ops
        random = np.random.default_rng(seed)
        count = len(params)
        self.rows = np.arange(count)
        self.columns = SamplingRows(count, HOST)
        self.prompt = random.integers(1, 6, count)
        self.known = self.prompt + random.integers(0, 9, count)
        self.tokens = random.integers(0, VOCABULARY, (count, 20)).astype(np.int32)
        self.options = options or {}
        for row, one in enumerate(params):
            self.columns.set(row, one)
            if row in self.options:
                self.columns.ask_logprobs(row)
        history = Histories(
            tokens=torch.from_numpy(self.tokens),
            prompt=torch.from_numpy(self.prompt),
            known=self.known,
        )
        standard = standard_processors(ops, history, count, HOST)
        self.processors = LogitsProcessors(standard, count)
        self.processors.update(StepPlan(number=0, joins=make_joins(params, stop_ids)))
        self.logits = torch.from_numpy(random.normal(0, 3, (count, VOCABULARY)).astype(np.float32))

    def draw(self, rows=None, **settings):
        rows = self.rows if rows is None else np.asarray(rows)
        places = torch.from_numpy(rows), torch.from_numpy(self.known[rows])
        return Sampler(self.ops, self.processors, ExactDraw(self.ops), **settings).sample(
            self.logits[rows].clone(),
            Entries(*places, rows),
            self.columns,
            self.options,
        )

    def expected_logits(self, row, params, stop_ids=()):
        """Penalties, minimum length, repetition, bias: by the definition, in this order."""
        logits = self.logits[row].tolist()
        output = self.tokens[row, self.prompt[row] : self.known[row]].tolist()
        everything = self.tokens[row, : self.known[row]].tolist()
        for token in set(output):
            logits[token] -= params.frequency_penalty * output.count(token)
            logits[token] -= params.presence_penalty
        if len(output) < params.min_new_tokens:
            for token in stop_ids:
                logits[token] = -math.inf
        for token in set(everything):
            scale = params.repetition_penalty
            logits[token] = logits[token] / scale if logits[token] > 0 else logits[token] * scale
        for token, bias in params.logit_bias.items():
            logits[token] += bias
        return torch.tensor(logits)


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    top_p=st.sampled_from([1.0, 0.9, 0.3, 1e-9]),
    top_k=st.sampled_from([0, 1, 5, VOCABULARY, 1000]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.7, -2.0]),
    presence_penalty=st.sampled_from([0.0, 0.4]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.5]),
    min_new_tokens=st.sampled_from([0, 4, 20]),
    logit_bias=st.dictionaries(st.integers(0, VOCABULARY - 1), st.sampled_from([-100.0, 3.0])),
    seed=st.integers(0, 2**64 - 1),
)


def expected_token(table, row, params, stop_ids):
    logits = table.expected_logits(row, params, stop_ids)
    if params.temperature == 0:
        return int(logits.argmax())
    weights = (logits / params.temperature).softmax(-1).double().tolist()
    ranked = sorted(weights, reverse=True)
    kept = []
    for weight in weights:
        better = [other for other in ranked if other > weight]
        inside = weight >= params.min_p * ranked[0] * (1 - 1e-6)
        inside &= not params.top_k or len(better) < params.top_k
        inside &= sum(better) <= params.top_p * (1 + 1e-6)
        kept.append(weight if inside else 0.0)
    word = scalar_splitmix64(scalar_splitmix64(params.seed) ^ int(table.known[row]))
    target = (word >> 11) * 2.0**-53 * sum(kept)
    total = 0.0
    for token, weight in enumerate(kept):
        total += weight
        if total > target:
            return token
    return max(token for token, weight in enumerate(kept) if weight)


@each
@settings(max_examples=60, deadline=None)
@given(params=st.lists(PARAMS, min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_equals_the_definition_alone_and_in_any_batch(ops, params, seed):
    stop_ids = (3, 7)
    table = Table(ops, params, stop_ids=stop_ids, seed=seed)
    together = table.draw().tokens.tolist()
    alone = [int(table.draw([row]).tokens[0]) for row in range(len(params))]
    backwards = table.draw(list(range(len(params)))[::-1]).tokens.tolist()[::-1]
    assert together == alone == backwards
    assert together == [expected_token(table, row, one, stop_ids) for row, one in enumerate(params)]


SEEDS = st.integers(0, 2**64 - 1)


def signed(words):
    """int64 tensor of the same bits"""
    return torch.from_numpy(np.array(words, np.uint64).view(np.int64))


@given(st.lists(SEEDS, min_size=1, max_size=20))
def test_vector_splitmix_equals_the_scalar_one(words):
    found = splitmix64(signed(words)).numpy().view(np.uint64).tolist()
    assert found == [scalar_splitmix64(word) for word in words]


@given(st.lists(st.tuples(SEEDS, st.integers(0, 2**40)), min_size=1, max_size=20))
def test_uniforms_are_the_53_highest_bits_of_the_scalar_ones(places):
    seeds, positions = zip(*places, strict=True)
    found = uniforms(splitmix64(signed(seeds)), torch.tensor(positions)).tolist()
    words = [scalar_splitmix64(scalar_splitmix64(seed) ^ place) for seed, place in places]
    assert found == [(word >> 11) * 2.0**-53 for word in words]


@given(seed=SEEDS)
def test_a_row_keeps_its_seed_mixed(seed):
    columns = SamplingRows(3, HOST)
    columns.set(1, SamplingParams(seed=seed))
    assert columns.seed.tolist() == [0, signed([scalar_splitmix64(seed)]).item(), 0]


def test_uniforms_are_uniform():
    seeds = splitmix64(torch.arange(200)).repeat_interleave(100)
    found = uniforms(seeds, torch.arange(100).repeat(200)).numpy()
    histogram = np.histogram(found, 20, (0, 1))[0]
    assert abs(histogram - 1000).max() < 160
    assert found.min() >= 0 and found.max() < 1


def test_draws_follow_the_distribution():
    count = 20_000
    weights = torch.tensor([0.5, 0.0, 0.2, 0.3]).expand(count, -1).contiguous()
    uniform = uniforms(torch.zeros(count, dtype=torch.int64), torch.arange(count))
    shares = torch.bincount(invert(weights, uniform), minlength=4) / count
    torch.testing.assert_close(shares, weights[0], atol=0.015, rtol=0)
    assert shares[1] == 0


def test_the_end_of_the_range_draws_the_last_possible_token():
    weights = torch.tensor([[0.25, 0.75, 0.0]])
    assert invert(weights, torch.tensor([1 - 2.0**-53], dtype=torch.float64)).tolist() == [1]
    assert invert(weights, torch.tensor([0.0], dtype=torch.float64)).tolist() == [0]


def cut(top_k, top_p, min_p):
    """A batch of what decides which tokens stay."""
    host = Truncations(
        **{
            name: np.array(values, np.float64)
            for name, values in (("top_k", top_k), ("top_p", top_p), ("min_p", min_p))
        }
    )
    columns = (torch.from_numpy(one) for one in (host.top_k, host.top_p, host.min_p))
    top_k, top_p, min_p = columns
    ones = torch.ones_like(top_p)
    return SamplingBatch(
        temperature=ones, top_k=top_k, top_p=top_p, min_p=min_p, uniform=ones, host=host
    )


@pytest.mark.parametrize("candidates", [(), CANDIDATES])
def test_a_nucleus_wider_than_the_first_candidates(candidates):
    table = torch.full((2, 5000), 1 / 5000)
    table[1, :2] = torch.tensor([0.6, 0.3])
    table[1, 2:] = 0.1 / 4998
    mask_excluded(table, cut([0, 0], [0.7, 0.5], [0, 0]), candidates)
    assert (table[0] > 0).sum() == 5000  # ties with the last one inside stay
    assert (table[1] > 0).nonzero().flatten().tolist() == [0]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), spread=st.sampled_from([0.01, 1.0, 5.0]))
def test_ranking_few_candidates_first_gives_the_same_bits(seed, spread):
    random = np.random.default_rng(seed)
    table = torch.from_numpy(random.normal(0, spread, (6, 3000)).astype(np.float32)).softmax(-1)
    table[5] = torch.nan
    batch = cut(
        random.choice([0, 1, 50, 700], 6), random.choice([1, 0.99, 0.5, 1e-6], 6), [0, 0.01] * 3
    )
    few, all_sorted = table.clone(), table.clone()
    mask_excluded(few, batch, CANDIDATES)
    mask_excluded(all_sorted, batch)
    assert few.numpy().tobytes() == all_sorted.numpy().tobytes()


@each
def test_bad_rows_are_named_and_harm_nobody(ops):
    params = [SamplingParams(temperature=t, seed=5) for t in (0.0, 1.0, 1.0, 0.0, 1.0)]
    table = Table(ops, params)
    good = table.draw().tokens.tolist()
    table.logits[1, 7] = torch.nan
    table.logits[2] = -torch.inf
    table.logits[3, 0] = torch.inf
    draws = table.draw()
    assert draws.bad.tolist() == [False, True, True, True, False]
    assert [draws.tokens[0], draws.tokens[4]] == [good[0], good[4]]
    assert all(0 <= token < VOCABULARY for token in draws.tokens)


@each
def test_minimum_length_masks_every_stop_id(ops):
    params = [SamplingParams(temperature=0.0, min_new_tokens=50)]
    table = Table(ops, params, stop_ids=(3, 7))
    table.logits[0, 3], table.logits[0, 7], table.logits[0, 11] = 90.0, 80.0, 70.0
    assert table.draw().tokens.tolist() == [11]
    (reached,) = make_joins([SamplingParams(temperature=0.0, min_new_tokens=0)], (3, 7))
    table.processors.update(StepPlan(number=1, leaves=[0], joins=[reached]))
    assert table.draw().tokens.tolist() == [3]


@each
def test_logprobs_are_taken_after_temperature_unless_original(ops):
    options = {0: LogprobOptions(top=2), 2: LogprobOptions(token_ids=(4, 1), top=0)}
    params = [SamplingParams(temperature=t, seed=1) for t in (0.5, 1.0, 0.0)]
    table = Table(ops, params, options=options)
    for original, temperature in ((False, 0.5), (True, 1.0)):
        draws = table.draw(original_logprobs=original)
        logprobs = draws.logprobs.read()
        assert set(logprobs) == {0, 2}
        scores = (table.logits[0] / temperature).log_softmax(-1)
        one = logprobs[0]
        assert one.token == draws.tokens[0]
        assert math.isclose(one.logprob, scores[one.token].item(), abs_tol=1e-5)
        assert [token for _, token in one.top] == scores.topk(2).indices.tolist()
        plain = table.logits[2].log_softmax(-1)
        two = logprobs[2]
        assert two.top is None
        assert [token for _, token in two.chosen] == [4, 1]
        assert math.isclose(two.chosen[0][0], plain[4].item(), abs_tol=1e-5)


def test_a_row_is_clean_after_it_was_given_up():
    columns = SamplingRows(1, HOST)
    asking = SamplingParams(logit_bias={1: 5.0}, min_new_tokens=3, top_k=3, presence_penalty=1.0)
    columns.set(0, asking)
    columns.clear(0)
    columns.set(0, SamplingParams(temperature=0.0))
    assert columns.features[0] == 0
    table = Table(TorchSampling(), [asking], stop_ids=(2,))
    assert len(table.processors.rows[0]) == 3
    table.processors.update(StepPlan(number=1, leaves=[0]))
    assert not table.processors.rows
    (joined,) = make_joins([SamplingParams(temperature=0.0)], (2,))
    table.processors.update(StepPlan(number=2, joins=[joined]))
    assert not table.processors.rows
    before = table.logits.clone()
    entries = Entries(torch.tensor([0]), torch.tensor([3]), np.array([0]))
    table.processors.apply(table.logits, entries)
    assert torch.equal(table.logits, before)
