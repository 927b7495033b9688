"""Flags of KV tiers behind the device (HiCache): parsed, not yet available."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.config.option import no_effect, option
from vivace.config.unavailable import NO_TIERS


@dataclass(frozen=True)
class HicacheOptions:
    enable_hierarchical_cache: bool = option(
        False, "Keep KV in host memory behind the device.", cpu=NO_TIERS
    )
    hicache_ratio: float = option(2.0, "Size of the host tier in device pools.", cpu=NO_TIERS)
    hicache_size: int = option(0, "Size of the host tier in GB; wins over the ratio.", cpu=NO_TIERS)
    hicache_write_policy: str = option(
        "write_through",
        "When KV is written to the host tier.",
        choices=["write_back", "write_through", "write_through_selective"],
        cpu=NO_TIERS,
    )
    hicache_io_backend: str = option(
        "kernel",
        "What copies between device and host.",
        choices=["direct", "kernel", "kernel_ascend"],
        cpu=NO_TIERS,
    )
    hicache_mem_layout: str = option(
        "layer_first",
        "Layout of the host tier.",
        choices=[
            "layer_first", "page_first", "page_first_direct", "page_first_kv_split", "page_head",
        ],
        cpu=NO_TIERS,
    )  # fmt: skip
    hicache_storage_backend: str | None = option(
        help="Third tier, behind the host.",
        choices=[
            "file", "mooncake", "hf3fs", "nixl", "aibrix", "dynamic", "eic", "sim",
            "npu_memcache", "simm", "mori", "shm", "tensorcast", "seaweedfs",
        ],
        cpu=NO_TIERS,
    )  # fmt: skip
    hicache_storage_prefetch_policy: str = option(
        "best_effort",
        "How long a prefetch from the third tier is waited for.",
        choices=["best_effort", "wait_complete", "timeout"],
        cpu=NO_TIERS,
    )
    hicache_storage_backend_extra_config: str | None = option(
        help="JSON or @file with settings of the third tier.", cpu=NO_TIERS
    )
    disable_hicache_numa_detect: bool = option(
        False,
        "Do not bind the host tier to the nearest NUMA node.",
        cpu=no_effect("there is no host tier"),
    )
    hierarchical_sparse_attention_extra_config: str | None = option(
        help="JSON of sparse attention with offloaded KV.", cpu=NO_TIERS
    )
    enable_lmcache: bool = option(False, "Let LMCache keep the KV.", cpu=NO_TIERS)
