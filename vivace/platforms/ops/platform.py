"""The reference Platform: every part by torch, on any device torch knows.

Nothing of it is fast. It is what other platforms are compared with, and what shows that the worker
needs of a device no more than the protocols say.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vivace.platforms.attention import AttentionBackend
from vivace.platforms.cache import CacheLayer
from vivace.platforms.groups import Group, join_by_gloo
from vivace.platforms.host import HOST, CopiedReadBack, ReadBack, SharedReadBack
from vivace.platforms.ngrams import NgramIndex, NgramSettings
from vivace.platforms.ops.attention import ReferenceAttention
from vivace.platforms.ops.ngrams import PythonNgramIndex
from vivace.platforms.ops.paged_cache import PagedCache, keep_apart
from vivace.platforms.ops.rows import TorchRows
from vivace.platforms.ops.sampling import SamplingOps, TorchSampling
from vivace.platforms.ops.table import reference_ops
from vivace.platforms.platform import PlatformFacts
from vivace.platforms.rendezvous import Rendezvous
from vivace.platforms.rows import RowColumns, RowOps


class ReferencePlatform:
    """Platform by torch's operations on `device`."""

    threads = 1
    reads_blocks = False

    def __init__(self, facts: PlatformFacts, device: torch.device) -> None:
        self.facts = facts
        self.ops = reference_ops()
        self.instructions = f"torch's references, {device}"
        self._device = device

    def device(self) -> torch.device:
        return self._device

    def activations(self, matrices: torch.dtype) -> torch.dtype:
        return matrices

    def join(self, rendezvous: Rendezvous) -> Group:
        return join_by_gloo(rendezvous)

    def recorder(self) -> None:
        return None

    def cache(
        self,
        layers: Sequence[CacheLayer],
        pages: Sequence[int],
        page_size: int,
        dtype: torch.dtype,
        windows: Sequence[int] = (),
        slots: int = 0,
    ) -> PagedCache:
        device, layout = self.device(), keep_apart
        return PagedCache(
            layers, pages, page_size, dtype, device, windows, slots=slots, layout=layout
        )

    def attention_backend(
        self, layers: Sequence[CacheLayer], memory: PagedCache, dtype: torch.dtype, longest: int
    ) -> AttentionBackend:
        return ReferenceAttention(layers, memory, dtype)

    def row_ops(self, columns: RowColumns) -> RowOps:
        return TorchRows(columns)

    def read_back(self, tensors: Sequence[Tensor]) -> ReadBack:
        return SharedReadBack(tensors) if self._device == HOST else CopiedReadBack(tensors)

    def sampling(self) -> SamplingOps:
        return TorchSampling()

    def ngram_index(self, settings: NgramSettings) -> NgramIndex:
        return PythonNgramIndex(settings)

    def available_bytes(self) -> int:
        return self.facts.available_bytes

    def trim(self) -> None:
        """Nothing is kept."""
