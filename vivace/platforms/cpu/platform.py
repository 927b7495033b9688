"""The CPU as a Platform."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vivace.platforms.attention import AttentionBackend, AttentionLayer, KVMemory
from vivace.platforms.cpu import facts as cpu
from vivace.platforms.cpu.allocator import keep_freed_blocks
from vivace.platforms.cpu.attention import CpuAttention
from vivace.platforms.cpu.deterministic import BatchInvariantAttention, batch_invariant
from vivace.platforms.cpu.ops import cpu_ops
from vivace.platforms.platform import PlatformFacts, PlatformSettings


class CpuPlatform:
    """Platform of torch's CPU kernels. Creating it sets torch's threads and glibc's thresholds."""

    def __init__(self, facts: PlatformFacts, settings: PlatformSettings) -> None:
        keep_freed_blocks()
        torch.set_num_threads(max(1, settings.threads or facts.cores))
        self.facts = facts
        self._deterministic = settings.deterministic
        self.ops = batch_invariant(cpu_ops()) if settings.deterministic else cpu_ops()

    def device(self) -> torch.device:
        return torch.device("cpu")

    def attention_backend(
        self, layers: Sequence[AttentionLayer], memory: KVMemory, dtype: torch.dtype
    ) -> AttentionBackend:
        chosen = BatchInvariantAttention if self._deterministic else CpuAttention
        return chosen(layers, memory, dtype)

    def available_bytes(self) -> int:
        return cpu.memory()[1]
