"""A checkpoint's linear layers with their outputs in another order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

from vivace.checkpoint.weights import ALL, FLOATS, CheckpointError, Weights
from vivace.platforms.ops.stored import StoredBlocks

OF_ROWS = frozenset(
    "weight bias weight_scale weight_offset deq_scale quant_bias scale_bias".split()
)
"""what formats have for each output of a layer"""
IN_WORDS = frozenset("qweight qzeros scales g_idx".split())
"""what formats have of several rows, or of none: whoever takes them apart asks for `row_order`"""
SCALES_OF_BLOCKS, BLOCK_ROWS = ("weight_scale_inv", "weight_scale"), 128
"""of FP8: one for 128 x 128 weights"""


def halves_first(size: int, unit: int, rotated: int) -> Tensor:
    """The order of `size` rows in heads of `unit` whose last `rotated` rows are pairs of neighbors
    that turn together: of those the first of each pair, then the second. [size] int64"""
    order = torch.arange(size).view(-1, unit)
    pairs = order[:, unit - rotated :].unflatten(1, (-1, 2))
    return torch.cat((order[:, : unit - rotated], pairs[..., 0], pairs[..., 1]), 1).flatten()


def stays_in_blocks(order: Tensor) -> bool:
    places = torch.arange(len(order))
    return torch.equal(order // BLOCK_ROWS, places // BLOCK_ROWS)


class ReorderedRows:
    """`Weights` where the layers named in `orders` have rows in that order: row i is row order[i]
    of the checkpoint. Ranges of rows hold whole heads, and no row leaves its head."""

    def __init__(self, weights: Weights, orders: Mapping[str, Tensor]) -> None:
        self._weights = weights
        self._orders = orders
        self.tied = weights.tied

    def has(self, name: str) -> bool:
        return self._weights.has(name)

    def names(self) -> Iterable[str] | None:
        return self._weights.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._weights.shape(name)

    def dtype(self, name: str) -> torch.dtype | None:
        return self._weights.dtype(name)

    def label(self, name: str) -> str:
        return self._weights.label(name)

    def take(
        self,
        name: str,
        shape: tuple[int, ...],
        rows: slice = ALL,
        columns: slice = ALL,
        *,
        depth: slice = ALL,
        dtypes: Collection[torch.dtype] = FLOATS,
    ) -> Tensor:
        order = self._find_order(name, shape, rows)
        taken = self._weights.take(name, shape, rows, columns, depth=depth, dtypes=dtypes)
        bits = taken if taken.itemsize > 1 else taken.view(torch.uint8)  # torch 2.7 indexes no FP8
        return taken if order is None else bits[order].view(taken.dtype)

    def take_stored(
        self, name: str, shape: tuple[int, ...], rows: slice = ALL, columns: slice = ALL
    ) -> Tensor | StoredBlocks:
        order = self._find_order(name, shape, rows)
        taken = self._weights.take_stored(name, shape, rows, columns)
        if order is None:
            return taken
        return (taken if isinstance(taken, Tensor) else taken.dequantize())[order]

    def row_order(self, layer: str, rows: slice) -> Tensor | None:
        """Of the rows in this range, counted from its first; None: as the checkpoint has them."""
        order = self._orders.get(layer)
        if order is None:
            return None
        first, end, _ = rows.indices(len(order))
        return order[first:end] - first

    def _find_order(self, name: str, shape: tuple[int, ...], rows: slice) -> Tensor | None:
        """Within the range. Raises CheckpointError for a format whose rows are not the layer's."""
        stem, _, suffix = name.rpartition(".")
        order = self._orders.get(stem)
        if order is None or shape in ((), (1,)) or suffix in IN_WORDS:
            return None
        if suffix == "weight" and 2 * shape[0] == len(order):  # two rows in a byte
            return None
        of_blocks = suffix in SCALES_OF_BLOCKS and shape[0] == -(-len(order) // BLOCK_ROWS)
        if of_blocks and stays_in_blocks(order):
            return None
        if suffix not in OF_ROWS or shape[0] != len(order):
            raise CheckpointError(
                f"{self.label(name)}: this layer's outputs are put in another order for rotary "
                "embedding, which this format does not allow; use an unquantized checkpoint"
            )
        return self.row_order(stem, rows)
