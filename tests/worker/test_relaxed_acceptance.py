"""Relaxed acceptance against its rule, one entry after the other in plain numpy."""

from __future__ import annotations

import math
import random
from functools import cache

import numpy as np
import pytest
import torch
from delayed_platform import DelayedPlatform
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_trees import ScriptedTreeDrafter
from test_delayed_steps import DeviceDrafter, delayed_answers
from toy_model import VOCABULARY, Driver, toy_worker

from vivace.platforms.host import HOST
from vivace.platforms.ops.sampling import TorchSampling
from vivace.platforms.rows import DraftPaths
from vivace.protocol.messages import LogprobOptions, SamplingParams
from vivace.sampling.processors import Entries
from vivace.sampling.sampler import ExactDraw, SamplingRows, uniforms
from vivace.worker.drafters import relaxed
from vivace.worker.drafters.relaxed import AcceptThresholds, RelaxedDraw, choose_draw
from vivace.worker.drafters.scripted import ScriptedDrafter
from vivace.worker.heads import SamplingSettings

OPS = TorchSampling(reads=True)
KNOWN = 3
ALL = AcceptThresholds(single=0.0)


def chosen_by_rule(weights, uniform, drafts, thresholds):
    """The token that is drawn of weights[V], with such drafts behind it; None: as without any."""
    left, reached = weights.astype(np.float64) / np.cumsum(weights, dtype=np.float64)[-1], 0.0
    for draft in drafts:
        own, left[draft] = left[draft], 0.0
        reached += own
        if own > 0 and (uniform * thresholds.acc < reached or own >= thresholds.single):
            return draft
    if not drafts or not left.any():
        return None
    passed = min(1.0, reached / thresholds.acc)
    cumulative = np.cumsum(left)
    rest = (uniform - passed) / (1 - passed) * cumulative[-1]
    return int(np.searchsorted(cumulative, rest, side="right"))


class Trees:
    """Rows with drafts, ready to draw: `parents[row]` of each draft's place, -1 for the known
    token; None: chains."""

    def __init__(self, params, drafts, parents, vocabulary=12, seed=0):
        chance, count, width = np.random.default_rng(seed), len(params), max(map(len, drafts))
        self.columns, self.params = SamplingRows(count, HOST), params
        self.drafts, self.parents = drafts, parents
        for row, one in enumerate(params):
            self.columns.set(row, one)
        self.tokens = torch.zeros(count, KNOWN + width, dtype=torch.int32)
        rows, depths, paths = [], [], []
        for row, tokens in enumerate(drafts):
            self.tokens[row, KNOWN : KNOWN + len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
            for draft in range(-1, len(tokens)):
                path = self.path(row, draft)
                rows.append(row)
                depths.append(len(path))
                paths.append([*path, *[0] * (width - len(path))])
        self.rows, depths = np.array(rows), torch.tensor(depths)
        tree = DraftPaths(depths, torch.tensor(paths).view(len(rows), width))
        self.entries = Entries(
            torch.from_numpy(self.rows), KNOWN + depths, self.rows, tree if parents else None
        )
        logits = chance.normal(0, 2, (len(rows), vocabulary)).astype(np.float32)
        self.logits = torch.from_numpy(logits)

    def path(self, row, draft):
        path = []
        while draft >= 0:
            path.insert(0, draft)
            draft = self.parents[row][draft] if self.parents else draft - 1
        return path

    def draw(self, thresholds, chosen=None):
        """Of these entries, or of all, beside each other."""
        places = np.arange(len(self.rows)) if chosen is None else np.asarray(chosen)
        index = torch.from_numpy(places)
        draw = choose_draw(OPS, self.tokens, thresholds)
        return draw(self.logits, index, self.entries.select(places, index), self.columns).tolist()

    def expected(self, thresholds):
        exact = self.draw(AcceptThresholds())
        batch = self.columns.batch(self.entries)
        weights = OPS.weights(self.logits, torch.arange(len(self.rows)), batch).numpy()
        found, first = [], 0
        for row, drafts in enumerate(self.drafts):
            above = self.parents[row] if self.parents else range(-1, len(drafts) - 1)
            for node in range(-1, len(drafts)):
                place = first + node + 1
                behind = [draft for draft, at in zip(drafts, above, strict=True) if at == node]
                uniform = float(batch.uniform[place])
                token = chosen_by_rule(weights[place], uniform, behind, thresholds)
                found.append(exact[place] if token is None else token)
            first += 1 + len(drafts)
        return found


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_p=st.sampled_from([1.0, 0.7]),
    top_k=st.sampled_from([0, 1, 5]),
    min_p=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 1 << 40),
)
THRESHOLDS = st.builds(
    AcceptThresholds,
    single=st.sampled_from([0.0, 1e-9, 0.123, 0.61, 1.0]),
    acc=st.sampled_from([1e-3, 0.37, 0.9, 1.0]),
)


@st.composite
def trees(draw):
    params = draw(st.lists(PARAMS, min_size=1, max_size=4))
    drafts = [draw(st.lists(st.integers(0, 11), max_size=6)) for _ in params]
    if not any(drafts):
        drafts[0] = [4]
    parents = None
    if draw(st.booleans()):
        parents = [
            [draw(st.integers(-1, place - 1)) for place in range(len(tokens))] for tokens in drafts
        ]
    return Trees(params, drafts, parents, seed=draw(st.integers(0, 99)))


@settings(max_examples=100, deadline=None)
@given(trees(), THRESHOLDS, st.sampled_from([1, 30, 1 << 24]))
def test_what_is_drawn_follows_the_rule(asked, thresholds, most) -> None:
    """Chains, branches, equal drafts, rows without any; in parts of whatever size, alone and
    beside others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relaxed, "WEIGHTS", most)
        found = asked.draw(thresholds)
        assert found == (
            asked.draw(AcceptThresholds()) if thresholds.exact else asked.expected(thresholds)
        )
        for row in range(len(asked.params)):
            places = np.flatnonzero(asked.rows == row)
            assert asked.draw(thresholds, places) == [found[place] for place in places]


def test_thresholds_of_one_draw_exactly() -> None:
    assert isinstance(choose_draw(OPS, torch.zeros(1, 1), AcceptThresholds()), ExactDraw)
    for one in (AcceptThresholds(single=0.99), AcceptThresholds(acc=0.99)):
        assert isinstance(choose_draw(OPS, torch.zeros(1, 1), one), RelaxedDraw)


@pytest.mark.parametrize(
    ("drafts", "single", "acc"),
    [([2], 1.0, 0.5), ([5, 2], 1.0, 0.6), ([0, 3, 5], 1.0, 1.0), ([5], 0.3, 0.8), ([4], 0.3, 1.0)],
)
def test_tokens_are_as_frequent_as_the_rule_says(drafts, single, acc) -> None:
    """A draft, if none before it was taken, with the sum of probabilities divided by `acc`; other
    tokens as they are to each other. With `acc` 1 that is what is drawn without drafts."""
    probabilities = np.array([0.05, 0.1, 0.15, 0.2, 0.35, 0.15])
    count = 20_000
    uniform = uniforms(torch.arange(count), torch.tensor(7))
    weights = torch.from_numpy(probabilities).float().repeat(count, 1)
    offers = [
        relaxed.DraftOffer(torch.arange(count), torch.full((count,), draft)) for draft in drafts
    ]
    found = relaxed.relax(
        weights,
        uniform,
        torch.zeros(count, dtype=torch.int64),
        offers,
        AcceptThresholds(single, acc),
    )
    expected, before, reached = np.zeros(6), 0.0, 0.0
    for draft in drafts:
        reached += probabilities[draft]
        after = 1.0 if probabilities[draft] >= single else min(1.0, reached / acc)
        expected[draft], before = after - before, after
    others = np.delete(np.arange(6), drafts)
    expected[others] = (1 - before) * probabilities[others] / probabilities[others].sum()
    if acc == 1.0 and max(probabilities[drafts]) < single:
        assert expected == pytest.approx(probabilities)
    counts = np.bincount(found.numpy(), minlength=6)
    possible = expected > 0
    assert not counts[~possible].any()
    expected = expected[possible] * count
    assert ((counts[possible] - expected) ** 2 / expected).sum() < 21, "chi square, 5, 0.1 %"


# --- in the worker --------------------------------------------------------------------------

PROMPT, NEW = [5, 9, 1, 40, 7], 33
SAMPLED = {"temperature": 1.0, "seed": 11}


def said(known, count):
    return [(token * 7 + place) % VOCABULARY for place, token in enumerate([known[-1]] * count)]


def branches(known, count):
    chance = random.Random(len(known))
    return said(known, count), [chance.randrange(-1, place) for place in range(count)]


def generate(drafter, thresholds, operations="captured", rows=(SAMPLED,), **wanted):
    """(tokens of each row, steps)"""
    platform = {"platform": DelayedPlatform()} if operations == "delayed" else {}
    own = {"operations": operations} if operations != "delayed" else {}
    worker, _ = toy_worker(
        drafter=drafter, sampling=SamplingSettings(thresholds=thresholds), **platform, **own
    )
    driver = Driver(worker)
    for row, kind in enumerate(rows):
        driver.join(row, PROMPT, **kind, **wanted)
    steps = [driver.step(dict.fromkeys(range(len(rows)), len(PROMPT)))]
    while any(len(one["tokens"]) < len(PROMPT) + NEW for one in driver.sequences.values()):
        steps.append(driver.step(dict.fromkeys(range(len(rows)), 1 + drafter.width)))
    return [one["tokens"][len(PROMPT) :] for one in driver.sequences.values()], steps


@cache
def exact(**kind):
    drafter = ScriptedDrafter(3, said)
    return generate(drafter, AcceptThresholds(), rows=(kind,))[0][0]


@pytest.mark.parametrize("operations", ["torch", "eager", "captured", "delayed"])
def test_every_draft_is_accepted_where_nothing_is_too_unlikely(operations) -> None:
    """And what comes out is what was drafted, with its own log-probabilities."""
    wanted = {"logprobs": LogprobOptions(start=0, top=1)}
    (tokens,), steps = generate(ScriptedDrafter(3, said), ALL, operations, **wanted)
    assert all(step.advanced == [4] for step in steps[1:])
    for step in range(1, len(tokens) - 4, 4):
        assert tokens[step : step + 3] == said([tokens[step - 1]], 3)
    scores = [one for step in steps for one in step.logprobs[0]]
    assert [one.token for one in scores] == tokens
    driver = Driver(toy_worker(operations="eager")[0])
    driver.join(0, [*PROMPT, *tokens], logprobs=LogprobOptions(start=0))
    (prompt,) = driver.step({0: len(PROMPT) + len(tokens)}).prompt_logprobs[0]
    truth = np.frombuffer(prompt.logprobs, np.float32)[-len(tokens) :]
    assert [one.logprob for one in scores] == pytest.approx(truth.tolist(), abs=1e-4)


def test_what_cannot_be_drawn_is_not_accepted() -> None:
    def banned(known, count):
        return [3] * count

    kind = {**SAMPLED, "logit_bias": {3: -math.inf}}
    (tokens,), steps = generate(ScriptedDrafter(2, banned), ALL, rows=(kind,))
    assert 3 not in tokens and all(step.advanced == [1] for step in steps[1:])


@pytest.mark.parametrize("drafter", [ScriptedDrafter(3, said), ScriptedTreeDrafter(6, branches)])
def test_rows_do_not_touch_each_other_and_greedy_ones_stay(drafter) -> None:
    kinds = (SAMPLED, {}, {"temperature": 0.8, "seed": 3, "top_k": 20, "frequency_penalty": 0.4})
    lax = AcceptThresholds(single=0.5, acc=0.2)
    alone = [generate(drafter, lax, rows=(kind,))[0][0] for kind in kinds]
    together, steps = generate(drafter, lax, rows=kinds)
    assert [tokens[:NEW] for tokens in together] == [tokens[:NEW] for tokens in alone]
    assert alone[1][:NEW] == exact()[:NEW]
    assert alone[0][:NEW] != exact(**SAMPLED)[:NEW]
    assert not any(step.bad for step in steps)


def test_on_a_device_the_host_waits_for_nothing() -> None:
    lax = SamplingSettings(thresholds=AcceptThresholds(single=0.4, acc=0.05))
    first = delayed_answers(1, 100, DeviceDrafter(3, 1), sampling=lax)
    assert delayed_answers(3, 7, DeviceDrafter(3, 1), sampling=lax) == first
