"""Weights in float8: products have the bits of those with the decoded weight."""

from __future__ import annotations

import pytest
import torch
from every_isa import each_isa, load_kernels, needs_kernels

from vivace.platforms.cpu.native_table import native_ops
from vivace.platforms.ops.linear import linear, pack_linear
from vivace.platforms.ops.moe import Gate
from vivace.platforms.ops.stored import FP8_GROUP, Fp8Groups

pytestmark = needs_kernels


def groups(outputs: int, inputs: int, seed: int = 0) -> Fp8Groups:
    """Every number that float8 has, subnormal ones and zeros of both signs with them."""
    random = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 256, (outputs, inputs), generator=random).to(torch.uint8)
    bits[(bits & 0x7F) == 0x7F] = 0x80
    scales = torch.rand(outputs, -(-inputs // FP8_GROUP), generator=random) + 0.01
    return Fp8Groups(bits.view(torch.float8_e4m3fn), scales)


@each_isa
@pytest.mark.parametrize("inputs", [16, 112, 128, 144, 1200])
@pytest.mark.parametrize("rows", [1, 4, 30])
def test_a_product_has_the_bits_of_the_decoded_one(isa, inputs, rows):
    ops = native_ops(load_kernels(isa))
    weight, x = groups(37, inputs), torch.randn(rows, inputs)
    found = ops.linear(x, ops.pack_linear([weight]))
    assert torch.equal(found, ops.linear(x, ops.pack_linear([weight.dequantize()])))
    exact = linear(x.double(), pack_linear([weight]).double())
    size = linear(x.double().abs(), pack_linear([weight]).double().abs())
    assert ((found - exact).abs() <= 1e-5 * size).all()


@each_isa
def test_experts_heads_and_neighbors_of_other_types(isa):
    ops, x = native_ops(load_kernels(isa)), torch.randn(9, 144)
    routes = ops.moe_routes(ops.moe_gate(Gate(top=2), torch.randn(9, 4))[1], 4)
    experts, rows = [groups(40, 144, seed) for seed in range(4)], ops.moe_permute(x, routes)
    found, wanted = (
        ops.grouped_linear(rows, ops.pack_grouped(pieces), routes)
        for pieces in ([[e] for e in experts], [[e.dequantize()] for e in experts])
    )
    assert torch.equal(found, wanted)
    of_heads = torch.randn(9, 4, 144)
    assert torch.equal(
        ops.heads_linear(of_heads, ops.pack_heads(experts)),
        ops.heads_linear(of_heads, ops.pack_heads([e.dequantize() for e in experts])),
    )
    plain = torch.randn(20, 144)
    mixed = ops.pack_linear([experts[0], experts[1], plain])
    assert [part.kind for part in mixed.parts] == ["fp8", "f32"]
    alone = [ops.linear(x, ops.pack_linear([piece])) for piece in (*experts[:2], plain)]
    assert torch.equal(ops.linear(x, mixed), torch.cat(alone, 1))


def test_widths_that_no_kernel_takes_are_refused():
    with pytest.raises(ValueError, match="multiple"):
        native_ops(load_kernels(None)).pack_linear([groups(16, 24)])
