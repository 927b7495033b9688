"""Trees of drafts on the host: compared with all ways that there are."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_trees import draft_tree
from torch import Tensor, from_numpy

from vivace.worker.drafters.growing_trees import GrowingTrees

VOCABULARY = 6


def say(row: int, way: tuple[int, ...]) -> np.ndarray:
    """logits[vocabulary] behind these drafts of a row; some are equal"""
    random = np.random.default_rng([row, *way])
    return random.integers(-4, 5, VOCABULARY) * 1.5 + random.random(VOCABULARY)


def best(row: int, way: tuple[int, ...], topk: int) -> tuple[list[float], list[int]]:
    scores = from_numpy(say(row, way)).log_softmax(-1).topk(topk)
    return scores.values.tolist(), scores.indices.tolist()


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    topk=st.integers(1, VOCABULARY),
    steps=st.integers(1, 5),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_the_likeliest_ways_in_as_many_places_as_drafts_are_wanted(
    seed: int, topk: int, steps: int, counts: list[int]
) -> None:
    width, rows = max(counts), range(seed, seed + len(counts))
    first = [best(row, (), topk) for row in rows]
    trees = GrowingTrees(
        np.array(counts), width, *(np.array([one[part] for one in first]) for part in (0, 1))
    )
    standing: list[dict[int, tuple[int, ...]]] = [{} for _ in counts]
    """place -> the way whose last draft stands there"""
    for _ in range(1, steps):
        branches = trees.branch()
        if not len(branches.tokens):
            break
        ways = list[tuple[int, ...]]()
        for row, token, places in zip(
            branches.rows.tolist(), branches.tokens.tolist(), branches.places.tolist(), strict=True
        ):
            assert max(places) < counts[row]
            way = (*(standing[row][place][-1] for place in places[:-1]), token)
            for length, place in enumerate(places[:-1], 1):
                assert standing[row][place] == way[:length]
            ways.append(way)
        for row, way, places in zip(
            branches.rows.tolist(), ways, branches.places.tolist(), strict=True
        ):
            standing[row][places[-1]] = way
        found = [best(rows[row], way, topk) for row, way in zip(branches.rows, ways, strict=True)]
        trees.grow(branches, *(np.array([one[part] for one in found]) for part in (0, 1)))
    tokens, parents = trees.choose()
    for index, row in enumerate(rows):

        def logits(way: tuple[int, ...], row: int = row) -> tuple[Tensor, range]:
            return from_numpy(say(row, way)), range(VOCABULARY)

        wanted = draft_tree(logits, topk, steps, counts[index])
        count = len(wanted.tokens)
        if wanted.certain:
            assert tokens[index, :count].tolist() == wanted.tokens
            assert parents[index, :count].tolist() == wanted.parents
