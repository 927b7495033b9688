"""Flags of recurrent state (Mamba, linear attention): parsed, not yet available."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.config.option import option
from vivace.config.unavailable import NO_MAMBA


@dataclass(frozen=True)
class MambaOptions:
    max_mamba_cache_size: int | None = option(help="Recurrent states kept.", cpu=NO_MAMBA)
    mamba_ssm_dtype: str = option(
        "float32",
        "Type of recurrent states.",
        choices=["float32", "bfloat16", "float16"],
        cpu=NO_MAMBA,
    )
    mamba_full_memory_ratio: float = option(
        0.9,
        "Memory of recurrent states per memory of full-attention KV.",
        trivial=[0.2],
        cpu=NO_MAMBA,
    )
    mamba_scheduler_strategy: str = option(
        "auto",
        "How prefix caching keeps recurrent states.",
        aliases=["mamba-radix-cache-strategy"],
        choices=["auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"],
        cpu=NO_MAMBA,
    )
    mamba_track_interval: int = option(
        256, "Decoded tokens between two snapshots of a state.", cpu=NO_MAMBA
    )
