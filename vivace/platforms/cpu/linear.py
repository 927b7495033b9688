"""Linear layers on the CPU: weights packed once, as oneDNN wants them.

`functional.linear` repacks the weight in every call once there are more than a few rows, which
costs more than the product itself while decoding (measured: 2.0 to 2.9 times the packed product's
time at 4 to 32 rows). For one to three rows it is a plain matrix-vector product and the quicker
one, so small models keep both forms.

oneDNN multiplies 16-bit floats on some CPUs only (bfloat16: AVX-512 or AVX-NE-CONVERT; float16:
AVX512-FP16). On others torch has slow loops for them, and many rows are multiplied in float32, a
part of the weight at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from vivace.platforms.ops import linear as reference
from vivace.platforms.ops.stored import Packable

FEW_ROWS = 3
"""up to so many rows the unpacked weight is quicker"""
BOTH_FORMS_BYTES = 1 << 30
"""of unpacked weights that are kept beside the packed ones; larger models keep one form"""
HALVES = (torch.bfloat16, torch.float16)
MANY_ROWS = 64
"""of 16-bit floats that oneDNN does not multiply: from here on widening the weight pays"""
WIDENED = 1 << 20
"""numbers of such a weight in float32 at once"""


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """One weight; `plain` is None where only the packed form is kept."""

    packed: Tensor
    plain: Tensor | None
    outputs: int


class PackedLinears:
    """The pair `pack_linear` and `linear` of one op table. `packable`: the types that oneDNN
    multiplies; None = ask it."""

    def __init__(self, packable: Collection[torch.dtype] | None = None) -> None:
        self._left = BOTH_FORMS_BYTES
        self._packable = packable_types() if packable is None else packable

    def pack(self, pieces: Sequence[Packable]) -> Any:
        """weights [some of out, in]; types that oneDNN does not take stay as they are."""
        weight = reference.pack_linear(pieces)
        if not isinstance(weight, Tensor) or weight.dtype not in self._packable:
            return weight
        self._left -= weight.nbytes
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        return PackedLinear(packed, weight if self._left >= 0 else None, weight.shape[0])

    def linear(
        self, x: Tensor, weight: Any, bias: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        """x[T, in] -> [T, out]"""
        if not isinstance(weight, PackedLinear):
            if isinstance(weight, Tensor) and weight.dtype in HALVES and x.shape[0] >= MANY_ROWS:
                return widened_linear(x, weight, bias, out)
            return reference.linear(x, weight, bias, out)
        if weight.plain is not None and x.shape[0] <= FEW_ROWS:
            return reference.linear(x, weight.plain, bias, out)
        result = torch.ops.mkldnn._linear_pointwise(x, weight.packed, bias, "none", [], "")
        return result if out is None else out.copy_(result)

    def update(self, kept: Any, new: Any) -> None:
        """`Ops.update_weight`"""
        if not isinstance(kept, PackedLinear):
            reference.update_weight(kept, new)
            return
        if kept.packed.shape != new.packed.shape or kept.packed.dtype != new.packed.dtype:
            raise ValueError(f"{list(kept.packed.shape)} is not {list(new.packed.shape)}")
        kept.packed.copy_(new.packed)
        if kept.plain is not None:
            kept.plain.copy_(new.packed.to_dense())
        self._left += new.packed.numel() * new.packed.element_size()


def widened_linear(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
    """x[T, in] -> [T, out] of 16-bit floats, multiplied and added in float32."""
    outputs, inputs = weight.shape
    result = x.new_empty(x.shape[0], outputs) if out is None else out
    wide, columns = x.float(), max(1, WIDENED // inputs)
    for first in range(0, outputs, columns):
        part = slice(first, first + columns)
        added = None if bias is None else bias[part].float()
        result[:, part] = functional.linear(wide, weight[part].float(), added)
    return result


@cache
def packable_types() -> frozenset[torch.dtype]:
    """What this torch, built with oneDNN, packs and multiplies on this CPU: a product of each type
    is tried, because torch's questions differ from version to version and so do their names."""
    return frozenset(dtype for dtype in (torch.float32, *HALVES) if _packs(dtype))


def _packs(dtype: torch.dtype) -> bool:
    operations = torch.ops.mkldnn
    weight, x = torch.ones(32, 64, dtype=dtype), torch.ones(4, 64, dtype=dtype)
    try:
        packed = operations._reorder_linear_weight(weight, None)
        found = operations._linear_pointwise(x, packed, None, "none", [], "")
    except (AttributeError, RuntimeError):  # no such operation; or oneDNN refuses the type
        return False
    return bool((found == 64).all())
