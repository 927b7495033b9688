"""The instruction set the kernels use: the best one that agrees with plain code on this CPU.

A CPU, a hypervisor or an emulator may announce instructions that it does not do right. Wrong
tokens would be worse than slow ones, so a few small products are compared when the kernels open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from torch import Tensor

from vivace.platforms.cpu.native import LIBRARY, Kernels
from vivace.platforms.cpu.native_linear import NativeLinears
from vivace.platforms.ops.linear import linear, pack_linear
from vivace.platforms.ops.stored import Packable, StoredBlocks, int8_rows

log = logging.getLogger(__name__)
OUTPUTS, INPUTS = 40, 96
ROWS = (1, 5, 14, 26)
"""one for each path through the kernels; the last is more than ROWS_AS_STORED of linear_int8.inc"""
EXACT, ROUNDED = 1e-4, 2e-2
"""largest error as a part of the largest number, in float32 and with activations in bfloat16"""


def best_kernels(threads: int, *, pinned: bool = False, library: Path = LIBRARY) -> Kernels:
    """The kernels with the best instruction set whose products are right; says so when one is
    left out. Raises NoKernels, also when none is right."""

    def open_kernels(isa: str | None) -> Kernels:
        return Kernels(threads, isa=isa, pinned=pinned, library=library)

    return first_right(open_kernels(None), open_kernels)


def first_right(
    kernels: Kernels,
    reopened: Callable[[str], Kernels],
    wrong: Callable[[Kernels], str | None] | None = None,
) -> Kernels:
    """`kernels`, or the first set below whose products are right; the last one is not checked."""
    found = wrong or wrong_product
    while (below := kernels.below) is not None and (kind := found(kernels)) is not None:
        log.warning(
            "the instruction set %s gives wrong %s products on this CPU: %s is used, which is "
            "slower; please report this",
            kernels.isa,
            kind,
            below,
        )
        kernels = reopened(below)
    return kernels


def wrong_product(kernels: Kernels) -> str | None:
    """The first kind of weight whose product is not what torch says; None when all agree."""
    linears, generator = NativeLinears(kernels), torch.Generator().manual_seed(7)
    weight = torch.randn(OUTPUTS, INPUTS, generator=generator)
    x = torch.randn(max(ROWS), INPUTS, generator=generator)
    for kind, rows, bound in weight_variants(weight):
        packed, wanted = linears.pack([rows]), linear(x, pack_linear([to_float(rows)]))
        most = bound * float(wanted.abs().max())
        for count in ROWS:
            error = (linears.linear(x[:count], packed) - wanted[:count]).abs().max()
            if not float(error) <= most:
                return kind
    return None


def weight_variants(weight: Tensor) -> list[tuple[str, Packable, float]]:
    """(kind, the same weight in it, how much its product may differ)"""
    int8 = int8_rows(weight)
    return [
        ("float32", weight, EXACT),
        ("bfloat16", weight.bfloat16(), ROUNDED),
        ("int8", int8, EXACT),
        ("W8A8", int8.with_int8_activations(), EXACT),
        ("4-bit", four_bits(weight), EXACT),
    ]


def four_bits(weight: Tensor) -> StoredBlocks:
    """Blocks that are multiplied with activations in int8"""
    blocks = quantize(weight.numpy(), GGMLQuantizationType.Q4_1)
    return StoredBlocks("q4_1", blocks, weight.shape[1]).with_int8_activations()


def to_float(rows: Packable) -> Packable:
    return rows.float() if isinstance(rows, Tensor) else rows
