"""The CPU's ops against the references."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from vivace.platforms.cpu.deterministic import batch_invariant
from vivace.platforms.cpu.linear import MANY_ROWS, PackedLinears
from vivace.platforms.cpu.ops import cpu_ops, neighbors
from vivace.platforms.ops.table import Ops, reference_ops


def packing(*types: torch.dtype) -> Ops:
    """The table of a CPU on which oneDNN multiplies these types only."""
    linears = PackedLinears(types)
    return dataclasses.replace(cpu_ops(), pack_linear=linears.pack, linear=linears.linear)


TABLES = {
    "cpu": cpu_ops(),
    "batch invariant": batch_invariant(cpu_ops()),
    "float32 packed": packing(torch.float32),
    "nothing packed": packing(),
}
REFERENCE = reference_ops()


@pytest.fixture(params=TABLES)
def ops(request):
    return TABLES[request.param]


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16])
def dtype(request):
    torch.manual_seed(0)
    return request.param


def close(found, expected):
    tolerance = 1e-5 if expected.dtype == torch.float32 else 0.03
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_norms(ops, dtype, offset):
    x, weight = torch.randn(5, 24).to(dtype), torch.randn(24).to(dtype)
    expected = REFERENCE.rms_norm(x, weight, 1e-5, offset=offset)
    close(ops.rms_norm(x, weight, 1e-5, offset=offset), expected)
    out = torch.empty_like(x)
    assert ops.rms_norm(x, weight, 1e-5, offset=offset, out=out) is out
    close(out, expected)
    residual = torch.randn(5, 24).to(dtype)
    total = residual + x
    normed, after = ops.add_rms_norm(x, residual, weight, 1e-5, offset=offset)
    assert after is residual
    close(residual, total)
    close(normed, REFERENCE.rms_norm(total, weight, 1e-5, offset=offset))


@pytest.mark.parametrize("rotated", [16, 8])
@pytest.mark.parametrize("joint", [True, False])
def test_rotary(ops, dtype, rotated, joint):
    angles = torch.randn(40, rotated // 2)
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1)
    positions = torch.tensor([3, 39, 0, 7, 7])
    qkv = torch.randn(5, 6, 16).to(dtype)
    q, k, v = qkv.split([3, 2, 1], 1)
    before = v.clone()
    expected = [x.clone() for x in (q, k)]
    REFERENCE.rotary(*expected, positions, cos_sin)
    if not joint:
        q, k = q.clone(), k.clone()
    ops.rotary(q, k, positions, cos_sin)
    close(q, expected[0])
    close(k, expected[1])
    assert torch.equal(v, before)


def test_rotation_turns_halves_by_the_angle():
    q, k = torch.randn(1, 1, 4), torch.randn(1, 1, 4)
    x = q.clone().flatten()
    c, s = torch.tensor([0.3, 0.7]).cos(), torch.tensor([0.3, 0.7]).sin()
    REFERENCE.rotary(q, k, torch.tensor([0]), torch.cat((c, s)).unsqueeze(0))
    expected = torch.cat((x[:2] * c - x[2:] * s, x[2:] * c + x[:2] * s))
    torch.testing.assert_close(q.flatten(), expected)


def test_activations(ops, dtype):
    x = torch.randn(4, 12).to(dtype)
    gate, up = x.chunk(2, -1)
    close(ops.silu_mul(x), torch.nn.functional.silu(gate) * up)
    for tanh in (True, False):
        kind = "tanh" if tanh else "none"
        close(ops.gelu_mul(x, tanh=tanh), torch.nn.functional.gelu(gate, approximate=kind) * up)
    out = torch.empty(4, 6, dtype=dtype)
    assert ops.silu_mul(x, out=out) is out
    capped = ops.soft_cap(torch.tensor([100.0, 0.1]), 3.0)
    close(capped, 3 * torch.tanh(torch.tensor([100.0, 0.1]) / 3))


@pytest.mark.parametrize("tokens", [1, 16, 37, MANY_ROWS])
@pytest.mark.parametrize("biased", [True, False])
def test_linear(ops, dtype, tokens, biased):
    x, weight = torch.randn(tokens, 24).to(dtype), torch.randn(10, 24).to(dtype)
    bias = torch.randn(10).to(dtype) if biased else None
    expected = REFERENCE.linear(x, weight, bias)
    packed = ops.pack_linear([weight])
    close(ops.linear(x, packed, bias), expected)
    out = torch.empty(tokens, 10, dtype=dtype)
    assert ops.linear(x, packed, bias, out=out) is out
    close(out, expected)
    out = torch.empty(tokens, 10, dtype=dtype)
    close(REFERENCE.linear(x, weight, bias, out=out), expected)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_halves_are_widened_part_by_part(half: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    x, weight, bias = torch.randn(MANY_ROWS, 24), torch.randn(10, 24), torch.randn(10)
    expected = REFERENCE.linear(x.to(half).float(), weight.to(half).float(), bias.to(half).float())
    for numbers in (1, 24 * 3, 24 * 10):
        monkeypatch.setattr("vivace.platforms.cpu.linear.WIDENED", numbers)
        found = packing().linear(x.to(half), weight.to(half), bias.to(half))
        last_bit = torch.finfo(half).eps  # sums in another order may be rounded the other way
        torch.testing.assert_close(found.float(), expected, rtol=last_bit, atol=1e-5)


@pytest.mark.parametrize("shape", [(64, 64), (576, 960), (1536, 576)])
def test_batch_invariant_linear_is_bitwise(dtype, shape):
    ops = TABLES["batch invariant"]
    x, weight = torch.randn(50, shape[0]).to(dtype), torch.randn(shape[1], shape[0]).to(dtype)
    packed = ops.pack_linear([weight])
    whole = ops.linear(x, packed)
    for start, end in ((0, 1), (3, 20), (17, 50), (49, 50)):
        assert torch.equal(ops.linear(x[start:end], packed), whole[start:end])


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_batch_invariant_experts_are_bitwise(rows):
    torch.manual_seed(rows)
    ops, x, chosen = TABLES["batch invariant"], torch.randn(40, 96), torch.randint(0, 4, (40, 2))
    weight, bias = ops.pack_grouped([[torch.randn(72, 96)] for _ in range(4)]), torch.randn(4, 72)

    def multiply(some):
        routes = ops.moe_routes(chosen[some], 4)
        product = ops.grouped_linear(ops.moe_permute(x[some], routes), weight, routes, bias)
        return product[routes.places]

    assert torch.equal(multiply(slice(rows)), multiply(slice(40))[:rows])


@pytest.mark.parametrize("size", [64, 576, 4096])
def test_norms_of_a_row_do_not_depend_on_the_others(dtype, size):
    ops = TABLES["batch invariant"]
    x, weight = torch.randn(33, size).to(dtype), torch.randn(size).to(dtype)
    whole = ops.rms_norm(x, weight, 1e-5)
    for start, end in ((0, 1), (3, 20), (32, 33)):
        assert torch.equal(ops.rms_norm(x[start:end], weight, 1e-5), whole[start:end])


def test_embedding(ops, dtype):
    weight = torch.randn(9, 4).to(dtype)
    ids = torch.tensor([8, 0, 8])
    assert torch.equal(ops.embedding(ids, weight), weight[ids])


def test_neighbors_only_when_they_are():
    qkv = torch.randn(3, 7, 4)
    q, k, v = qkv.split([4, 2, 1], 1)
    joined = neighbors(q, k)
    assert joined is not None and torch.equal(joined, qkv[:, :6])
    assert neighbors(q, v) is None
    assert neighbors(k, q) is None
    assert neighbors(q.clone(), k) is None
    assert neighbors(q[:, :, :2], k[:, :, :2]) is None
