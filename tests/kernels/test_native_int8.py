"""int8 weights on every instruction set: W8A8 has the torch reference's bits, W8A16 its numbers."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from every_isa import EMULATED, TESTED, USABLE, load_kernels, needs_kernels
from torch import Tensor

from vivace.platforms.cpu.instructions import first_right, wrong_product
from vivace.platforms.cpu.native import Kernels
from vivace.platforms.cpu.native_linear import NativeLinears
from vivace.platforms.ops.linear import linear, pack_linear
from vivace.platforms.ops.stored import Int8Rows, int8_rows

pytestmark = needs_kernels
each_isa = pytest.mark.parametrize("isa", TESTED or [None])
ROWS = [1, 2, 3, 5, 12, 13, 29, 96, 97, 130]
"""around every limit of linear_vnni.inc"""
KERNELS = Path(__file__).parents[2] / "vivace" / "platforms" / "cpu" / "kernels"
LIMIT = re.compile(r"\b(?:FEW_ROWS|ROWS_AS_STORED|TILE_ROWS|MAX_ROWS) = (\d+)")
LIMITS = {
    int(rows) for file in KERNELS.glob("linear*.inc") for rows in LIMIT.findall(file.read_text())
}
"""numbers of rows beyond which a product takes another path, on any instruction set"""


def random_weight(outputs: int, inputs: int, *, int8_activations: bool) -> Int8Rows:
    generator = torch.Generator().manual_seed(outputs + inputs)
    rows = int8_rows(torch.randn(outputs, inputs, generator=generator))
    return rows.with_int8_activations() if int8_activations else rows


def activations(rows: int, inputs: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, inputs, generator=generator) * torch.logspace(-3, 3, rows)[:, None]


@each_isa
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 2), (75, 66), (200, 576), (40, 3000)])
def test_w8a8_has_the_bits_of_the_reference(isa: str, outputs: int, inputs: int) -> None:
    weight = random_weight(outputs, inputs, int8_activations=True)
    linears, bias = NativeLinears(load_kernels(isa)), torch.randn(outputs)
    packed, reference = linears.pack([weight]), pack_linear([weight])
    for rows in ROWS:
        x = activations(rows, inputs)
        assert torch.equal(linears.linear(x, packed, bias), linear(x, reference, bias))


@each_isa
def test_w8a8_rows_know_nothing_of_each_other(isa: str) -> None:
    weight, x = random_weight(200, 96, int8_activations=True), activations(130, 96)
    results = []
    for threads in (1, 2, 3):
        linears = NativeLinears(load_kernels(isa, threads))
        packed = linears.pack([weight])
        results.append(linears.linear(x, packed))
        results.append(torch.cat([linears.linear(part, packed) for part in x.split(7)]))
    assert all(torch.equal(result, results[0]) for result in results)


@each_isa
def test_w8a8_spoils_only_the_row_with_a_nan(isa: str) -> None:
    weight, x = random_weight(40, 96, int8_activations=True), activations(14, 96)
    linears = NativeLinears(load_kernels(isa))
    packed = linears.pack([weight])
    clean = linears.linear(x, packed)
    x[3, 5], x[8, 90], x[9] = torch.nan, torch.inf, 0.0
    found = linears.linear(x, packed)
    assert found[[3, 8]].isnan().all() and found[9].eq(0).all()
    others = [row for row in range(14) if row not in (3, 8, 9)]
    assert torch.equal(found[others], clean[others])
    reference = linear(x, pack_linear([weight]))
    assert torch.equal(found.nan_to_num(), reference.nan_to_num())


@each_isa
def test_several_pieces_are_one_product(isa: str) -> None:
    linears, x = NativeLinears(load_kernels(isa)), activations(5, 96)
    pieces = [random_weight(outputs, 96, int8_activations=True) for outputs in (24, 7, 16)]
    whole = linears.linear(x, linears.pack(pieces))
    parts = [linears.linear(x, linears.pack([piece])) for piece in pieces]
    assert torch.equal(whole, torch.cat(parts, dim=1))


@each_isa
@pytest.mark.parametrize("inputs", [2, 34, 96])
def test_w8a16_is_a_product_with_the_decoded_weight(isa: str, inputs: int) -> None:
    weight, linears = (
        random_weight(75, inputs, int8_activations=False),
        NativeLinears(load_kernels(isa)),
    )
    packed, exact = linears.pack([weight]), weight.dequantize().double()
    for rows in ROWS:
        x = activations(rows, inputs)
        bound = 1e-6 * (x.abs().double() @ exact.abs().T) * inputs**0.5 + 1e-30
        error = linears.linear(x, packed).double() - x.double() @ exact.T
        assert (error.abs() <= bound).all()


def test_too_wide_a_layer_is_refused() -> None:
    weight = Int8Rows(
        torch.zeros(1, (1 << 16) + 4, dtype=torch.int8), torch.ones(1), int8_activations=True
    )
    with pytest.raises(ValueError, match="65536"):
        NativeLinears(load_kernels(None)).pack([weight])


@pytest.mark.skipif(EMULATED not in TESTED, reason="no AVX-512")
def test_bf16_by_vdpbf16ps_is_batch_invariant_and_rounds_activations_only() -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(75, 96, generator=generator).bfloat16()
    x = activations(29, 96)
    linears = NativeLinears(load_kernels(EMULATED))
    packed = linears.pack([weight])
    found = linears.linear(x, packed)
    assert torch.equal(found, torch.cat([linears.linear(part, packed) for part in x.split(4)]))
    exact = x.bfloat16().double() @ weight.double().T
    bound = 3e-6 * (x.abs().double() @ weight.abs().double().T)
    assert ((found - exact).abs() <= bound).all()


@pytest.mark.skipif("avx512bf16" not in USABLE, reason="no AVX-512 with VNNI and BF16")
@pytest.mark.parametrize("rows", [1, 5, 29, 130])
def test_the_emulation_has_the_bits_of_the_instructions(rows: int) -> None:
    x, tiny = activations(rows, 96), activations(rows, 96) * 2.0**-130
    generator = torch.Generator().manual_seed(rows)
    weights = [
        torch.randn(75, 96, generator=generator).bfloat16(),
        random_weight(75, 96, int8_activations=True),
    ]
    native, emulated = (NativeLinears(load_kernels(isa)) for isa in ("avx512bf16", EMULATED))
    for weight in weights:
        for values in (x, tiny):
            found = native.linear(values, native.pack([weight]))
            assert torch.equal(found, emulated.linear(values, emulated.pack([weight])))


@each_isa
def test_every_set_of_this_cpu_passes_the_check_at_start(isa: str) -> None:
    assert wrong_product(load_kernels(isa)) is None


@pytest.mark.parametrize("limit", sorted(LIMITS))
def test_the_check_at_start_takes_each_path(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one kind, products of more rows than `limit` are wrong."""
    right = NativeLinears.linear

    def wrong_beyond(self: NativeLinears, x: Tensor, *rest: Any) -> Tensor:
        return right(self, x, *rest) + (len(x) > limit)

    monkeypatch.setattr(NativeLinears, "linear", wrong_beyond)
    assert wrong_product(load_kernels(None)) is not None


def test_a_wrong_set_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    best = load_kernels(None)
    if best.below is None:
        pytest.skip("this CPU has one instruction set only")
    below = best.below

    def wrong(kernels: Kernels) -> str | None:
        return "W8A8" if kernels is best else wrong_product(kernels)

    with caplog.at_level(logging.WARNING):
        chosen = first_right(best, lambda isa: load_kernels(isa), wrong)
    assert chosen.isa == below
    (line,) = caplog.messages
    assert best.isa in line and below in line and "W8A8" in line


def test_sets_lead_down_to_plain_code() -> None:
    kernels, seen = load_kernels(None), []
    while True:
        seen.append(kernels.isa)
        if kernels.below is None:
            break
        kernels = load_kernels(kernels.below)
    assert seen[-1] in ("portable", "neon")
    assert seen == USABLE[USABLE.index(seen[0]) :]  # what is left out is only there to be forced
