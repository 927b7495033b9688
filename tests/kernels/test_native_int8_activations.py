"""GGUF's blocks multiplied with activations in int8, on every instruction set of this CPU.

The reference rounds activations as the kernels do and multiplies in float64. Sums within a block
are exact, so what is left is the rounding of one sum per block; and a row's bits depend on
nothing but the row.
"""

from __future__ import annotations

import pytest
import torch
from blocks import assert_rows_stand_alone, random_layer
from every_isa import TESTED, load_kernels, needs_kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vivace.platforms.blocks import INT8_ACTIVATION_KINDS
from vivace.platforms.cpu.native import Arena
from vivace.platforms.cpu.native_linear import BLOCKS, NativeLinears
from vivace.platforms.ops.linear import fake_quantize, linear, pack_linear
from vivace.platforms.ops.stored import StoredBlocks

pytestmark = needs_kernels
FUSED = [isa for isa in TESTED if isa != "portable"]
"""with a product and a sum in one rounding"""
each_isa = pytest.mark.parametrize("isa", TESTED or [None])
each_kind = pytest.mark.parametrize("kind", INT8_ACTIVATION_KINDS)
ROWS = [*range(1, 15), 24, 25, 47, 96, 191, 193, 300]


def random_blocks(kind: str, outputs: int, inputs: int, seed: int = 0) -> StoredBlocks:
    piece = random_layer(kind, outputs, inputs, seed).piece
    assert isinstance(piece, StoredBlocks)
    return piece.with_int8_activations()


def linears(isa: str | None, threads: int = 2) -> NativeLinears:
    return NativeLinears(load_kernels(isa, threads))


def assert_product(found: Tensor, x: Tensor, piece: StoredBlocks, bias: Tensor) -> None:
    values, numbers = fake_quantize(x).double(), piece.dequantize().double()
    exact = values @ numbers.T + bias.double()
    sizes = values.abs() @ numbers.abs().T + bias.double().abs()
    # d * q and m may nearly cancel: what is rounded is as large as either
    assert ((found - exact).abs() <= 3e-6 * sizes + 1e-5 * sizes.mean()).all()


@each_isa
@each_kind
def test_every_number_of_rows(kind: str, isa: str) -> None:
    piece, ops = random_blocks(kind, 53, 1280), linears(isa)
    weight, bias, x = ops.pack([piece]), torch.randn(53), torch.randn(300, 1280)
    whole = ops.linear(x, weight, bias)
    assert_product(whole, x, piece, bias)
    assert_rows_stand_alone(lambda part: ops.linear(part, weight, bias), x, whole, ROWS)


@each_isa
@each_kind
@pytest.mark.parametrize("rows", [1, 3, 5, 40])
def test_any_number_of_threads(kind: str, isa: str, rows: int) -> None:
    piece, x = random_blocks(kind, 200, 512), torch.randn(rows, 512)
    found = []
    for threads in (1, 2, 3):
        ops = linears(isa, threads)
        found.append(ops.linear(x, ops.pack([piece])))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@each_kind
def test_instruction_sets_agree_bit_by_bit(kind: str) -> None:
    piece, x = random_blocks(kind, 40, 512), torch.randn(17, 512)
    results = []
    for isa in FUSED:
        ops = linears(isa)
        results.append(ops.linear(x, ops.pack([piece])))
    assert all(torch.equal(result, results[0]) for result in results)


@each_isa
@each_kind
def test_the_largest_sums_are_exact(kind: str, isa: str) -> None:
    """Every number at its largest, with the same sign: 16-bit sums must not saturate."""
    piece, ops = random_blocks(kind, 16, 256), linears(isa)
    data = piece.data.copy().reshape(16, -1, BLOCKS_OF_FILE[kind])
    data[:, :, HEADERS[kind] :] = 0xFF
    data[:, :, : HEADERS[kind]] = data[:1, :1, : HEADERS[kind]]
    if kind == "q6_k":  # its header comes last
        data[:, :, :192], data[:, :, 192:208] = 0xFF, 1
        data[:, :, 208:] = piece.data.reshape(16, -1, 210)[:1, :1, 208:]
    full = StoredBlocks(kind, data.reshape(16, -1), 256).with_int8_activations()
    for sign in (1.0, -1.0):
        x = torch.full((13, 256), sign)
        assert_product(ops.linear(x, ops.pack([full])), x, full, torch.zeros(16))


BLOCKS_OF_FILE = {
    "q4_0": 18,
    "q4_1": 20,
    "q5_0": 22,
    "q5_1": 24,
    "q4_k": 144,
    "q5_k": 176,
    "q6_k": 210,
}
HEADERS = {"q4_0": 2, "q4_1": 4, "q5_0": 2, "q5_1": 4, "q4_k": 16, "q5_k": 16, "q6_k": 0}
"""bytes of scales before the numbers"""


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_shapes_and_strides(data: st.DataObject) -> None:
    """x and the result are columns of wider tensors; nothing beside them is touched."""
    kind, isa = (
        data.draw(st.sampled_from(INT8_ACTIVATION_KINDS)),
        data.draw(st.sampled_from(TESTED)),
    )
    unit = BLOCKS[kind][0]
    rows, outputs = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 70))
    inputs = unit * data.draw(st.integers(1, 2 if unit > 32 else 9))
    before, behind = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5))
    piece, ops = random_blocks(kind, outputs, inputs, seed=rows), linears(isa)
    bias = torch.randn(outputs)
    x = torch.full((rows, before + inputs + behind), torch.nan)
    x[:, before : before + inputs] = torch.randn(rows, inputs)
    x = x[:, before : before + inputs]
    wide = torch.full((rows + 1, before + outputs + behind), 7.0)
    out = wide[:rows, before : before + outputs]
    found = ops.linear(x, ops.pack([piece]), bias, out=out)
    assert found is out
    assert_product(out, x, piece, bias)
    assert (wide[:, :before] == 7).all() and (wide[:, before + outputs :] == 7).all()
    assert (wide[rows] == 7).all()


@each_isa
@pytest.mark.parametrize("rows", [1, 14])
def test_a_nan_spoils_its_row_only(isa: str, rows: int) -> None:
    piece, ops = random_blocks("q4_1", 40, 96), linears(isa)
    weight, x = ops.pack([piece]), torch.randn(14, 96)
    clean = ops.linear(x, weight)
    x[3, 95], x[8, 5], x[9] = torch.nan, -torch.inf, 0.0
    found = torch.cat([ops.linear(part, weight) for part in x.split(rows)])
    assert found[[3, 8]].isnan().all() and found[9].eq(0).all()
    others = [row for row in range(14) if row not in (3, 8, 9)]
    assert torch.equal(found[others], clean[others])


@each_isa
def test_no_rows(isa: str) -> None:
    ops = linears(isa)
    weight = ops.pack([random_blocks("q4_k", 20, 256)])
    assert ops.linear(torch.empty(0, 256), weight).shape == (0, 20)


@each_isa
def test_pieces_of_several_kinds_are_one_layer(isa: str) -> None:
    """As q, k and v of a file may be: also beside one that is multiplied with floats."""
    ops, x = linears(isa), torch.randn(5, 256)
    pieces = [
        random_blocks("q4_k", 40, 256),
        random_blocks("q6_k", 9, 256),
        random_layer("q8_0", 21, 256).piece,
    ]
    whole = ops.linear(x, ops.pack(pieces))
    parts = [ops.linear(x, ops.pack([piece])) for piece in pieces]
    assert torch.equal(whole, torch.cat(parts, 1))


@each_isa
def test_a_captured_product_serves_fewer_rows(isa: str) -> None:
    kernels = load_kernels(isa)
    ops = NativeLinears(kernels)
    weight, x, out = (
        ops.pack([random_blocks("q5_1", 40, 96)]),
        torch.randn(32, 96),
        torch.empty(32, 40),
    )
    wanted = ops.linear(x, weight)
    with kernels.capture(Arena()) as graph:
        ops.linear(x, weight, out=out)
    for rows in (32, 13, 4, 1):
        out.fill_(7)
        graph.run(rows)
        assert torch.equal(out[:rows], wanted[:rows]) and (out[rows:] == 7).all()


@each_kind
def test_the_reference_has_the_same_signature_and_result(kind: str) -> None:
    piece, x, bias = random_blocks(kind, 20, 512), torch.randn(3, 512), torch.randn(20)
    found = linear(x, pack_linear([piece, piece]), bias.repeat(2))
    assert_product(found[:, :20], x, piece, bias)
    assert torch.equal(found[:, :20], found[:, 20:])
    out = torch.empty(3, 20)
    assert linear(x, pack_linear([piece]), bias, out=out) is out


def test_wide_blocks_are_refused() -> None:
    piece = random_layer("q8_0", 4, 64).piece
    assert isinstance(piece, StoredBlocks)
    with pytest.raises(ValueError, match="q8_0"):
        piece.with_int8_activations()
    with pytest.raises(ValueError, match="parts"):
        pack_linear([random_blocks("q4_0", 4, 64), piece])
