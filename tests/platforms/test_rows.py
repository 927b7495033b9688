"""Rows: numpy on host memory and torch's operations do the same to the columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from vivace.platforms.cpu.rows import HostRows
from vivace.platforms.ops.rows import TorchRows
from vivace.platforms.rows import ColumnChange, GatherBuffers, RowColumns, Spans
from vivace.platforms.trees import lay_out_branches, lay_out_trees

ROWS, WIDTH, PAGE, POOL, DRAFTS = 5, 40, 4, 60, 3
REACHES = (None, 6)
MOST = WIDTH // PAGE


@dataclass
class Drawn:
    tokens: torch.Tensor
    stays: torch.Tensor
    bad_spans: torch.Tensor


def filled_columns(random: np.random.Generator) -> RowColumns:
    known = random.integers(1, WIDTH - 2 * (DRAFTS + 1), ROWS)
    computed = random.integers(0, known)
    return RowColumns(
        tokens=torch.from_numpy(random.integers(0, 99, (ROWS, WIDTH), np.int32)),
        known=torch.from_numpy(known),
        computed=torch.from_numpy(computed),
        prompt=torch.from_numpy(known.copy()),
        pages=tuple(
            torch.from_numpy(random.integers(0, POOL, (ROWS, MOST), np.int32)) for _ in REACHES
        ),
        page_size=PAGE,
        empty_pages=tuple(POOL for _ in REACHES),
        reaches=REACHES,
        parents=torch.from_numpy(random.integers(-1, DRAFTS, (ROWS, DRAFTS), np.int32)),
    )


def random_spans(random: np.random.Generator, columns: RowColumns, kind: str, flat: bool) -> Spans:
    """`kind`: "decode" has spans of one token, "drafts" some that reach behind what is known."""
    rows = random.permutation(ROWS)[: random.integers(1, ROWS + 1)]
    known, computed = columns.known.numpy()[rows], columns.computed.numpy()[rows]
    left = known - computed
    if kind == "decode":
        counts = np.ones(len(rows), np.int64)
    elif kind == "chunks":
        counts = random.integers(1, left + 1)
    else:
        counts = left + random.integers(0, DRAFTS + 1, len(rows))
    beyond = counts - left
    starts = np.concatenate(([0], counts.cumsum()))
    final = np.flatnonzero(beyond >= 0)
    drafts = np.maximum(beyond, 0)
    each = drafts[final] + 1
    ahead = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
    final = np.repeat(final, each)
    some = bool(drafts.any())
    return Spans(
        rows=rows,
        counts=counts,
        starts=starts,
        before=computed,
        final=final,
        last=starts[final + 1] - 1 - drafts[final] + ahead,
        ahead=ahead if some else None,
        entry_rows=torch.from_numpy(rows[final]),
        positions=torch.zeros(len(final), dtype=torch.int64),
        drafts=drafts if some else None,
        flat=flat or kind == "decode",
    )


def buffers(spans: Spans, trees: bool) -> GatherBuffers:
    total = int(spans.starts[-1])
    laid_out = total if spans.flat else len(spans.rows)

    def new(*shape: int) -> torch.Tensor:
        return torch.full(shape, -7)

    return GatherBuffers(
        input_ids=new(total),
        positions=new(total),
        slots=tuple(new(total) for _ in REACHES),
        tables=tuple(new(laid_out, MOST) for _ in REACHES),
        query_starts=new(laid_out + 1),
        context_lens=new(laid_out),
        logits_indices=new(len(spans.final)),
        paths=tuple(new(total, 1 + DRAFTS) for _ in REACHES) if trees and spans.flat else None,
    )


def tensors(part: object) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for name in part.__dataclass_fields__:  # type: ignore[attr-defined]
        value = getattr(part, name)
        found += [
            one for one in (value if isinstance(value, tuple) else [value]) if one is not None
        ]
    return [one for one in found if isinstance(one, torch.Tensor)]


def assert_same(one: object, other: object) -> None:
    for found, wanted in zip(tensors(one), tensors(other), strict=True):
        assert torch.equal(found, wanted)


@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["decode", "chunks", "drafts"]),
    flat=st.booleans(),
    trees=st.booleans(),
)
def test_both_do_the_same(seed: int, kind: str, flat: bool, trees: bool) -> None:
    columns = [filled_columns(np.random.default_rng(seed)) for _ in range(2)]
    kinds = [HostRows(columns[0]), TorchRows(columns[1])]
    random = np.random.default_rng(seed + 1)
    for _ in range(2):
        state = random.bit_generator.state
        spans = []
        for one in columns:
            random.bit_generator.state = state
            drawn = random_spans(random, one, kind, flat)
            if trees and drawn.flat and drawn.drafts is not None:
                drawn = replace(drawn, trees=lay_out_trees(one, drawn))
            spans.append(drawn)
        out = [buffers(one, trees) for one in spans]
        shapes = [ops.gather(*step) for ops, *step in zip(kinds, spans, out, strict=True)]
        found = spans[0].trees
        if found is not None:  # on a device lengths are upper bounds
            assert (shapes[0].context_lens <= shapes[1].context_lens).all()
            for one in out:
                for table in one.tables:
                    table[:, shapes[0].width :] = 0
        assert_same(out[0], out[1])
        assert torch.equal(spans[0].positions, spans[1].positions)
        fields = ("rows", "starts") if found else ("rows", "starts", "context_lens", "width")
        for name in fields:
            assert np.array_equal(getattr(shapes[0], name), getattr(shapes[1], name))
        draws = random_draws(random, spans[0])
        if found is not None:
            tokens = torch.from_numpy(random.integers(0, 2, len(draws.tokens)))
            draws.stays &= found.accept(tokens, draws.tokens % 2, torch.zeros_like(draws.stays))
        for ops, one in zip(kinds, spans, strict=True):
            ops.record(one, draws)
        for one in columns:
            one.tokens[:, -1] = 0  # where devices write what is refused of a tree
        assert_same(columns[0], columns[1])


@given(seed=st.integers(0, 2**32 - 1), depth=st.integers(1, DRAFTS))
def test_tokens_at_the_ends_of_ways_stand_where_they_are_told(seed: int, depth: int) -> None:
    random = np.random.default_rng(seed)
    columns = [filled_columns(np.random.default_rng(seed)) for _ in range(2)]
    count = int(random.integers(1, 9))
    rows, each = random.integers(0, ROWS, count), np.arange(count)
    places = random.integers(0, 2 * DRAFTS, (count, depth))
    known = columns[0].known.numpy()[rows]
    spans = [
        Spans(
            rows=rows,
            counts=np.ones_like(each),
            starts=np.arange(count + 1),
            before=known + depth - 1,
            final=each,
            last=each,
            ahead=None,
            entry_rows=torch.from_numpy(rows),
            positions=torch.zeros(count, dtype=torch.int64),
            flat=True,
            trees=lay_out_branches(places, DRAFTS, torch.device("cpu")),
            places=places[:, -1],
        )
        for _ in range(2)
    ]
    out = [buffers(one, True) for one in spans]
    for kind, one, step, found in zip((HostRows, TorchRows), columns, spans, out, strict=True):
        layout = kind(one).gather(step, found)
        assert np.array_equal(layout.context_lens, known + depth)
    assert_same(out[0], out[1])
    tokens, pages = columns[0].tokens.numpy(), columns[0].pages[0].numpy()
    at = known[:, None] + places
    slots = pages[rows[:, None], at // PAGE] * PAGE + at % PAGE
    assert out[0].input_ids.tolist() == tokens[rows, at[:, -1]].tolist()
    assert out[0].slots[0].tolist() == slots[:, -1].tolist()
    assert out[0].paths is not None and (out[0].paths[0][:, 0] == depth).all()
    assert np.array_equal(out[0].paths[0][:, 1 : 1 + depth].numpy(), slots)


def random_draws(random: np.random.Generator, spans: Spans) -> Drawn:
    """Some spans are bad; of the others some first tokens stay."""
    bad = random.random(len(spans.rows)) < 0.2
    stays = np.zeros(len(spans.final), np.bool_)
    for span in np.unique(spans.final).tolist():
        entries = np.flatnonzero(spans.final == span)
        if not bad[span]:
            stays[entries[: random.integers(1, len(entries) + 1)]] = True
    return Drawn(
        torch.from_numpy(random.integers(0, 99, len(stays))),
        torch.from_numpy(stays),
        torch.from_numpy(bad),
    )


@given(seed=st.integers(0, 2**32 - 1), kinds=st.lists(st.integers(0, 3), max_size=4))
def test_changes_arrive(seed: int, kinds: list[int]) -> None:
    random = np.random.default_rng(seed)
    columns = [filled_columns(np.random.default_rng(seed)) for _ in range(2)]
    made = []
    for kind in sorted(set(kinds)):
        size = tensors(columns[0])[kind].numel()
        places = random.permutation(size)[: random.integers(0, min(size, 9) + 1)]
        made.append((kind, places, random.integers(0, 50, len(places))))
    for ops, one in zip((HostRows(columns[0]), TorchRows(columns[1])), columns, strict=True):
        ops.scatter([ColumnChange(tensors(one)[kind], places, new) for kind, places, new in made])
    assert_same(columns[0], columns[1])
    for kind, places, new in made:
        assert np.array_equal(tensors(columns[0])[kind].numpy().reshape(-1)[places], new)
