"""The CPU as a Platform: native kernels, or torch's own operations where they cannot be used."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vivace.platforms.attention import AttentionBackend
from vivace.platforms.cache import CacheLayer
from vivace.platforms.cpu import facts as cpu
from vivace.platforms.cpu.allocator import keep_freed_blocks, return_freed_blocks
from vivace.platforms.cpu.attention import CpuAttention
from vivace.platforms.cpu.deterministic import BatchInvariantAttention, batch_invariant
from vivace.platforms.cpu.graphs import CpuGraphs
from vivace.platforms.cpu.instructions import best_kernels
from vivace.platforms.cpu.native import Kernels
from vivace.platforms.cpu.ops import cpu_ops
from vivace.platforms.cpu.rows import HostRows
from vivace.platforms.groups import Group, join_by_gloo
from vivace.platforms.host import ReadBack, SharedReadBack
from vivace.platforms.ngrams import NgramIndex, NgramSettings
from vivace.platforms.ops.ngrams import PythonNgramIndex
from vivace.platforms.ops.paged_cache import PagedCache, keep_together
from vivace.platforms.ops.sampling import SamplingOps, TorchSampling
from vivace.platforms.platform import GraphRecorder, Platform, PlatformFacts, PlatformSettings
from vivace.platforms.rendezvous import RankMemory, Rendezvous
from vivace.platforms.rows import RowColumns, RowOps


def cpu_platform(facts: PlatformFacts, settings: PlatformSettings) -> Platform:
    """The side of the CPU that these settings ask for. Raises NoKernels when kernels are asked for
    and were not built."""
    threads = max(1, settings.threads or facts.cores)
    if settings.owns_process:
        keep_freed_blocks()
        # The kernels have threads of their own: two sets would be more than there are cores.
        torch.set_num_threads(1 if settings.kernels else threads)
    if settings.kernels:
        return NativePlatform(facts, best_kernels(threads, pinned=settings.pinned))
    return TorchPlatform(facts, settings.deterministic)


def cpu_cache(
    layers: Sequence[CacheLayer],
    pages: Sequence[int],
    page_size: int,
    dtype: torch.dtype,
    windows: Sequence[int] = (),
    slots: int = 0,
) -> PagedCache:
    """Keys beside values."""
    place, layout = torch.device("cpu"), keep_together
    return PagedCache(layers, pages, page_size, dtype, place, windows, slots=slots, layout=layout)


class NativePlatform:
    """Platform of the native kernels. Every result is independent of the batch, bit for bit."""

    reads_blocks = True

    def __init__(self, facts: PlatformFacts, kernels: Kernels) -> None:
        self.facts = facts
        from vivace.platforms.cpu.native_table import native_ops

        self.threads = kernels.started
        self.ops = native_ops(kernels)
        self.instructions = f"native kernels, {kernels.isa}"
        self._kernels = kernels
        self._memory: RankMemory | None = None
        """where other ranks meet this one"""

    def device(self) -> torch.device:
        return torch.device("cpu")

    def activations(self, matrices: torch.dtype) -> torch.dtype:
        return torch.float32

    def join(self, rendezvous: Rendezvous) -> Group:
        from vivace.platforms.cpu.shared_group import SharedMemoryGroup

        self._memory, place = rendezvous.memory, (rendezvous.rank, rendezvous.size)
        return SharedMemoryGroup(self._kernels, self._memory, *place, sockets=rendezvous.sockets)

    def recorder(self) -> GraphRecorder:
        return CpuGraphs(self._kernels, self._memory)

    cache = staticmethod(cpu_cache)

    def attention_backend(
        self, layers: Sequence[CacheLayer], memory: PagedCache, dtype: torch.dtype, longest: int
    ) -> AttentionBackend:
        from vivace.platforms.cpu.native_attention import NativeAttention

        return NativeAttention(self._kernels, layers, memory, longest)

    def row_ops(self, columns: RowColumns) -> RowOps:
        return HostRows(columns)

    def read_back(self, tensors: Sequence[Tensor]) -> ReadBack:
        return SharedReadBack(tensors)

    def sampling(self) -> SamplingOps:
        from vivace.platforms.cpu.native_ops import NativeSampling

        return NativeSampling(self._kernels)

    def ngram_index(self, settings: NgramSettings) -> NgramIndex:
        from vivace.platforms.cpu.native_ngrams import NativeNgramIndex

        return NativeNgramIndex(settings)

    def available_bytes(self) -> int:
        return cpu.memory()[1]

    def trim(self) -> None:
        self._kernels.trim()
        return_freed_blocks()


class TorchPlatform:
    """Platform of torch's CPU operations."""

    reads_blocks = False

    def __init__(self, facts: PlatformFacts, deterministic: bool) -> None:
        self.facts = facts
        self.threads = torch.get_num_threads()
        self._deterministic = deterministic
        self.instructions = f"torch, {torch.backends.cpu.get_cpu_capability().lower()}"
        self.ops = batch_invariant(cpu_ops()) if deterministic else cpu_ops()

    def device(self) -> torch.device:
        return torch.device("cpu")

    def activations(self, matrices: torch.dtype) -> torch.dtype:
        return matrices

    def join(self, rendezvous: Rendezvous) -> Group:
        return join_by_gloo(rendezvous)

    def recorder(self) -> None:
        return None

    cache = staticmethod(cpu_cache)

    def attention_backend(
        self, layers: Sequence[CacheLayer], memory: PagedCache, dtype: torch.dtype, longest: int
    ) -> AttentionBackend:
        chosen = BatchInvariantAttention if self._deterministic else CpuAttention
        return chosen(layers, memory, dtype)

    def row_ops(self, columns: RowColumns) -> RowOps:
        return HostRows(columns)

    def read_back(self, tensors: Sequence[Tensor]) -> ReadBack:
        return SharedReadBack(tensors)

    def sampling(self) -> SamplingOps:
        return TorchSampling(reads=True)

    def ngram_index(self, settings: NgramSettings) -> NgramIndex:
        return PythonNgramIndex(settings)

    def available_bytes(self) -> int:
        return cpu.memory()[1]

    def trim(self) -> None:
        return_freed_blocks()
