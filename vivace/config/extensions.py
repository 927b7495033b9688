"""Adapters, drafts, recurrent state, tiers and offloading: parsed, not yet available."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.config.kernels import ATTENTION, QUANTIZATIONS
from vivace.config.model import LOAD_FORMATS, OTHER_LOAD_FORMATS
from vivace.config.option import no_effect, option
from vivace.config.parallel import MOE_A2A, MOE_RUNNERS
from vivace.config.unavailable import NO_LORA, NO_MAMBA, NO_OFFLOAD, NO_SPECULATION, NO_TIERS


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
    max_loras_per_batch: int = option(8, "Most adapters in one step.", cpu=NO_LORA)
    max_loaded_loras: int | None = option(help="Most adapters kept in memory.", cpu=NO_LORA)
    lora_eviction_policy: str = option(
        "lru", "Which adapter leaves the device first.", choices=["lru", "fifo"], cpu=NO_LORA
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


@dataclass(frozen=True)
class SpeculativeOptions:
    speculative_algorithm: str | None = option(
        help="How drafts are proposed.",
        choices=["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH"],
        cpu=NO_SPECULATION,
    )
    speculative_draft_model_path: str | None = option(
        help="Draft model or draft head.", aliases=["speculative-draft-model"], cpu=NO_SPECULATION
    )
    speculative_draft_model_revision: str | None = option(
        help="Revision of the draft model on a hub.", cpu=NO_SPECULATION
    )
    speculative_draft_load_format: str | None = option(
        help="How the draft's weights are read.",
        choices=[*LOAD_FORMATS, *OTHER_LOAD_FORMATS],
        cpu=NO_SPECULATION,
    )
    speculative_num_steps: int | None = option(help="Draft steps per round.", cpu=NO_SPECULATION)
    speculative_eagle_topk: int | None = option(
        help="Branches per draft step; 1 is a chain.", cpu=NO_SPECULATION
    )
    speculative_num_draft_tokens: int | None = option(
        help="Tokens verified per round.", cpu=NO_SPECULATION
    )
    speculative_accept_threshold_single: float = option(
        1.0, "Accept a draft token from this probability on (lossy below 1).", cpu=NO_SPECULATION
    )
    speculative_accept_threshold_acc: float = option(
        1.0, "Raise acceptance by dividing by this (lossy below 1).", cpu=NO_SPECULATION
    )
    speculative_token_map: str | None = option(
        help="File of frequent tokens that shrinks the draft's vocabulary.", cpu=NO_SPECULATION
    )
    speculative_attention_mode: str = option(
        "prefill",
        "Which kind of attention kernel verifies drafts.",
        choices=["prefill", "decode"],
        cpu=NO_SPECULATION,
    )
    speculative_moe_runner_backend: str | None = option(
        help="Kernels of the draft's experts.", choices=MOE_RUNNERS, cpu=NO_SPECULATION
    )
    speculative_moe_a2a_backend: str | None = option(
        help="How tokens travel to the draft's experts.", choices=MOE_A2A, cpu=NO_SPECULATION
    )
    speculative_draft_attention_backend: str | None = option(
        help="Kernels of the draft's attention.", choices=ATTENTION, cpu=NO_SPECULATION
    )
    speculative_draft_model_quantization: str | None = option(
        help="Quantization of the draft; unquant: none.",
        choices=["unquant", "gguf", *QUANTIZATIONS],
        cpu=NO_SPECULATION,
    )
    enable_multi_layer_eagle: bool = option(
        False, "One multi-token-prediction layer per draft step.", cpu=NO_SPECULATION
    )
    speculative_ngram_min_match_window_size: int = option(
        1, "Shortest suffix that n-gram drafts match.", cpu=NO_SPECULATION
    )
    speculative_ngram_max_match_window_size: int = option(
        12, "Longest suffix that n-gram drafts match.", cpu=NO_SPECULATION
    )
    speculative_ngram_min_bfs_breadth: int = option(
        1, "Fewest branches of an n-gram draft.", cpu=NO_SPECULATION
    )
    speculative_ngram_max_bfs_breadth: int = option(
        10, "Most branches of an n-gram draft.", cpu=NO_SPECULATION
    )
    speculative_ngram_match_type: str = option(
        "BFS",
        "Choose n-grams by recency (BFS) or frequency (PROB).",
        choices=["BFS", "PROB"],
        cpu=NO_SPECULATION,
    )
    speculative_ngram_branch_length: int = option(
        18,
        "Longest n-gram stored.",
        aliases=["speculative-ngram-max-trie-depth"],
        cpu=NO_SPECULATION,
    )
    speculative_ngram_capacity: int = option(
        10_000_000, "Nodes of the n-gram cache.", cpu=NO_SPECULATION
    )


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


@dataclass(frozen=True)
class OffloadOptions:
    cpu_offload_gb: int = option(0, "GB of weights kept in host memory.", cpu=NO_OFFLOAD)
    offload_group_size: int = option(-1, "Layers per offload group.", cpu=NO_OFFLOAD)
    offload_num_in_group: int = option(1, "Layers offloaded in each group.", cpu=NO_OFFLOAD)
    offload_prefetch_step: int = option(1, "Groups fetched ahead.", cpu=NO_OFFLOAD)
    offload_mode: str = option("cpu", "Where offloaded layers are kept.", cpu=NO_OFFLOAD)
