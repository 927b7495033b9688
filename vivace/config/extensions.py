"""Adapters, drafts, recurrent state, tiers and offloading: parsed, not yet available."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.config.kernels import ATTENTION, QUANTIZATIONS
from vivace.config.model import LOAD_FORMATS, OTHER_LOAD_FORMATS
from vivace.config.option import no_effect, option
from vivace.config.parallel import MOE_A2A, MOE_RUNNERS
from vivace.config.reasons import NO_LORA, NO_MAMBA, NO_OFFLOAD, NO_SPECULATION, NO_TIERS


@dataclass(frozen=True)
class LoraOptions:
    enable_lora: bool = option(False, "Serve adapters.", cpu=NO_LORA)
    enable_lora_overlap_loading: bool = option(False, "Copy them meanwhile.", cpu=NO_LORA)
    max_lora_rank: int | None = option(help="Largest rank.", cpu=NO_LORA)
    lora_target_modules: tuple[str, ...] | None = option(help="Layers adapted.", cpu=NO_LORA)
    lora_paths: tuple[str, ...] | None = option(help="Adapters.", cpu=NO_LORA)
    max_loras_per_batch: int = option(8, "Adapters in a step.", cpu=NO_LORA)
    max_loaded_loras: int | None = option(help="Adapters in memory.", cpu=NO_LORA)
    lora_eviction_policy: str = option("lru", "Who goes.", choices=["lru", "fifo"], cpu=NO_LORA)
    lora_backend: str = option(
        "csgmv",
        "Kernels.",
        choices=["triton", "csgmv", "ascend", "torch_native", "triton_v2"],
        cpu=NO_LORA,
    )
    max_lora_chunk_size: int = option(
        16, "Segment length.", choices=["16", "32", "64", "128"], cpu=NO_LORA
    )


@dataclass(frozen=True)
class SpeculativeOptions:
    speculative_algorithm: str | None = option(
        help="How drafts are made.",
        choices=["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH"],
        cpu=NO_SPECULATION,
    )
    speculative_draft_model_path: str | None = option(
        help="Draft model.", aliases=["speculative-draft-model"], cpu=NO_SPECULATION
    )
    speculative_draft_model_revision: str | None = option(help="Its revision.", cpu=NO_SPECULATION)
    speculative_draft_load_format: str | None = option(
        help="Its format.", choices=[*LOAD_FORMATS, *OTHER_LOAD_FORMATS], cpu=NO_SPECULATION
    )
    speculative_num_steps: int | None = option(help="Draft steps.", cpu=NO_SPECULATION)
    speculative_eagle_topk: int | None = option(help="Branches.", cpu=NO_SPECULATION)
    speculative_num_draft_tokens: int | None = option(help="Tokens.", cpu=NO_SPECULATION)
    speculative_accept_threshold_single: float = option(1.0, "Accept.", cpu=NO_SPECULATION)
    speculative_accept_threshold_acc: float = option(1.0, "Accept.", cpu=NO_SPECULATION)
    speculative_token_map: str | None = option(help="Frequent tokens.", cpu=NO_SPECULATION)
    speculative_attention_mode: str = option(
        "prefill", "Attention of drafts.", choices=["prefill", "decode"], cpu=NO_SPECULATION
    )
    speculative_moe_runner_backend: str | None = option(
        help="Kernels of its experts.", choices=MOE_RUNNERS, cpu=NO_SPECULATION
    )
    speculative_moe_a2a_backend: str | None = option(
        help="Dispatch of its experts.", choices=MOE_A2A, cpu=NO_SPECULATION
    )
    speculative_draft_attention_backend: str | None = option(
        help="Attention kernels of drafts.", choices=ATTENTION, cpu=NO_SPECULATION
    )
    speculative_draft_model_quantization: str | None = option(
        help="Its quantisation.", choices=["unquant", "gguf", *QUANTIZATIONS], cpu=NO_SPECULATION
    )
    enable_multi_layer_eagle: bool = option(False, "Several MTP layers.", cpu=NO_SPECULATION)
    speculative_ngram_min_match_window_size: int = option(1, "N-gram.", cpu=NO_SPECULATION)
    speculative_ngram_max_match_window_size: int = option(12, "N-gram.", cpu=NO_SPECULATION)
    speculative_ngram_min_bfs_breadth: int = option(1, "N-gram.", cpu=NO_SPECULATION)
    speculative_ngram_max_bfs_breadth: int = option(10, "N-gram.", cpu=NO_SPECULATION)
    speculative_ngram_match_type: str = option(
        "BFS", "N-gram.", choices=["BFS", "PROB"], cpu=NO_SPECULATION
    )
    speculative_ngram_branch_length: int = option(
        18, "N-gram.", aliases=["speculative-ngram-max-trie-depth"], cpu=NO_SPECULATION
    )
    speculative_ngram_capacity: int = option(10_000_000, "N-gram.", cpu=NO_SPECULATION)


@dataclass(frozen=True)
class MambaOptions:
    max_mamba_cache_size: int | None = option(help="Recurrent states.", cpu=NO_MAMBA)
    mamba_ssm_dtype: str = option(
        "float32", "Their type.", choices=["float32", "bfloat16", "float16"], cpu=NO_MAMBA
    )
    mamba_full_memory_ratio: float = option(0.9, "Their share.", trivial=[0.2], cpu=NO_MAMBA)
    mamba_scheduler_strategy: str = option(
        "auto",
        "How they are cached.",
        aliases=["mamba-radix-cache-strategy"],
        choices=["auto", "no_buffer", "extra_buffer"],
        cpu=NO_MAMBA,
    )
    mamba_track_interval: int = option(256, "How often.", cpu=NO_MAMBA)


@dataclass(frozen=True)
class HicacheOptions:
    enable_hierarchical_cache: bool = option(False, "KV tiers.", cpu=NO_TIERS)
    hicache_ratio: float = option(2.0, "Host to device.", cpu=NO_TIERS)
    hicache_size: int = option(0, "Host tier in GB.", cpu=NO_TIERS)
    hicache_write_policy: str = option(
        "write_through",
        "When it is written.",
        choices=["write_back", "write_through", "write_through_selective"],
        cpu=NO_TIERS,
    )
    hicache_io_backend: str = option(
        "kernel", "How it is copied.", choices=["direct", "kernel", "kernel_ascend"], cpu=NO_TIERS
    )
    hicache_mem_layout: str = option(
        "layer_first",
        "Its layout.",
        choices=[
            "layer_first", "page_first", "page_first_direct", "page_first_kv_split", "page_head",
        ],
        cpu=NO_TIERS,
    )  # fmt: skip
    hicache_storage_backend: str | None = option(
        help="The tier behind it.",
        choices=[
            "file", "mooncake", "hf3fs", "nixl", "aibrix", "dynamic", "eic", "sim",
            "npu_memcache", "simm", "mori", "shm",
        ],
        cpu=NO_TIERS,
    )  # fmt: skip
    hicache_storage_prefetch_policy: str = option(
        "best_effort",
        "How long it is waited for.",
        choices=["best_effort", "wait_complete", "timeout"],
        cpu=NO_TIERS,
    )
    hicache_storage_backend_extra_config: str | None = option(
        help="Its JSON settings.", cpu=NO_TIERS
    )
    disable_hicache_numa_detect: bool = option(
        False, "Do not bind to a NUMA node.", cpu=no_effect("there is no host tier")
    )
    hierarchical_sparse_attention_extra_config: str | None = option(
        help="JSON of sparse offload.", cpu=NO_TIERS
    )
    enable_lmcache: bool = option(False, "LMCache.", cpu=NO_TIERS)


@dataclass(frozen=True)
class OffloadOptions:
    cpu_offload_gb: int = option(0, "Weights on the host, in GB.", cpu=NO_OFFLOAD)
    offload_group_size: int = option(-1, "Layers per group.", cpu=NO_OFFLOAD)
    offload_num_in_group: int = option(1, "Offloaded of each.", cpu=NO_OFFLOAD)
    offload_prefetch_step: int = option(1, "Fetched ahead.", cpu=NO_OFFLOAD)
    offload_mode: str = option("cpu", "Where to.", cpu=NO_OFFLOAD)
