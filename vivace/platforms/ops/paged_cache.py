"""Cache memory in torch tensors, for any device and any layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from vivace.platforms.cache import CacheLayer, CachePart, LayerCache, PageCopy, group_number
from vivace.platforms.host import HOST, download, upload
from vivace.platforms.memory import Memory, zeroed_memory

Layout = Callable[[LayerCache], list[tuple[CachePart, ...]]]
"""a layer's parts -> those that lie in one buffer; these are of one shape and type"""


def keep_apart(cache: LayerCache) -> list[tuple[CachePart, ...]]:
    """Every part is a tensor of its own, as NPU kernels want it."""
    return [(part,) for part in cache.parts]


def keep_together(cache: LayerCache) -> list[tuple[CachePart, ...]]:
    """Keys and values of a token are neighbors, [pages, page_size, 2, ...]: one copy stores a
    token, and one copy per page gathers a sequence."""
    first, *others = cache.parts
    same = not cache.state and all(
        (part.shape, part.dtype) == (first.shape, first.dtype) for part in others
    )
    return [cache.parts] if same else keep_apart(cache)


@dataclass(frozen=True)
class CacheBuffer:
    """Memory of one tensor, whose first dimension is pages; of states, slots."""

    tensor: Tensor
    memory: Memory
    page_bytes: int
    group: int
    state: bool


class PagedCache:
    """CacheMemory. The layers of a group have the same pages."""

    def __init__(
        self,
        layers: Sequence[CacheLayer],
        pages: Sequence[int],
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        windows: Sequence[int] = (),
        *,
        slots: int = 0,
        layout: Layout = keep_together,
    ) -> None:
        """`pages`: of each group; `windows`: of the layers in groups 1, 2 ...; `slots`: that states
        have in all, the pages of their group among them."""
        self.page_size = page_size
        self.pages = tuple(pages)
        self.versions = np.zeros(pages[0] + 1, np.int64)
        """[pages of the first group + 1], for backends that keep copies of rows: such a backend
        adds one to the pages its steps write to, this to those it copies to, zeroes or vacates"""
        caches = {layer.index: layer.cache for layer in layers}
        first = min(caches, default=0)  # of a stage of a pipeline
        if sorted(caches) != list(range(first, first + len(caches))):
            raise ValueError(f"layers must be numbered without gaps, got {sorted(caches)}")
        self.groups = {index: group_number(cache, windows) for index, cache in caches.items()}
        self._dtype, self._device, self._slots = dtype, device, slots
        self._buffers: list[CacheBuffer] = []
        self._parts: dict[int, tuple[Tensor, ...]] = {}
        self.layers: dict[int, Tensor] = {}
        """layer index -> [pages + 1, page_size, 2, ...] of those whose parts lie together"""
        for index, cache in sorted(caches.items()):
            self._parts[index] = tuple(
                view for together in layout(cache) for view in self._allocate(cache, together)
            )
        self.lazy = all(buffer.memory.lazy for buffer in self._buffers)

    def _allocate(self, cache: LayerCache, together: tuple[CachePart, ...]) -> list[Tensor]:
        """A buffer of these parts; returns the view of each."""
        group, first = self.groups[cache.index], together[0]
        shape = first.stored_shape(self._dtype)
        many = (len(together),) if len(together) > 1 else ()
        if cache.state:
            total, shape = self._slots, (*many, *shape)
        else:
            total, shape = self.pages[group] + 1, (self.page_size, *many, *shape)
        dtype = first.dtype or self._dtype
        page_bytes = prod(shape) * dtype.itemsize
        memory = zeroed_memory(total * page_bytes, self._device)
        tensor = memory.tensor.view(dtype).view(total, *shape)
        self._buffers.append(CacheBuffer(tensor, memory, page_bytes, group, cache.state))
        if not many:
            return [tensor]
        self.layers[cache.index] = tensor
        return list(tensor.unbind(2))

    @property
    def empty_pages(self) -> tuple[int, ...]:
        """Of each group: the page id that nobody owns."""
        return self.pages

    @property
    def nbytes(self) -> int:
        return sum(buffer.tensor.nbytes for buffer in self._buffers)

    def parts(self, layer: int) -> tuple[Tensor, ...]:
        return self._parts[layer]

    def page_views(self, group: int) -> list[Tensor]:
        return [
            buffer.memory.tensor.view(len(buffer.tensor), buffer.page_bytes)[: self.pages[group]]
            for buffer in self._find_buffers(group)
        ]

    def _find_buffers(self, group: int) -> list[CacheBuffer]:
        return [buffer for buffer in self._buffers if buffer.group == group]

    def copy(self, copies: Sequence[PageCopy]) -> None:
        for copy in copies:
            pages = self.pages[copy.group] if 0 <= copy.group < len(self.pages) else 0
            if not (0 <= copy.source < pages and 0 <= copy.target < pages):
                raise ValueError(f"page copy {copy} is outside the pool of {pages} pages")
        for group in sorted({copy.group for copy in copies}):
            chosen = [copy for copy in copies if copy.group == group]
            targets = np.array([copy.target for copy in chosen], np.int64)
            if group == 0:
                self.versions[targets] += 1
            sources = np.array([copy.source for copy in chosen], np.int64)
            self.copy_slots(group, upload(sources, self._device), upload(targets, self._device))

    def copy_slots(self, group: int, sources: Tensor, targets: Tensor) -> None:
        for buffer in self._find_buffers(group):
            buffer.tensor.index_copy_(0, targets, buffer.tensor.index_select(0, sources))

    def copy_tokens(self, group: int, sources: Tensor, targets: Tensor) -> None:
        if group == 0 and self._device == HOST:
            self.versions[download(targets) // self.page_size] += 1
        for buffer in self._find_buffers(group):
            tokens = buffer.tensor.flatten(0, 1)
            tokens.index_copy_(0, targets, tokens.index_select(0, sources))

    def vacate(self, firsts: Sequence[int]) -> None:
        if firsts:
            self.versions[firsts[0] :] += 1
        for buffer in self._buffers:
            if buffer.group < len(firsts):
                size, end = buffer.page_bytes, self.pages[buffer.group]
                buffer.memory.give_back(firsts[buffer.group] * size, end * size)

    def zero_slots(self, slots: Tensor, group: int = 0) -> None:
        end = self.pages[group] * self.page_size
        places = download(slots)
        if len(places) and not (places.min() >= 0 and places.max() < end):
            # a negative one would be counted from the end, where others have theirs
            raise ValueError(f"slots to zero are outside the pool of {end}: {places[:8].tolist()}")
        if group == 0:
            self.versions[places // self.page_size] += 1
        for buffer in self._find_buffers(group):
            buffer.tensor.flatten(0, 1).index_fill_(0, slots, 0)

    def zero_where(self, slots: Tensor, chosen: Tensor, group: int = 0) -> None:
        places = torch.where(chosen, slots, self.pages[group] * self.page_size)
        for buffer in self._find_buffers(group):
            buffer.tensor.flatten(0, 1).index_fill_(0, places, 0)
