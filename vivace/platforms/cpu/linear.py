"""Linear layers on the CPU: weights packed once, as oneDNN wants them.

`functional.linear` repacks the weight in every call once there are more than a few rows, which
costs more than the product itself while decoding (measured: 2.0 to 2.9 times the packed product's
time at 4 to 32 rows). For one to three rows it is a plain matrix-vector product and the quicker
one, so small models keep both forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vivace.platforms.ops import linear as reference
from vivace.platforms.ops.stored import Int8Rows, StoredBlocks

FEW_ROWS = 3
"""up to so many rows the unpacked weight is quicker"""
BOTH_FORMS_BYTES = 1 << 30
"""of unpacked weights that are kept beside the packed ones; larger models keep one form"""
PACKABLE = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """One weight; `plain` is None where only the packed form is kept."""

    packed: Tensor
    plain: Tensor | None
    outputs: int


class PackedLinears:
    """The pair `pack_linear` and `linear` of one op table."""

    def __init__(self) -> None:
        self._left = BOTH_FORMS_BYTES

    def pack(self, pieces: Sequence[Tensor | StoredBlocks | Int8Rows]) -> Any:
        """weights [some of out, in]; types that oneDNN does not take stay as they are."""
        weight = reference.pack_linear(pieces)
        floats = isinstance(weight, Tensor) and weight.dtype in PACKABLE
        if not floats or not packing_available():
            return weight
        self._left -= weight.nbytes
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        return PackedLinear(packed, weight if self._left >= 0 else None, weight.shape[0])

    def linear(
        self, x: Tensor, weight: Any, bias: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        """x[T, in] -> [T, out]"""
        if not isinstance(weight, PackedLinear):
            return reference.linear(x, weight, bias, out)
        if weight.plain is not None and x.shape[0] <= FEW_ROWS:
            return reference.linear(x, weight.plain, bias, out)
        result = torch.ops.mkldnn._linear_pointwise(x, weight.packed, bias, "none", [], "")
        return result if out is None else out.copy_(result)


def packing_available() -> bool:
    """Whether this torch was built with oneDNN and has its packed linear."""
    namespace = torch.ops.mkldnn
    return torch.backends.mkldnn.is_available() and all(
        hasattr(namespace, name) for name in ("_reorder_linear_weight", "_linear_pointwise")
    )
