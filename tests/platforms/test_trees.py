"""Trees of drafts against plain loops."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from vivace.platforms.rows import DraftPaths, RowColumns, Spans
from vivace.platforms.trees import lay_out_trees

WIDTH, ROWS, KNOWN = 6, 4, 9


@st.composite
def cases(draw):
    """(spans' rows, known tokens and drafts of each, the parents column), hostile parents too"""
    rows = draw(st.permutations(range(ROWS)))[: draw(st.integers(1, ROWS))]
    known = [draw(st.integers(1, 3)) for _ in rows]
    drafts = [draw(st.integers(0, WIDTH)) for _ in rows]
    parents = [[draw(st.integers(-3, WIDTH)) for _ in range(WIDTH)] for _ in range(ROWS)]
    return rows, known, drafts, parents


def made_columns(parents):
    empty = torch.zeros(ROWS, dtype=torch.int64)
    return RowColumns(
        tokens=torch.arange(ROWS * 20, dtype=torch.int32).view(ROWS, 20),
        known=empty + KNOWN,
        computed=empty,
        prompt=empty,
        pages=(),
        page_size=4,
        empty_pages=(),
        reaches=(),
        parents=torch.tensor(parents, dtype=torch.int32),
    )


def made_spans(rows, known, drafts):
    counts = np.array(known) + np.array(drafts)
    starts = np.concatenate(([0], counts.cumsum()))
    final = [span for span, count in enumerate(drafts) for _ in range(1 + count)]
    ahead = [place for count in drafts for place in range(1 + count)]
    return Spans(
        rows=np.array(rows),
        counts=counts,
        starts=starts,
        before=KNOWN - np.array(known),
        final=np.array(final),
        last=starts[np.array(final)] + np.array(known)[final] - 1 + ahead,
        ahead=np.array(ahead),
        entry_rows=torch.tensor(rows)[final],
        positions=torch.zeros(len(final), dtype=torch.int64),
        drafts=np.array(drafts),
        flat=True,
    )


def way(parents, draft):
    """The drafts from a row's last known token to this one (-1: that token)."""
    if draft < 0:
        return []
    parent = parents[draft] if -1 <= parents[draft] < draft else draft - 1
    return [*way(parents, parent), draft]


@given(cases())
def test_ways_are_those_of_parents(case):
    rows, known, drafts, parents = case
    columns, spans = made_columns(parents), made_spans(rows, known, drafts)
    trees = lay_out_trees(columns, spans)
    ways = [
        way(parents[row], offset - own)
        for row, own, count in zip(rows, known, drafts, strict=True)
        for offset in range(own + count)
    ]
    ways = [one if one else [] for one in ways]
    skipped = [(one[-1] + 1 - len(one)) if one else 0 for one in ways]
    for paths, wanted in ((trees.tokens, ways), (trees.entries, [ways[t] for t in spans.last])):
        assert paths.depths.tolist() == [len(one) for one in wanted]
        assert [
            found[:depth] for found, depth in zip(paths.drafts.tolist(), paths.depths, strict=True)
        ] == wanted
    assert trees.skipped.tolist() == skipped
    check_histories(trees.entries, columns, spans, [ways[t] for t in spans.last])


def check_histories(paths: DraftPaths, columns: RowColumns, spans: Spans, ways):
    positions = KNOWN + paths.depths
    found, _ = paths.read_tokens(columns.tokens, spans.entry_rows, positions)
    for index, row in enumerate(spans.entry_rows.tolist()):
        tokens = columns.tokens[row].tolist()
        wanted = tokens[:KNOWN] + [tokens[KNOWN + draft] for draft in ways[index]]
        assert found[index, : len(wanted)].tolist() == wanted


@given(cases(), st.integers(0, 2**32 - 1))
def test_one_way_stays_as_far_as_its_drafts_were_drawn(case, seed):
    rows, known, drafts, parents = case
    spans, random = made_spans(rows, known, drafts), np.random.default_rng(seed)
    trees, count = lay_out_trees(made_columns(parents), spans), len(spans.last)
    tokens, drawn = (torch.from_numpy(random.integers(0, 3, count)) for _ in range(2))
    wrong = torch.from_numpy(random.random(count) < 0.1)
    stays = trees.accept(tokens, drawn, wrong)
    places, first = list(range(int(spans.starts[-1]))), 0
    expected = []
    for span, row in enumerate(rows):
        at, depth = -1, 0
        root = int(spans.starts[span]) + known[span] - 1
        while at is not None and not wrong[first + 1 + at]:
            expected.append(first + 1 + at)
            places[root + depth] = root + 1 + at
            following = (
                draft
                for draft in range(drafts[span])
                if (way(parents[row], draft)[-2:-1] or [-1]) == [at]
                and tokens[first + 1 + draft] == drawn[first + 1 + at]
            )
            at, depth = next(following, None), depth + 1
        first += 1 + drafts[span]
    assert stays.nonzero().flatten().tolist() == sorted(expected)
    assert trees.straighten(stays).tolist() == places
