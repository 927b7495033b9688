"""What layers keep of a sequence, and the memory that a platform lays out for it.

A layer declares parts: per token (keys and values; latents), or per row (the state of a recurrent
layer). Layers that need the same of a sequence are a cache group with pages of their own: 0 has
every position, 1, 2 ... a window each, and the last one, where there are states, states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch
from torch import Tensor

SCALE_BYTES = 4
"""that a head takes more in int8 (ops/cache.py)"""


def stored_width(width: int, dtype: torch.dtype) -> int:
    """Elements of `dtype` that so many numbers of one head take."""
    return width + SCALE_BYTES if dtype == torch.int8 else width


@dataclass(frozen=True, slots=True)
class CachePart:
    """One kind of numbers that a layer keeps."""

    name: str
    shape: tuple[int, ...]
    """of a token; of a row where the layer keeps a state"""
    dtype: torch.dtype | None = None
    """None: the type of the KV memory"""

    def stored_shape(self, dtype: torch.dtype) -> tuple[int, ...]:
        """In memory of `dtype`: in int8 with room for a scale behind the last dimension."""
        if self.dtype is not None:
            return self.shape
        return (*self.shape[:-1], stored_width(self.shape[-1], dtype))

    def nbytes(self, dtype: torch.dtype) -> int:
        return prod(self.stored_shape(dtype)) * (self.dtype or dtype).itemsize


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerCache:
    """What one layer keeps."""

    index: int
    """layers that share it share what they keep"""
    parts: tuple[CachePart, ...]
    window: int | None = None
    """a query at position p sees positions p - window + 1 .. p; None = everything before it"""
    state: bool = False
    """the parts are of a row, and are rewritten by every token"""

    def nbytes(self, dtype: torch.dtype) -> int:
        """of one token, or of one state"""
        return sum(part.nbytes(dtype) for part in self.parts)


class CacheLayer(Protocol):
    """A layer that keeps something (`AttentionLayer`, `LatentLayer`, `RecurrentLayer`)."""

    @property
    def index(self) -> int: ...

    @property
    def cache(self) -> LayerCache: ...


class PageCopy(Protocol):
    """A page of a cache group to copy (`protocol.step.Copy`)."""

    @property
    def source(self) -> int: ...

    @property
    def target(self) -> int: ...

    @property
    def group(self) -> int: ...


class CacheMemory(Protocol):
    """Where layers keep it. Per-token parts are [pages + 1, page_size, ...]: the page behind a
    group's pool is nobody's. What a masked position reads there is finite: only the rows that pad a
    graph of a fixed size write there."""

    page_size: int
    groups: dict[int, int]
    """layer index -> its cache group"""
    lazy: bool
    """memory comes when a page is first touched, and `vacate` gives it back"""

    @property
    def nbytes(self) -> int: ...

    def parts(self, layer: int) -> tuple[Tensor, ...]:
        """Views in the order of `LayerCache.parts`: [pages + 1, page_size, *stored shape], of
        states [slots, *shape]."""
        ...

    def page_views(self, group: int) -> list[Tensor]:
        """The same memory as uint8[pages, bytes of a page], once for each buffer: for whoever moves
        pages and need not know what is in them."""
        ...

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Whole pages, all layers of their group; sources are read before any target is written.
        Raises ValueError for pages outside the pool."""
        ...

    def copy_slots(self, group: int, sources: Tensor, targets: Tensor) -> None:
        """States, [n] int64 each, of all layers."""
        ...

    def copy_tokens(self, group: int, sources: Tensor, targets: Tensor) -> None:
        """What all layers of a group keep of tokens, by their slots, [n] int64 each; sources are
        read before any target is written."""
        ...

    def vacate(self, firsts: Sequence[int]) -> None:
        """Each group's pages from its `first` on hold nothing; they read as zeros or as they
        were."""
        ...

    def zero_slots(self, slots: Tensor, group: int = 0) -> None:
        """Forget tokens [n] int64: numbers that are not finite must not stay where others may read.
        Raises ValueError, and forgets nothing, for slots outside the pool."""
        ...

    def zero_where(self, slots: Tensor, chosen: Tensor, group: int = 0) -> None:
        """Forget those of the tokens [n] int64 of a step that are chosen[n] bool. For devices: it
        does not wait, and checks nothing."""
        ...


def own_windows(
    layers: Sequence[CacheLayer], context: int, *, one_pool: bool = False
) -> tuple[int, ...]:
    """The windows whose layers are cache groups of their own, 1, 2 ...; the first group has all
    others. `one_pool` (--disable-hybrid-swa-memory): all layers keep every position, as those do
    whose window is no shorter than the context."""
    windows = {layer.cache.window for layer in layers if not one_pool}
    return tuple(sorted(one for one in windows if one is not None and one <= context))


def group_number(cache: LayerCache, windows: Sequence[int]) -> int:
    """The cache group of a layer, where groups 1, 2 ... have these windows."""
    if cache.state:
        return 1 + len(windows)
    return 1 + windows.index(cache.window) if cache.window in windows else 0


def bytes_per_token(layers: Sequence[CacheLayer], dtype: torch.dtype) -> int:
    """Of one token over all layers, with scales; layers that share an index count once."""
    return _sum_bytes([layer.cache for layer in layers if not layer.cache.state], dtype)


def bytes_per_state(layers: Sequence[CacheLayer], dtype: torch.dtype) -> int:
    """Of the states of one row; 0: no layer has one."""
    return _sum_bytes([layer.cache for layer in layers if layer.cache.state], dtype)


def group_bytes_per_token(
    layers: Sequence[CacheLayer], windows: Sequence[int], dtype: torch.dtype
) -> list[int]:
    """Of one token in the first cache group and those of windows."""
    return [
        bytes_per_token([one for one in layers if group_number(one.cache, windows) == group], dtype)
        for group in range(1 + len(windows))
    ]


def _sum_bytes(caches: Sequence[LayerCache], dtype: torch.dtype) -> int:
    return sum({cache.index: cache.nbytes(dtype) for cache in caches}.values())
