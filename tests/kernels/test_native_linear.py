"""Linear layers and embeddings of every weight format, on every instruction set of this CPU.

The numbers that a kernel reads are the gguf package's; a product is a chain of fma in float32, so
its error has a bound that needs no tuning; and a row's bits depend on nothing but the row.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from blocks import assert_rows_stand_alone, random_layer
from every_isa import USABLE, each_isa, load_kernels, needs_kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vivace.platforms.cpu.native import Kernels
from vivace.platforms.cpu.native_linear import BLOCKS, NativeLinears, PackedWeight
from vivace.platforms.ops.stored import StoredBlocks

pytestmark = needs_kernels
each_kind = pytest.mark.parametrize("kind", BLOCKS)
ROWS = [*range(1, 15), 24, 25, 47, 96, 191, 192, 193, 300]
"""around every limit of linear.inc, on both of its paths"""


def linears(isa: str | None, threads: int = 2) -> NativeLinears:
    return NativeLinears(load_kernels(isa, threads))


def multiplied(x: Tensor, kind: str, isa: str) -> Tensor:
    """x as the kernel multiplies it: vdpbf16ps takes activations in bfloat16."""
    return x.bfloat16().float() if (kind, isa) == ("bf16", "avx512bf16") else x


def assert_product(found: Tensor, x: Tensor, numbers: Tensor, bias: Tensor | None = None) -> None:
    """Within what a chain of float32 additions can lose: n roundings of the sum of sizes."""
    x, numbers = x.double(), numbers.double()
    added = torch.zeros(len(numbers)) if bias is None else bias
    exact = x @ numbers.T + added.double()
    sizes = x.abs() @ numbers.abs().T + added.double().abs()
    assert ((found - exact).abs() <= (x.shape[1] + 2) * 2.0**-24 * sizes + 1e-30).all()


@each_isa
@each_kind
@pytest.mark.parametrize(("outputs", "inputs"), [(77, 512), (1, 256), (16, 768)])
def test_numbers_are_those_of_the_gguf_package(kind, isa, outputs, inputs):
    layer, ops = random_layer(kind, outputs, inputs), linears(isa)
    ids = torch.randint(0, outputs, (2 * outputs + 3,))
    found = ops.embedding(ids, ops.pack_embedding(layer.piece))
    assert torch.equal(found, layer.numbers[ids])


@each_isa
@each_kind
def test_ids_outside_the_vocabulary_give_nan(kind, isa):
    layer, ops = random_layer(kind, 20, 256), linears(isa)
    ids = torch.tensor([19, 20, -1, 0, 1 << 40])
    found = ops.embedding(ids, ops.pack_embedding(layer.piece))
    assert torch.equal(found[[0, 3]], layer.numbers[[19, 0]])
    assert found[[1, 2, 4]].isnan().all()


@each_isa
@each_kind
def test_every_number_of_rows(kind, isa):
    """Against float64, and bit by bit the same rows whatever is computed beside them."""
    layer, ops = random_layer(kind, 53, 1280), linears(isa)
    weight, bias, x = ops.pack([layer.piece]), torch.randn(53), torch.randn(300, 1280)
    whole = ops.linear(x, weight, bias)
    assert_product(whole, multiplied(x, kind, isa), layer.numbers, bias)
    assert_rows_stand_alone(lambda part: ops.linear(part, weight, bias), x, whole, ROWS)


@each_isa
@each_kind
@pytest.mark.parametrize("rows", [1, 3, 5, 40])
def test_any_number_of_threads(kind, isa, rows):
    layer, x = random_layer(kind, 200, 512), torch.randn(rows, 512)
    found = []
    for threads in (1, 2, 3):
        ops = linears(isa, threads)
        found.append(ops.linear(x, ops.pack([layer.piece])))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_shapes_and_strides(data):
    """x and the result are columns of wider tensors; nothing beside them is touched."""
    kind, isa = data.draw(st.sampled_from(list(BLOCKS))), data.draw(st.sampled_from(USABLE))
    unit = BLOCKS[kind][0]
    rows, outputs = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 70))
    inputs = unit * data.draw(st.integers(1, 2 if unit > 32 else 9))
    before, behind = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5))
    layer, ops = random_layer(kind, outputs, inputs, seed=rows), linears(isa)
    bias = torch.randn(outputs) if data.draw(st.booleans()) else None
    x = torch.full((rows, before + inputs + behind), torch.nan)
    x[:, before : before + inputs] = torch.randn(rows, inputs)
    x = x[:, before : before + inputs]
    wide = torch.full((rows + 1, before + outputs + behind), 7.0)
    out = wide[:rows, before : before + outputs]
    found = ops.linear(x, ops.pack([layer.piece]), bias, out=out)
    assert found is out
    assert_product(out, multiplied(x, kind, isa), layer.numbers, bias)
    assert (wide[:, :before] == 7).all() and (wide[:, before + outputs :] == 7).all()
    assert (wide[rows] == 7).all()


@each_isa
def test_no_rows(isa):
    layer, ops = random_layer("q8_0", 20, 64), linears(isa)
    weight = ops.pack([layer.piece])
    assert ops.linear(torch.empty(0, 64), weight).shape == (0, 20)
    assert ops.embedding(torch.empty(0, dtype=torch.int64), weight).shape == (0, 64)


@each_isa
def test_pieces_of_several_kinds_are_one_layer(isa):
    """As q, k and v of a GGUF file may be: neighbors of one kind become one product."""
    layers = [random_layer(kind, n, 256) for kind, n in (("q4_k", 40), ("q4_k", 9), ("f16", 21))]
    layers += [random_layer("q6_k", 3, 256)]
    ops = linears(isa)
    weight = ops.pack([layer.piece for layer in layers])
    assert [(part.kind, part.first, part.columns) for part in weight.parts] == [
        ("q4_k", 0, 49),
        ("f16", 49, 21),
        ("q6_k", 70, 3),
    ]
    numbers, bias = torch.cat([layer.numbers for layer in layers]), torch.randn(73)
    for rows in (1, 6, 20):
        x = torch.randn(rows, 256)
        assert_product(ops.linear(x, weight, bias), x, numbers, bias)


def test_a_packed_weight_is_shared_by_embedding_and_head():
    ops = linears(None)
    weight = ops.pack_embedding(torch.randn(40, 32))
    assert ops.pack([weight]) is weight
    assert isinstance(weight, PackedWeight) and weight.nbytes == 48 * 32 * 4


def test_stored_blocks_take_the_memory_of_their_file():
    """Minima and scales of K-blocks take a byte each instead of six bits: four bytes of 148."""
    for kind in ("q4_0", "q4_1", "q8_0", "q6_k", "q4_k"):
        layer = random_layer(kind, 160, 512)
        assert isinstance(layer.piece, StoredBlocks)
        ratio = linears(None).pack([layer.piece]).nbytes / layer.piece.data.nbytes
        assert ratio == (148 / 144 if kind == "q4_k" else 1)


def test_rows_of_a_larger_tensor_are_packed_where_they_lie():
    ops, whole = linears(None), torch.randn(50, 96)
    x = torch.randn(4, 64)
    assert_product(ops.linear(x, ops.pack([whole[10:, 16:80]])), x, whole[10:, 16:80])


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        (torch.ones(4, 6, dtype=torch.int32), "no kernel takes weights of torch.int32"),
        (torch.ones(4, 7), "f32 weights of 7 inputs: no multiple of 2"),
        (torch.ones(8, 4).T, "rows that have no gaps"),
        (StoredBlocks("q2_k", np.zeros((4, 84), np.uint8), 256), "no kernel reads q2_k blocks"),
        (StoredBlocks("q4_k", np.zeros((4, 72), np.uint8), 128), "no multiple of 256"),
    ],
)
def test_what_cannot_be_packed_says_why(piece, message):
    with pytest.raises(ValueError, match=message):
        linears(None).pack([piece])


class Int8:
    """The operations of int8 weights with one float32 scale a column."""

    def __init__(self, kernels: Kernels, weight: Tensor, scales: Tensor) -> None:
        self.outputs, self.inputs = weight.shape
        self._embed = kernels.operation("embed_i8", "q" * 8)
        self._linear = kernels.operation("linear_i8", "q" * 9)
        panels = -(-self.outputs // 16) * (64 + self.inputs * 16)
        self._data = torch.empty(panels, dtype=torch.uint8)
        kernels.operation("pack_i8", "q" * 6)(
            self.outputs, weight.data_ptr(), self.inputs, self._data.data_ptr(), self.inputs,
            scales.data_ptr(),
        )  # fmt: skip

    def embed(self, ids: Tensor) -> Tensor:
        out = torch.empty(len(ids), self.inputs)
        self._embed(
            len(ids), ids.data_ptr(), self._data.data_ptr(), out.data_ptr(), self.outputs,
            self.inputs, 0, self.outputs,
        )  # fmt: skip
        return out

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        out = torch.empty(len(x), self.outputs)
        self._linear(
            len(x), x.data_ptr(), x.stride(0), self._data.data_ptr(),
            0 if bias is None else bias.data_ptr(), out.data_ptr(), self.outputs, self.outputs,
            self.inputs,
        )  # fmt: skip
        return out


@each_isa
def test_int8_weights(isa):
    weight = torch.randint(-128, 128, (53, 1280), dtype=torch.int8)
    scales, bias, x = torch.rand(53) + 0.5, torch.randn(53), torch.randn(300, 1280)
    numbers = weight.float() * scales.unsqueeze(1)
    for threads in (1, 3):
        layer = Int8(load_kernels(isa, threads), weight, scales)
        assert torch.equal(layer.embed(torch.arange(53)), numbers)
        whole = layer.linear(x, bias)
        assert_product(whole, x, numbers, bias)
        for rows in ROWS:
            assert torch.equal(layer.linear(x[7 : 7 + rows], bias), whole[7 : 7 + rows])
