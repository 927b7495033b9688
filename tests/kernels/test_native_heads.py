"""Linear layers with a weight for each head: every backend against the definition, bit for bit."""

from __future__ import annotations

import pytest
import torch
from every_isa import USABLE, each_isa, load_kernels, needs_kernels
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize

from vivace.platforms.cpu.deterministic import batch_invariant
from vivace.platforms.cpu.native import Arena
from vivace.platforms.cpu.native_table import native_ops
from vivace.platforms.cpu.ops import cpu_ops
from vivace.platforms.ops.stored import StoredBlocks, int8_rows
from vivace.platforms.ops.table import reference_ops

KINDS = ("float32", "bfloat16", "float16", "i8", "w8a8", "q8_0", "q4_k")


def make_heads(kind: str, heads: int, outputs: int, inputs: int):
    """(packable weights, float64[heads, outputs, inputs])"""
    made = [torch.randn(outputs, inputs) / inputs**0.5 for _ in range(heads)]
    if kind.startswith("q"):
        blocks = StoredBlocks(kind, stored_bytes(kind, made[0]), inputs)
        return [blocks] * heads, torch.stack([blocks.dequantize().double()] * heads)
    if kind in ("i8", "w8a8"):
        rows = [int8_rows(weight) for weight in made]
        wide = torch.stack([each.dequantize().double() for each in rows])
        return [each if kind == "i8" else each.with_int8_activations() for each in rows], wide
    kept = [weight.to(getattr(torch, kind)) for weight in made]
    return kept, torch.stack([weight.double() for weight in kept])


def stored_bytes(kind: str, weight: torch.Tensor):
    if kind != "q4_k":
        return quantize(weight.numpy(), GGMLQuantizationType[kind.upper()])
    blocks = torch.randint(0, 255, (len(weight), weight.shape[1] // 256 * 144), dtype=torch.uint8)
    for first in range(0, blocks.shape[1], 144):  # half precision scales near one hundredth
        blocks[:, first + 1] = blocks[:, first + 3] = 0x20
    return blocks.numpy()


def tables():
    named = {"reference": reference_ops(), "torch": cpu_ops()}
    named["deterministic"] = batch_invariant(cpu_ops())
    return named | {isa: native_ops(load_kernels(isa)) for isa in USABLE}


TABLES = tables()


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 5, 30])
def test_each_head_is_multiplied_by_its_own_weight(table, kind, rows):
    torch.manual_seed(rows)
    ops = TABLES[table]
    heads, wide = make_heads(kind, 3, 40, 256)
    x = torch.randn(rows, 3, 300)[..., 20:276]
    weight = ops.pack_heads(heads)
    if table in ("reference", "torch", "deterministic") and kind in ("bfloat16", "float16"):
        x = x.to(getattr(torch, kind))
    found = ops.heads_linear(x, weight)
    assert found.shape == (rows, 3, 40)
    wanted = torch.einsum("thi,hoi->tho", x.double(), wide)
    loose = 3e-2 if kind == "w8a8" else 2e-2 if kind in ("bfloat16", "float16") else 2e-5
    torch.testing.assert_close(found.double(), wanted, rtol=loose, atol=loose)


@needs_kernels
@each_isa
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_the_others_nor_on_threads(isa, kind):
    heads, _ = make_heads(kind, 5, 72, 256)
    x = torch.randn(33, 5, 256)
    one, three = (native_ops(load_kernels(isa, threads)) for threads in (1, 3))
    together = three.heads_linear(x, three.pack_heads(heads))
    weight = one.pack_heads(heads)
    alone = torch.cat([one.heads_linear(x[row : row + 1], weight) for row in range(len(x))])
    assert torch.equal(together, alone)


@needs_kernels
def test_captured_products_replay_with_fewer_rows_and_other_numbers():
    kernels = load_kernels(None, 1)
    ops = native_ops(kernels)
    weight = ops.pack_heads([torch.randn(24, 16) for _ in range(4)])
    x = torch.randn(6, 4, 16)
    with kernels.capture(Arena()) as graph:
        out = ops.heads_linear(x, weight)
    ops.update_weight(weight, ops.pack_heads([torch.randn(24, 16) for _ in range(4)]))
    for rows in (6, 2):
        x.normal_()
        graph.run(rows)
        assert torch.equal(out[:rows], ops.heads_linear(x[:rows], weight))


@pytest.mark.parametrize("table", ["reference", *USABLE[:1]])
def test_an_update_keeps_the_memory_and_takes_the_numbers(table):
    ops, x = TABLES[table], torch.randn(3, 2, 16)
    weight, other = (ops.pack_heads([torch.randn(24, 16) for _ in range(2)]) for _ in range(2))
    ops.update_weight(weight, other)
    assert torch.equal(ops.heads_linear(x, weight), ops.heads_linear(x, other))


@pytest.mark.parametrize("table", TABLES)
def test_another_number_of_heads_is_refused(table):
    ops = TABLES[table]
    weight = ops.pack_heads([torch.randn(16, 16) for _ in range(2)])
    with pytest.raises(ValueError, match="heads"):
        ops.heads_linear(torch.randn(3, 4, 16), weight)


@needs_kernels
def test_heads_of_several_formats_are_refused():
    ops = native_ops(load_kernels(None))
    with pytest.raises(ValueError, match="format"):
        ops.pack_heads([torch.randn(16, 32), int8_rows(torch.randn(16, 32))])
