"""Flags of LoRA adapters: parsed, not yet available."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.config.option import option
from vivace.config.unavailable import NO_LORA


@dataclass(frozen=True)
class LoraOptions:
    enable_lora: bool = option(False, "Serve LoRA adapters.", cpu=NO_LORA)
    enable_lora_overlap_loading: bool = option(
        False, "Copy adapters to the device while steps run.", cpu=NO_LORA
    )
    max_lora_rank: int | None = option(help="Largest adapter rank.", cpu=NO_LORA)
    lora_target_modules: tuple[str, ...] | None = option(
        help="Projections that get adapter slots, or `all`.", cpu=NO_LORA
    )
    lora_paths: tuple[str, ...] | None = option(
        help="Adapters loaded at the start: path, name=path or JSON.", cpu=NO_LORA
    )
    max_loras_per_batch: int = option(8, "Maximum number of adapters in one step.", cpu=NO_LORA)
    max_loaded_loras: int | None = option(
        help="Maximum number of adapters kept in memory.", cpu=NO_LORA
    )
    lora_eviction_policy: str = option(
        "lru", "Which adapter is evicted first.", choices=["lru", "fifo"], cpu=NO_LORA
    )
    lora_backend: str = option(
        "csgmv",
        "Kernels of adapters.",
        choices=["triton", "csgmv", "ascend", "torch_native", "triton_v2"],
        cpu=NO_LORA,
    )
    max_lora_chunk_size: int = option(
        16, "Segment length of the csgmv kernel.", choices=["16", "32", "64", "128"], cpu=NO_LORA
    )
