from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from pairwise import Row, pairwise


@given(st.lists(st.integers(1, 4), min_size=2, max_size=5))
def test_every_pair_occurs(sizes: list[int]) -> None:
    values = {f"s{i}": list(range(size)) for i, size in enumerate(sizes)}
    rows = pairwise(values)
    for (a, va), (b, vb) in itertools.combinations(values.items(), 2):
        seen = {(row[a], row[b]) for row in rows}
        assert seen == set(itertools.product(va, vb))


@settings(max_examples=25)
@given(st.lists(st.integers(2, 4), min_size=3, max_size=5))
def test_every_legal_pair_occurs_and_no_other_row(sizes: list[int]) -> None:
    values = {f"s{i}": list(range(size)) for i, size in enumerate(sizes)}

    def legal(row: Row) -> bool:
        return row["s0"] != row["s1"] and sum(row.values()) % 3 != 0

    rows = pairwise(values, legal=legal)
    assert all(legal(row) for row in rows)
    every = [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]
    for a, b in itertools.combinations(values, 2):
        possible = {(row[a], row[b]) for row in every if legal(row)}
        assert {(row[a], row[b]) for row in rows} == possible
