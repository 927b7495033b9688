"""Keys and values of all layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.attention import AttentionLayer
from vivace.platforms.host import download
from vivace.platforms.memory import zeroed_memory
from vivace.platforms.ops.cache import stored_width
from vivace.protocol.step import Copy


class PagedKV:
    """`layers[i]` is [pages + 1, page_size, 2, kv_heads, head_dim], in int8 with room for a scale
    behind each head's numbers; see platforms/attention.py.

    Layers of one cache group have the same pages. The extra page behind a group's pool is never
    written: it pads page lists, so that what a masked position reads is finite. On a CPU memory
    comes when a page is first touched (`lazy`), and `vacate` gives it back.
    """

    def __init__(
        self,
        layers: Sequence[AttentionLayer],
        pages: Sequence[int],
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        windows: Sequence[int] = (),
    ) -> None:
        """`pages`: of each group; `windows`: of the layers in groups 1, 2 ..."""
        self.page_size = page_size
        self.pages = tuple(pages)
        self.versions = np.zeros(pages[0] + 1, np.int64)
        shapes = {
            layer.index: (layer.kv_heads, stored_width(layer.head_dim, dtype)) for layer in layers
        }
        if sorted(shapes) != list(range(len(shapes))):
            raise ValueError(f"attention layers must be numbered from 0, got {sorted(shapes)}")
        groups = {layer.index: group_number(layer, windows) for layer in layers}
        self.groups = [groups[index] for index in sorted(groups)]
        totals = [pages[group] + 1 for group in self.groups]
        widths = [heads * width for _, (heads, width) in sorted(shapes.items())]
        self._page_bytes = [2 * page_size * width * dtype.itemsize for width in widths]
        self._memory = [
            zeroed_memory(total * size, device)
            for total, size in zip(totals, self._page_bytes, strict=True)
        ]
        self.lazy = all(memory.lazy for memory in self._memory)
        self.layers = [
            memory.tensor.view(dtype).view(totals[index], page_size, 2, *shapes[index])
            for index, memory in enumerate(self._memory)
        ]

    @property
    def empty_pages(self) -> tuple[int, ...]:
        """Of each group: the page id that nobody owns and nobody writes."""
        return self.pages

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def _find_layers(self, group: int) -> list[Tensor]:
        return [layer for layer, own in zip(self.layers, self.groups, strict=True) if own == group]

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy whole pages, all layers of their group; sources are read before any target is
        written."""
        for copy in copies:
            pages = self.pages[copy.group] if 0 <= copy.group < len(self.pages) else 0
            if not (0 <= copy.source < pages and 0 <= copy.target < pages):
                raise ValueError(f"page copy {copy} is outside the pool of {pages} pages")
        for group in sorted({copy.group for copy in copies}):
            chosen = [copy for copy in copies if copy.group == group]
            if group == 0:
                self.versions[[copy.target for copy in chosen]] += 1
            for layer in self._find_layers(group):
                sources = torch.tensor([copy.source for copy in chosen], device=layer.device)
                targets = torch.tensor([copy.target for copy in chosen], device=layer.device)
                layer.index_copy_(0, targets, layer.index_select(0, sources))

    def vacate(self, firsts: Sequence[int]) -> None:
        """Give the memory of each group's pages from its `first` on back; they read as zeros or as
        they were."""
        if firsts:
            self.versions[firsts[0] :] += 1
        for memory, size, group in zip(self._memory, self._page_bytes, self.groups, strict=True):
            if group < len(firsts):
                memory.give_back(firsts[group] * size, self.pages[group] * size)

    def zero_slots(self, slots: Tensor, group: int = 0) -> None:
        """Forget `slots[n]` of a group: numbers that are not finite must not stay where others may
        read. ValueError, and nothing is forgotten, when one is outside of the pool: a negative one
        would be counted from the end, where others have theirs."""
        end = self.pages[group] * self.page_size
        if slots.numel() and not (slots.min() >= 0 and slots.max() < end):
            raise ValueError(f"slots to zero are outside the pool of {end}: {slots.tolist()[:8]}")
        if group == 0:
            self.versions[download(slots) // self.page_size] += 1
        for layer in self._find_layers(group):
            layer.flatten(0, 1).index_fill_(0, slots, 0)


def bytes_per_token(layers: Sequence[AttentionLayer], dtype: torch.dtype) -> int:
    """KV bytes of one token over all layers, with scales; layers that share an index count once."""
    elements = {
        layer.index: 2 * layer.kv_heads * stored_width(layer.head_dim, dtype) for layer in layers
    }
    return sum(elements.values()) * dtype.itemsize


def own_windows(
    layers: Sequence[AttentionLayer], context: int, *, one_pool: bool = False
) -> tuple[int, ...]:
    """The windows whose layers are cache groups of their own, 1, 2 ...; the first group has all
    others. `one_pool` (--disable-hybrid-swa-memory): all layers keep every position, as those do
    whose window is no shorter than the context."""
    windows = {layer.window for layer in layers if not one_pool}
    return tuple(sorted(one for one in windows if one is not None and one <= context))


def group_number(layer: AttentionLayer, windows: Sequence[int]) -> int:
    """The cache group of a layer, where groups 1, 2 ... have these windows."""
    return 1 + windows.index(layer.window) if layer.window in windows else 0


def group_bytes_per_token(
    layers: Sequence[AttentionLayer], windows: Sequence[int], dtype: torch.dtype
) -> list[int]:
    """KV bytes of one token in each cache group."""
    return [
        bytes_per_token([one for one in layers if group_number(one, windows) == group], dtype)
        for group in range(1 + len(windows))
    ]
