"""Keys and values of all layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.attention import AttentionLayer
from vivace.platforms.memory import zeroed_memory
from vivace.platforms.ops.cache import stored_width
from vivace.protocol.step import Copy


class PagedKV:
    """`layers[i]` is [pages + 1, page_size, 2, kv_heads, head_dim], in int8 with room for a scale
    behind each head's numbers; see platforms/attention.py.

    The extra page behind the pool is never written: it pads page lists, so that what a masked
    position reads is finite. On a CPU memory comes when a page is first touched (`lazy`), and
    `vacate` gives it back.
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
        widths = [heads * width for _, (heads, width) in sorted(shapes.items())]
        self._page_bytes = [2 * page_size * width * dtype.itemsize for width in widths]
        self._memory = [zeroed_memory((pages + 1) * size, device) for size in self._page_bytes]
        self.lazy = all(memory.lazy for memory in self._memory)
        self.layers = [
            memory.tensor.view(dtype).view(pages + 1, page_size, 2, *shapes[index])
            for index, memory in enumerate(self._memory)
        ]

    @property
    def empty_page(self) -> int:
        """Page id that nobody owns and nobody writes."""
        return self.pages

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy whole pages, one at least, all layers; sources are read before any target is
        written."""
        for copy in copies:
            if not (0 <= copy.source < self.pages and 0 <= copy.target < self.pages):
                raise ValueError(f"page copy {copy} is outside the pool of {self.pages} pages")
        device = self.layers[0].device
        sources = torch.tensor([copy.source for copy in copies], device=device)
        targets = torch.tensor([copy.target for copy in copies], device=device)
        self.versions[[copy.target for copy in copies]] += 1
        for layer in self.layers:
            layer.index_copy_(0, targets, layer.index_select(0, sources))

    def vacate(self, first: int) -> None:
        """Give the memory of pages from `first` on back; they read as zeros or as they were."""
        self.versions[first:] += 1
        for memory, size in zip(self._memory, self._page_bytes, strict=True):
            memory.give_back(first * size, self.pages * size)

    def zero_slots(self, slots: Tensor) -> None:
        """Forget `slots[n]`: numbers that are not finite must not stay where others may read.
        ValueError, and nothing is forgotten, when one is outside of the pool: a negative one would
        be counted from the end, where others have theirs."""
        end = self.pages * self.page_size
        if slots.numel() and not (slots.min() >= 0 and slots.max() < end):
            raise ValueError(f"slots to zero are outside the pool of {end}: {slots.tolist()[:8]}")
        self.versions[slots.numpy() // self.page_size] += 1
        for layer in self.layers:
            layer.flatten(0, 1).index_fill_(0, slots, 0)


def bytes_per_token(layers: Sequence[AttentionLayer], dtype: torch.dtype) -> int:
    """KV bytes of one token over all layers, with scales; layers that share an index count once."""
    elements = {
        layer.index: 2 * layer.kv_heads * stored_width(layer.head_dim, dtype) for layer in layers
    }
    return sum(elements.values()) * dtype.itemsize
