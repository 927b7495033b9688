from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from pairwise import pairwise


@given(st.lists(st.integers(1, 4), min_size=2, max_size=5))
def test_every_pair_occurs(sizes: list[int]) -> None:
    settings = {f"s{i}": list(range(size)) for i, size in enumerate(sizes)}
    rows = pairwise(settings)
    for (a, va), (b, vb) in itertools.combinations(settings.items(), 2):
        seen = {(row[a], row[b]) for row in rows}
        assert seen == set(itertools.product(va, vb))
