"""Products by segments of their inputs by the kernels: their slow twins, and the same sums on any
number of ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from blocks import random_layer
from every_isa import FLOATS, TESTED, load_kernels, needs_kernels
from hypothesis import given
from hypothesis import strategies as st
from test_native_int8_activations import random_blocks
from torch import Tensor

from vivace.errors import CannotStart
from vivace.layers.sums import SumTree, divide_sums
from vivace.platforms.blocks import SEGMENTS
from vivace.platforms.cpu.native import Arena
from vivace.platforms.cpu.native_table import native_ops
from vivace.platforms.ops import segments as reference
from vivace.platforms.ops.moe import moe_routes
from vivace.platforms.ops.segments import Segments
from vivace.platforms.ops.stored import Fp8Groups, Packable, int8_rows
from vivace.platforms.ops.table import reference_ops
from vivace.platforms.partial_sums import add_by_tree

INPUTS = 768
KINDS = ("float32", "bfloat16", "i8", "w8a8", "fp8", "q8_0", "q4_0", "q4_k", "q4_1 int8")


def make_matrix(kind: str, seed: int, outputs: int = 40) -> Packable:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, INPUTS, generator=generator) / 16
    match kind:
        case "i8":
            return int8_rows(weight)
        case "w8a8":
            return int8_rows(weight).with_int8_activations()
        case "fp8":
            scales = torch.rand(outputs, INPUTS // 128, generator=generator) + 0.5
            return Fp8Groups(weight.to(torch.float8_e4m3fn), scales)
        case "float32" | "bfloat16":
            return weight.to(getattr(torch, kind))
    if kind.endswith("int8"):
        return random_blocks(kind.split()[0], outputs, INPUTS, seed)
    piece = random_layer(kind, outputs, INPUTS, seed).piece
    assert not isinstance(piece, Tensor)
    return piece


def whole(count: int = SEGMENTS) -> Segments:
    return SumTree(INPUTS, count, 0, 1).segments


def tensor(merges: tuple[int, ...]) -> Tensor:
    return torch.tensor(merges, dtype=torch.int64)


@needs_kernels
@pytest.mark.parametrize("isa", TESTED)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 100])
def test_kernels_follow_their_twin(isa: str, kind: str, rows: int) -> None:
    torch.manual_seed(rows)
    ops, x, bias = native_ops(load_kernels(isa)), torch.randn(rows, INPUTS), torch.randn(40)
    matrix, twin = make_matrix(kind, 1), reference_ops()
    for segments in (whole(), SumTree(INPUTS, SEGMENTS, 1, 3).segments):
        size = len(segments.here) * INPUTS // SEGMENTS
        part = reference.cut_columns(matrix, slice(0, size))
        found = ops.segmented_linear(x[:, :size], ops.pack_segments([part], segments), None, bias)
        assert found.shape == (rows, segments.sums * 40)
        wide = torch.float32 if kind != "bfloat16" else torch.bfloat16
        weight = twin.pack_segments([part], segments)
        wanted = twin.segmented_linear(x[:, :size].to(wide), weight, None, bias.to(wide)).float()
        loose = 5e-2 if kind == "bfloat16" else 1e-3
        torch.testing.assert_close(found, wanted, rtol=loose, atol=loose)


@needs_kernels
@pytest.mark.parametrize("isa", TESTED)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_beside_others_and_on_any_ranks(isa: str, kind: str) -> None:
    torch.manual_seed(3)
    ops, x, matrix = native_ops(load_kernels(isa)), torch.randn(61, INPUTS), make_matrix(kind, 2)
    alone = ops.pack_segments([matrix], whole())
    wanted = torch.cat([ops.segmented_linear(x[row : row + 1], alone) for row in range(61)])
    three = native_ops(load_kernels(isa, 3))
    assert torch.equal(three.segmented_linear(x, three.pack_segments([matrix], whole())), wanted)
    for ranks in (2, 3) if kind in ("q4_k", "fp8") else (2, 3, 4, 6, 8, 12, 24):
        if INPUTS // ranks % reference.columns_per_block(matrix):
            continue
        shares = []
        for rank in range(ranks):
            tree = SumTree(INPUTS, SEGMENTS, rank, ranks)
            columns = slice(rank * INPUTS // ranks, (rank + 1) * INPUTS // ranks)
            weight = ops.pack_segments([reference.cut_columns(matrix, columns)], tree.segments)
            shares.append(ops.segmented_linear(x[:, columns], weight))
        merges = tensor(SumTree(INPUTS, SEGMENTS, 0, ranks).merges)
        assert torch.equal(ops.add_segments(torch.cat(shares, 1), merges), wanted), ranks


@needs_kernels
@pytest.mark.parametrize("isa", FLOATS)
@pytest.mark.parametrize("kind", ["float32", "w8a8", "q4_1 int8"])
def test_experts_have_the_bits_of_single_products(isa: str, kind: str) -> None:
    torch.manual_seed(5)
    ops, segments = native_ops(load_kernels(isa)), SumTree(INPUTS, 12, 0, 1).segments
    matrices = [make_matrix(kind, seed) for seed in range(5)]
    chosen = torch.stack([torch.randperm(4)[:2] for _ in range(30)])  # nobody asks the fifth
    routes, x, bias = moe_routes(chosen, 5), torch.randn(60, INPUTS), torch.randn(5, 40)
    found = ops.segmented_linear(x, ops.pack_segments(matrices, segments), routes, bias)
    for expert, matrix in enumerate(matrices[:4]):
        part = slice(int(routes.starts[expert]), int(routes.starts[expert + 1]))
        weight = ops.pack_segments([matrix], segments)
        assert torch.equal(found[part], ops.segmented_linear(x[part], weight, None, bias[expert]))
    twin = reference_ops()
    wanted = twin.segmented_linear(x, twin.pack_segments(matrices, segments), routes, bias)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("table", ["reference", *TESTED[:1]])
def test_an_update_keeps_the_memory_and_takes_the_numbers(table: str) -> None:
    ops = reference_ops() if table == "reference" else native_ops(load_kernels(table))
    x, segments = torch.randn(3, INPUTS), whole()
    weight = ops.pack_segments([make_matrix("float32", seed) for seed in (1, 2)], segments)
    other = ops.pack_segments([make_matrix("float32", seed) for seed in (3, 4)], segments)
    ops.update_weight(ops.select_grouped(weight, [1]), ops.select_grouped(other, [0]))
    routes = moe_routes(torch.tensor([[0, 1]] * 3), 2)
    pairs = x.repeat(2, 1)
    found = ops.segmented_linear(pairs, weight, routes)
    wanted = [
        ops.segmented_linear(x, ops.pack_segments([make_matrix("float32", seed)], segments))
        for seed in (1, 3)
    ]
    assert torch.equal(found, torch.cat(wanted))


@needs_kernels
@pytest.mark.parametrize("merges", [(0,) * 17 + (17,), (1, 0), (0, 2), (0, -1), (0, 0)])
def test_trees_that_a_stack_has_no_room_for_are_refused(merges: tuple[int, ...]) -> None:
    ops = native_ops(load_kernels(None))
    with pytest.raises(ValueError, match="sums"):
        ops.add_segments(torch.ones(2, 3 * len(merges)), tensor(merges))
    segments = replace(whole(), here=range(len(merges)), merges=merges, count=len(merges))
    if sum(merges) < 0 or segments.sums == 1:
        with pytest.raises(ValueError, match="sums"):
            ops.pack_segments([torch.ones(16, INPUTS)], segments)


@needs_kernels
def test_captured_products_replay_with_fewer_rows() -> None:
    kernels = load_kernels(None, 1)
    ops, merges, segments = (
        native_ops(kernels),
        tensor((0, 1, 1)),
        SumTree(INPUTS, 24, 0, 3).segments,
    )
    matrix = reference.cut_columns(make_matrix("float32", 1), slice(0, INPUTS // 3))
    weight, x = ops.pack_segments([matrix], segments), torch.randn(6, INPUTS // 3)

    def run(x: Tensor) -> Tensor:
        return ops.add_segments(ops.segmented_linear(x, weight), merges)

    with kernels.capture(Arena()) as graph:
        out = run(x)
    for rows in (6, 2):
        x.normal_()
        graph.run(rows)
        assert torch.equal(out[:rows], run(x[:rows]))


@given(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24]), st.data())
def test_a_tree_gives_one_sum_however_ranks_divide_it(count: int, data: st.DataObject) -> None:
    ranks = data.draw(st.sampled_from([n for n in range(1, count + 1) if count % n == 0]))
    leaves = torch.randn(count, 3)
    (wanted,) = add_by_tree(list(leaves), SumTree(count, count, 0, 1).segments.merges)
    shared: list[Tensor] = []
    for rank in range(ranks):
        tree = SumTree(count, count, rank, ranks)
        segments = tree.segments
        mine = add_by_tree([leaves[leaf] for leaf in segments.here], segments.merges)
        assert len(mine) == segments.sums == tree.sums[rank]
        assert ranks & (ranks - 1) or len(mine) == 1, "powers of two exchange one sum each"
        shared += mine
    (found,) = add_by_tree(shared, SumTree(count, count, 0, ranks).merges)
    assert torch.equal(found, wanted)


def test_segments_that_ranks_would_part_are_refused() -> None:
    with pytest.raises(CannotStart, match="deterministic"):
        divide_sums("down_proj", 1024, 1, 0, 16)
    with pytest.raises(ValueError, match="blocks"):
        SumTree(INPUTS, SEGMENTS, 0, 2).segments.edges(256)
    assert SumTree(INPUTS, SEGMENTS, 1, 3).segments.edges(256)[-1] == 256


def test_matrices_of_another_form_are_refused() -> None:
    ops = reference_ops()
    with pytest.raises(ValueError, match="format"):
        ops.pack_segments([make_matrix("q8_0", 1), make_matrix("float32", 1)], whole())
    with pytest.raises(ValueError, match="segments"):
        ops.pack_segments([torch.randn(8, 700)], whole())
