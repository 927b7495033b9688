"""Flags of the KV pool, and of weights kept off the device."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.config.option import not_available, option
from vivace.config.unavailable import NO_OFFLOAD


@dataclass(frozen=True)
class MemoryOptions:
    mem_fraction_static: float | None = option(
        help="Share for weights and KV of the memory that was free before loading; unset: for KV "
        "a quarter of what is free after loading, at most 4 GiB (or a quarter of the weights); "
        "cached prefixes take what one longest request does. Given: they may fill it."
    )
    max_total_tokens: int | None = option(
        help="KV pool in tokens, as far as memory goes (--mem-fraction-static, or else 0.8). "
        "Cached prefixes may fill it. Default: what there is room for."
    )
    page_size: int | None = option(
        help="Tokens per KV page, default: 16; prefix hits are whole pages."
    )
    disable_radix_cache: bool = option(False, "No prefix reuse between requests.")
    radix_eviction_policy: str = option(
        "lru",
        "Which cached prefix is evicted first.",
        choices=["lru", "lfu", "slru", "priority", "tlru"],
        values={
            name: not_available("this eviction policy is not supported yet", "use lru or lfu")
            for name in ("slru", "priority", "tlru")
        },
    )
    kv_cache_dtype: str = option(
        "auto",
        "Type of cached keys and values; int8 has a scale for each token and head.",
        choices=[
            "auto", "float32", "bf16", "bfloat16", "int8", "fp8_e5m2", "fp8_e4m3", "fp4_e2m1",
            "mxfp8", "nvfp4", "fp4_mx_block16",
        ],
        values={
            name: not_available(
                "KV in this type is not supported yet", "use int8, bfloat16 or auto"
            )
            for name in (
                "fp8_e5m2", "fp8_e4m3", "fp4_e2m1", "mxfp8", "nvfp4", "fp4_mx_block16",
            )
        },
    )  # fmt: skip
    swa_full_tokens_ratio: float | None = option(
        help="Window pool's tokens per token of the full one; default: for all rows."
    )
    disable_hybrid_swa_memory: bool = option(
        False, "One pool for sliding and full layers: all keep every token."
    )


@dataclass(frozen=True)
class OffloadOptions:
    cpu_offload_gb: int = option(0, "GB of weights kept in host memory.", cpu=NO_OFFLOAD)
    offload_group_size: int = option(-1, "Layers per offload group.", cpu=NO_OFFLOAD)
    offload_num_in_group: int = option(1, "Layers offloaded in each group.", cpu=NO_OFFLOAD)
    offload_prefetch_step: int = option(1, "Groups fetched ahead.", cpu=NO_OFFLOAD)
    offload_mode: str = option("cpu", "Where offloaded layers are kept.", cpu=NO_OFFLOAD)
