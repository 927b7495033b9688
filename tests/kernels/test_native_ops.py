"""Norms, activations, rotation and maps of the native kernels against their torch references.

The reference gets float64, so the whole difference is the kernel's rounding.
"""

from __future__ import annotations

import pytest
import torch
from every_isa import USABLE, each_isa, load_kernels, needs_kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vivace.platforms.cpu.native_ops import NativeOps
from vivace.platforms.ops import elementwise
from vivace.platforms.ops.elementwise import SwigluOai
from vivace.platforms.ops.linear import quantize_static

pytestmark = needs_kernels
WIDTHS = st.one_of(st.integers(1, 70), st.sampled_from([255, 576, 2047, 2048, 3000]))
EPS = 1e-5
SWIGLU = SwigluOai(1.702, 2.5)
ACTIVATIONS = {
    "silu": (lambda ops: ops.silu_mul, elementwise.silu_mul),
    "gelu": (
        lambda ops: lambda x, **rest: ops.gelu_mul(x, tanh=False, **rest),
        lambda x: elementwise.gelu_mul(x, tanh=False),
    ),
    "gelu_tanh": (
        lambda ops: lambda x, **rest: ops.gelu_mul(x, tanh=True, **rest),
        lambda x: elementwise.gelu_mul(x, tanh=True),
    ),
}
each_activation = pytest.mark.parametrize("name", ACTIVATIONS)


def load_ops(isa: str | None, threads: int = 2) -> NativeOps:
    return NativeOps(load_kernels(isa, threads))


def columns(rows: int, width: int, before: int, behind: int) -> Tensor:
    """float32[rows, width] inside wider rows of NaN, which no result may take up."""
    whole = torch.full((rows, before + width + behind), torch.nan)
    whole[:, before : before + width] = torch.randn(rows, width) * 3
    return whole[:, before : before + width]


def close(found: Tensor, exact: Tensor, relative: float = 2e-6, absolute: float = 1e-6) -> None:
    torch.testing.assert_close(found.double(), exact, rtol=relative, atol=absolute)


@settings(max_examples=60)
@given(
    isa=st.sampled_from(USABLE or [""]),
    rows=st.integers(1, 9),
    width=WIDTHS,
    beside=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    offset=st.sampled_from([0.0, 1.0]),
)
def test_rms_norm(isa, rows, width, beside, offset):
    ops, x, weight = load_ops(isa), columns(rows, width, *beside), torch.randn(width)
    exact = elementwise.rms_norm(x.double(), weight.double(), EPS, offset=offset)
    found = ops.rms_norm(x, weight, EPS, offset=offset)
    assert found.is_contiguous()
    close(found, exact)
    residual = torch.randn(rows, width)
    wanted, summed = elementwise.add_rms_norm(
        x.double(), residual.double(), weight.double(), EPS, offset=offset
    )
    normed, same = ops.add_rms_norm(x, residual, weight, EPS, offset=offset)
    assert same is residual
    close(normed, wanted)
    close(residual, summed)


@settings(max_examples=30)
@given(
    isa=st.sampled_from(USABLE or [""]),
    rows=st.integers(1, 6),
    heads=st.integers(1, 5),
    width=st.integers(1, 130),
    beside=st.integers(0, 2),
)
def test_rms_norm_over_heads(isa, rows, heads, width, beside):
    """Queries and keys of Qwen3 and Gemma 3: heads are part of a wider projection."""
    whole = torch.randn(rows, heads + beside, width)
    weight = torch.randn(width)
    found = load_ops(isa).rms_norm(whole[:, beside:], weight, EPS)
    close(found, elementwise.rms_norm(whole[:, beside:].double(), weight.double(), EPS))


@settings(max_examples=40)
@given(
    isa=st.sampled_from(USABLE or [""]),
    rows=st.integers(1, 9),
    heads=st.tuples(st.integers(1, 5), st.integers(1, 3)),
    half=st.integers(1, 33),
    rest=st.integers(0, 9),
)
def test_rotary(isa, rows, heads, half, rest):
    """In place on parts of one projection; numbers behind the rotated ones stay."""
    width, count = 2 * half + rest, sum(heads)
    angles = torch.outer(torch.arange(50.0), torch.rand(half))
    table = torch.cat((angles.cos(), angles.sin()), -1)
    positions = torch.randint(0, 50, (rows,))
    whole = torch.randn(rows, count + 1, width)
    exact = whole.double()
    elementwise.rotary(exact[:, : heads[0]], exact[:, heads[0] : count], positions, table.double())
    q, k = whole[:, : heads[0]], whole[:, heads[0] : count]
    found = load_ops(isa).rotary(q, k, positions, table)
    assert found[0] is q and found[1] is k
    close(whole, exact)


@each_activation
@settings(max_examples=25)
@given(
    isa=st.sampled_from(USABLE or [""]),
    rows=st.integers(1, 9),
    inner=WIDTHS,
    beside=st.integers(0, 3),
)
def test_gated_activations(name, isa, rows, inner, beside):
    native, reference = ACTIVATIONS[name]
    x = columns(rows, 2 * inner, beside, beside)
    exact = reference(x.double())
    found, into = native(load_ops(isa))(x), torch.empty(rows, inner)
    # 1 + tanh and 1 + erf near -1 have the error of a float32 near 1, in torch too
    sizes = (x[:, :inner].double() * x[:, inner:]).abs()
    assert ((found - exact).abs() <= 1e-6 * sizes + 1e-30).all()
    assert native(load_ops(isa))(x, out=into) is into
    assert torch.equal(into, found)


@each_isa
@each_activation
def test_activations_over_their_whole_range(name, isa):
    """Small numbers keep their digits, large ones neither overflow nor leave a remainder."""
    native, reference = ACTIVATIONS[name]
    sizes = torch.cat((torch.logspace(-30, 30, 997), torch.linspace(0.1, 120, 997)))
    gate = torch.cat((sizes, -sizes))
    x = torch.stack((gate, torch.ones_like(gate)), 1)
    close(native(load_ops(isa))(x), reference(x.double()), relative=3e-6, absolute=1e-6)
    tiny = x[gate.abs() < 1e-3]
    close(native(load_ops(isa))(tiny), reference(tiny.double()), absolute=0.0)


@settings(max_examples=30)
@given(
    isa=st.sampled_from(USABLE or [""]),
    rows=st.integers(1, 9),
    inner=WIDTHS,
    limit=st.sampled_from([0.5, 2.5, 7.0]),
)
def test_swigluoai(isa, rows, inner, limit):
    x, activation = columns(rows, 2 * inner, 1, 2), SwigluOai(1.702, limit)
    found = load_ops(isa).swigluoai_mul(x, activation)
    gate, up = x.double().chunk(2, -1)
    exact = elementwise.swigluoai_mul(x.double(), activation)
    sizes = gate.abs() * (1 + up.abs().clamp(max=limit))
    assert ((found - exact).abs() <= 1e-6 * sizes + 1e-30).all()


@each_isa
def test_swigluoai_at_its_limits(isa):
    at = torch.tensor([-1e30, -300.0, -2.5, 0.0, 2.5, 3.0, 1e30, torch.inf])
    x = torch.cartesian_prod(at, torch.cat((at, -at)))
    found, exact = (
        run(x, SWIGLU) for run in (load_ops(isa).swigluoai_mul, elementwise.swigluoai_mul)
    )
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-6)
    for place in ([torch.nan, 1.0], [1.0, torch.nan]):
        assert load_ops(isa).swigluoai_mul(torch.tensor([place]), SWIGLU).isnan().all()


@settings(max_examples=30)
@given(isa=st.sampled_from(USABLE or [""]), rows=st.integers(1, 9), width=WIDTHS)
def test_maps_in_place(isa, rows, width):
    ops, x = load_ops(isa), torch.randn(rows, width) * 40
    scaled, capped = x.clone(), x.clone()
    assert ops.scale(scaled, 1.7) is scaled
    assert torch.equal(scaled, x * 1.7)
    assert ops.soft_cap(capped, 30.0) is capped
    close(capped, elementwise.soft_cap(x.double(), 30.0), relative=3e-6)


@settings(max_examples=30)
@given(isa=st.sampled_from(USABLE or [""]), rows=st.integers(1, 9), width=WIDTHS)
def test_static_int8_has_the_bits_of_its_reference(isa, rows, width):
    x = torch.randn(rows, width + 5)[:, :width] * 40
    x[0, 0] = torch.nan
    x[-1, -1] = -torch.inf
    found = load_ops(isa).quantize_static(x, 0.37, -11.0)
    assert torch.equal(found.nan_to_num(500), quantize_static(x, 0.37, -11.0).nan_to_num(500))


@settings(max_examples=20)
@given(isa=st.sampled_from(USABLE or [""]), rows=st.integers(1, 9), width=WIDTHS)
def test_a_bias_is_added_in_place(isa, rows, width):
    x, bias = torch.randn(rows, 2, width), torch.randn(width)
    wanted = x + bias
    assert load_ops(isa).add_bias(x, bias) is x
    assert torch.equal(x, wanted)


@each_isa
def test_soft_cap_keeps_the_digits_of_small_numbers(isa):
    x = torch.cat((torch.logspace(-30, 3, 999), -torch.logspace(-30, 3, 999))).unsqueeze(0)
    found = load_ops(isa).soft_cap(x.clone(), 2.5)
    close(found, elementwise.soft_cap(x.double(), 2.5), relative=3e-6, absolute=0.0)
    assert (found.abs() <= 2.5).all()


@each_isa
def test_bad_numbers_stay_bad(isa):
    """Whoever looks for NaN at the end of a step must find what went wrong before."""
    ops, weight = load_ops(isa), torch.ones(40)
    for at in (0, 15, 17, 39):
        for bad in (torch.nan, -torch.nan, torch.inf):
            x = torch.randn(3, 40)
            x[1, at] = bad
            good = [0, 2]
            normed = ops.rms_norm(x, weight, EPS)
            assert not normed[1].isfinite().all() and normed[good].isfinite().all()
            residual = torch.randn(3, 40)
            ops.add_rms_norm(x, residual, weight, EPS)
            assert not residual[1, at].isfinite() and residual[good].isfinite().all()
            for native, _ in ACTIVATIONS.values():
                found = native(ops)(x.repeat(1, 2))
                assert not found[1, at].isfinite() and found[good].isfinite().all()
        x = torch.randn(3, 40)
        x[1, at] = torch.nan
        capped = ops.soft_cap(x.clone(), 5.0)
        assert capped[1, at].isnan() and capped.isnan().sum() == 1


def everything(ops: NativeOps, x: Tensor, first: int, last: int) -> list[Tensor]:
    """Every op over rows first..last of x[T, 192]."""
    x = x[first:last].clone()
    weight, positions = torch.linspace(0.5, 1.5, 192), torch.arange(first, last)
    angles = torch.outer(torch.arange(400.0), torch.linspace(0.1, 1, 12))
    table, heads = torch.cat((angles.cos(), angles.sin()), -1), x.clone().view(-1, 6, 32)
    results = [
        ops.rms_norm(x, weight, EPS),
        ops.rms_norm(x.view(-1, 6, 32), weight[:32], EPS, offset=1.0),
        *ops.add_rms_norm(x, x.clone() * 0.3, weight, EPS),
        *ops.rotary(heads[:, :4], heads[:, 4:], positions, table),
        ops.silu_mul(x),
        ops.gelu_mul(x, tanh=True),
        ops.gelu_mul(x, tanh=False),
        ops.swigluoai_mul(x, SWIGLU),
        ops.scale_positions(x.clone().view(-1, 6, 32), positions, torch.linspace(1, 3, 400)),
        ops.scale(x.clone(), 0.37),
        ops.soft_cap(x.clone(), 3.0),
    ]
    return [result.clone() for result in results]


@each_isa
def test_rows_do_not_depend_on_each_other_or_on_threads(isa):
    x = torch.randn(300, 192)
    whole = everything(load_ops(isa, 1), x, 0, 300)
    for threads in (1, 2, 3):
        for first, last in ((0, 300), (0, 1), (7, 8), (3, 6), (5, 22), (100, 299)):
            part = everything(load_ops(isa, threads), x, first, last)
            for found, expected in zip(part, whole, strict=True):
                assert torch.equal(found, expected[first:last])


@each_isa
def test_tokens_are_scaled_by_their_positions(isa):
    whole, factors = torch.randn(5, 4, 24), torch.randn(50)
    positions = torch.randint(0, 50, (5,))
    wanted = elementwise.scale_positions(whole.clone()[:, 1:3], positions, factors)
    before, part = whole.clone(), whole[:, 1:3]
    assert load_ops(isa).scale_positions(part, positions, factors) is part
    assert torch.equal(part, wanted) and torch.equal(whole[:, [0, 3]], before[:, [0, 3]])
    with pytest.raises(ValueError, match="positions"):
        load_ops(isa).scale_positions(part, positions + 50, factors)


@each_isa
def test_no_rows(isa):
    for result in everything(load_ops(isa), torch.randn(4, 192), 2, 2):
        assert result.shape[0] == 0
