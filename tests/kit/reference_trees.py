"""Trees of drafts by their definition: each way is computed as a whole sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

Way = tuple[int, ...]
NEAR = 1e-4
"""scores that another order of additions may exchange"""


@dataclass(frozen=True)
class ReferenceTree:
    tokens: list[int]
    parents: list[int]
    """the draft that each follows, -1: what is known"""
    certain: bool
    """no scores are so near each other that rounding could choose another tree"""


def draft_tree(
    say: Callable[[Way], tuple[Tensor, Sequence[int]]], topk: int, steps: int, count: int
) -> ReferenceTree:
    """`say(way)`: logits behind these drafts, and the ids that they are of. In each of `steps`
    passes the `topk` likeliest ways go on by `topk` tokens each; of all that were seen the `count`
    likeliest drafts are proposed, best first."""
    seen: list[tuple[float, Way]] = []
    front: list[tuple[float, Way]] = [(0.0, ())]
    certain = True
    for _ in range(steps):
        ways: list[tuple[float, Way]] = []
        for score, way in front:
            logits, ids = say(way)
            scores, best = logits.log_softmax(-1).topk(min(topk + 1, len(logits)))
            certain &= far_apart(scores.tolist())
            found = zip(scores[:topk].tolist(), best[:topk].tolist(), strict=True)
            ways += [(score + one, (*way, ids[place])) for one, place in found]
        seen += ways
        ways.sort(key=lambda one: -one[0])
        certain &= far_apart([score for score, _ in ways[: topk + 1]])
        front = ways[:topk]
    seen.sort(key=lambda one: -one[0])
    certain &= far_apart([score for score, _ in seen[: count + 1]])
    chosen = [way for _, way in seen[:count]]
    places = {way: place for place, way in enumerate(chosen)}
    return ReferenceTree(
        [way[-1] for way in chosen], [places.get(way[:-1], -1) for way in chosen], certain
    )


def far_apart(scores: list[float]) -> bool:
    return all(one - other > NEAR for one, other in pairwise(scores))
