"""The fused feed-forward block: the bits of the ops it stands for, on every instruction set."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from blocks import random_layer
from every_isa import load_kernels, needs_kernels
from test_native_int8_activations import TESTED, each_isa, each_kind, random_blocks
from torch import Tensor

from vivace.platforms.cpu.native import Arena, Kernels
from vivace.platforms.cpu.native_linear import fusable
from vivace.platforms.cpu.native_table import native_ops
from vivace.platforms.ops.linear import Operands
from vivace.platforms.ops.table import ACTIVATIONS, Ops, gated_mlp, reference_ops

pytestmark = needs_kernels
ROWS = [*range(1, 15), 25, 40, 193, 300]


def counted(kernels: Kernels, ops: Ops, x: Tensor, up: Operands, down: Operands) -> int:
    """Kernel calls of one block"""
    assert ops.gated_mlp is not None
    with kernels.capture(Arena()) as graph:
        ops.gated_mlp(x, up, down, "silu")
    return graph.calls


def block(
    ops: Ops, kind: str, inner: int = 96, biased: bool = True, hidden: int = 256
) -> tuple[Operands, Operands]:
    inner = inner if not kind.endswith("_k") else 256
    up = [random_blocks(kind, inner, hidden, seed=seed) for seed in (1, 2)]
    down = random_blocks(kind, hidden, inner, seed=3)
    biases = (torch.randn(2 * inner), torch.randn(hidden)) if biased else (None, None)
    return Operands(ops.pack_linear(up), biases[0]), Operands(ops.pack_linear([down]), biases[1])


@each_isa
@each_kind
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_it_has_the_bits_of_its_parts(kind: str, isa: str, activation: str) -> None:
    ops = native_ops(load_kernels(isa))
    up, down = block(ops, kind, biased=activation != "gelu")
    assert fusable(up.weight, down.weight) and ops.gated_mlp is not None
    x = torch.randn(300, 256) * 0.3
    wanted = gated_mlp(ops)(x, up, down, activation)
    for rows in ROWS if activation == "silu" else (1, 7, 40):
        found = ops.gated_mlp(x[:rows], up, down, activation)
        assert torch.equal(found, wanted[:rows]), rows
    for first in (1, 100, 287):
        found = ops.gated_mlp(x[first : first + 13], up, down, activation)
        assert torch.equal(found, wanted[first : first + 13])


@each_isa
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads(isa: str, threads: int) -> None:
    x = torch.randn(40, 256)
    results = []
    for count in (1, threads):
        ops = native_ops(load_kernels(isa, count))
        torch.manual_seed(4)
        up, down = block(ops, "q4_1", inner=480)
        assert ops.gated_mlp is not None
        results.append(ops.gated_mlp(x, up, down, "silu"))
    assert torch.equal(results[0], results[1])


@pytest.mark.parametrize("kind", ["q4_1", "q6_k"])
def test_it_is_near_the_torch_reference(kind: str) -> None:
    """Whose blocks are decoded and whose activations are rounded in the same places."""
    ops, reference = native_ops(load_kernels(None)), reference_ops()
    inner = 256
    pieces = [random_blocks(kind, inner, 256, seed=seed) for seed in (1, 2)]
    last = random_blocks(kind, 256, inner, seed=3)
    x = torch.randn(9, 256) * 0.1

    def run(table: Ops) -> Tensor:
        up = Operands(table.pack_linear(pieces), None)
        down = Operands(table.pack_linear([last]), None)
        return (table.gated_mlp or gated_mlp(table))(x, up, down, "silu")

    found, wanted = run(ops), run(reference)
    # an inner number between two int8 may be rounded either way
    assert (found - wanted).abs().mean() <= 2e-3 * wanted.abs().mean()


@each_isa
def test_a_nan_spoils_its_row_only(isa: str) -> None:
    ops = native_ops(load_kernels(isa))
    up, down = block(ops, "q4_1")
    x = torch.randn(14, 256)
    assert ops.gated_mlp is not None
    clean = ops.gated_mlp(x, up, down, "silu")
    x[3, 255], x[8, 5] = torch.nan, torch.inf
    for rows in (1, 14):
        parts = [ops.gated_mlp(part, up, down, "silu") for part in x.split(rows)]
        found = torch.cat(parts)
        assert found[[3, 8]].isnan().all()
        others = [row for row in range(14) if row not in (3, 8)]
        assert torch.equal(found[others], clean[others])


@each_isa
def test_captured_it_serves_fewer_rows(isa: str) -> None:
    kernels = load_kernels(isa)
    ops = native_ops(kernels)
    up, down = block(ops, "q5_1")
    x = torch.randn(32, 256)
    assert ops.gated_mlp is not None
    wanted = ops.gated_mlp(x, up, down, "silu")
    with kernels.capture(Arena()) as graph:
        out = ops.gated_mlp(x, up, down, "silu")
    for rows in (32, 13, 4, 1):
        out.fill_(7)
        graph.run(rows)
        assert torch.equal(out[:rows], wanted[:rows]) and (out[rows:] == 7).all()


@each_isa
def test_no_rows(isa: str) -> None:
    ops = native_ops(load_kernels(isa))
    up, down = block(ops, "q4_0")
    assert ops.gated_mlp is not None
    assert ops.gated_mlp(torch.empty(0, 256), up, down, "silu").shape == (0, 256)


def test_what_cannot_be_fused_is_put_together() -> None:
    kernels = load_kernels(TESTED[0])
    ops = native_ops(kernels)
    x = torch.randn(5, 256)
    up, down = block(ops, "q4_1")
    assert counted(kernels, ops, x, up, down) == 3, "rows to int8, gate and up, down"
    narrow = random_blocks("q4_1", 256, 96)
    floats = random_layer("q4_1", 256, 96).piece
    gate, other = random_blocks("q4_1", 96, 256), random_blocks("q5_1", 96, 256)
    small = random_blocks("q4_1", 48, 256)
    for ups, last in (
        ([gate, gate], floats),
        ([gate, other], narrow),
        ([random_layer("q8_0", 96, 256).piece] * 2, narrow),
    ):
        operands = Operands(ops.pack_linear(ups), None), Operands(ops.pack_linear([last]), None)
        assert not fusable(operands[0].weight, operands[1].weight)
        assert ops.gated_mlp is not None
        wanted = gated_mlp(ops)(x, *operands, "gelu")
        assert torch.equal(ops.gated_mlp(x, *operands, "gelu"), wanted)
    assert not fusable(ops.pack_linear([small, small]), ops.pack_linear([narrow]))


def test_a_table_without_it_is_put_together() -> None:
    assert reference_ops().gated_mlp is None
    changed = dataclasses.replace(reference_ops(), silu_mul=lambda x, out=None: x[:, :3])
    eye = Operands(torch.eye(6), None), Operands(torch.ones(2, 3), None)
    found = gated_mlp(changed)(torch.ones(1, 6), *eye, "silu")
    assert found.tolist() == [[3.0, 3.0]]
