"""Flags of recurrent state (Mamba, linear attention)."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.config.option import option
from vivace.config.unavailable import FLOAT_STATES, SAVED_STATES


@dataclass(frozen=True)
class MambaOptions:
    max_mamba_cache_size: int | None = option(
        help="States saved for others to start from. Default, if they fit: one for each "
        "running request and --mamba-track-interval tokens of the pool.",
    )
    mamba_ssm_dtype: str = option(
        "float32",
        "Type of recurrent states.",
        choices=["float32", "bfloat16", "float16"],
        cpu=FLOAT_STATES,
    )
    mamba_full_memory_ratio: float = option(
        0.9,
        "Memory of recurrent states per memory of full-attention KV.",
    )
    mamba_scheduler_strategy: str = option(
        "auto",
        "How prefix caching keeps recurrent states.",
        aliases=["mamba-radix-cache-strategy"],
        choices=["auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"],
        cpu=SAVED_STATES,
    )
    mamba_track_interval: int = option(
        256, "Tokens of a prefix from one saved state to the next, in whole pages."
    )
