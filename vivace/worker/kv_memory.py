"""Keys and values of all layers in one lazily committed allocation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.attention import AttentionLayer
from vivace.platforms.ops.cache import stored_width
from vivace.protocol.step import Copy

ALIGNMENT = 64
"""bytes: a cache line, and a full vector register"""


class PagedKV:
    """`layers[i]` is [pages + 1, page_size, 2, kv_heads, head_dim], in int8 with room for a scale
    behind each head's numbers; see platforms/attention.py.

    The extra page behind the pool is never written: it pads page lists, so that what a masked
    position reads is finite. Memory is committed by the operating system when first touched.
    """

    def __init__(
        self,
        layers: Sequence[AttentionLayer],
        pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.page_size = page_size
        self.pages = pages
        self.versions = np.zeros(pages + 1, np.int64)
        shapes = {
            layer.index: (layer.kv_heads, stored_width(layer.head_dim, dtype)) for layer in layers
        }
        if sorted(shapes) != list(range(len(shapes))):
            raise ValueError(f"attention layers must be numbered from 0, got {sorted(shapes)}")
        self.layers = [
            _zeros((pages + 1, page_size, 2, *shapes[index]), dtype, device)
            for index in range(len(shapes))
        ]

    @property
    def empty_page(self) -> int:
        """Page id that nobody owns and nobody writes."""
        return self.pages

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy whole pages, all layers; sources are read before any target is written."""
        if not copies:
            return
        for copy in copies:
            if not (0 <= copy.source < self.pages and 0 <= copy.target < self.pages):
                raise ValueError(f"page copy {copy} is outside the pool of {self.pages} pages")
        device = self.layers[0].device
        sources = torch.tensor([copy.source for copy in copies], device=device)
        targets = torch.tensor([copy.target for copy in copies], device=device)
        self.versions[[copy.target for copy in copies]] += 1
        for layer in self.layers:
            layer.index_copy_(0, targets, layer.index_select(0, sources))

    def scrub(self, slots: Tensor) -> None:
        """Forget `slots[n]`: numbers that are not finite must not stay where others may read."""
        self.versions[slots.numpy() // self.page_size] += 1
        for layer in self.layers:
            layer.flatten(0, 1).index_fill_(0, slots, 0)


def bytes_per_token(layers: Sequence[AttentionLayer], dtype: torch.dtype) -> int:
    """KV bytes of one token over all layers, with scales; layers that share an index count once."""
    elements = {
        layer.index: 2 * layer.kv_heads * stored_width(layer.head_dim, dtype) for layer in layers
    }
    return sum(elements.values()) * dtype.itemsize


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    nbytes = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(nbytes + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return torch.from_numpy(raw[start : start + nbytes]).view(dtype).view(shape)
