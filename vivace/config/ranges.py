"""What numbers may be, whatever the model and the machine."""

from __future__ import annotations

from vivace.config.config import Options, all_options, option_value
from vivace.config.draft_sizes import MOST_TOKENS
from vivace.config.errors import ConfigError
from vivace.protocol.ranks import MOST_RANKS

RANGES: dict[str, tuple[float, float]] = {
    "port": (0, 65535),
    "tokenizer_worker_num": (1, 64),
    "tp_size": (1, MOST_RANKS),
    "dp_size": (1, MOST_RANKS),
    "nnodes": (1, MOST_RANKS),
    "node_rank": (0, MOST_RANKS - 1),
    "nccl_port": (1, 65535),
    "dist_timeout": (1, 1 << 31),
    "pp_size": (1, MOST_RANKS),
    "pp_max_micro_batch_size": (1, 1 << 16),
    "pp_async_batch_depth": (0, 16),
    "ep_size": (1, MOST_RANKS),
    "ep_num_redundant_experts": (0, 1 << 16),
    "eplb_rebalance_num_iterations": (1, 1 << 31),
    "eplb_rebalance_layers_per_chunk": (1, 1 << 16),
    "eplb_min_rebalancing_utilization_threshold": (0.0, 1.0),
    "expert_distribution_recorder_buffer_size": (-1, 1 << 31),
    "context_length": (2, 1 << 31),
    "mem_fraction_static": (0.01, 0.99),
    "swa_full_tokens_ratio": (0.001, 1.0),
    "max_total_tokens": (1, 1 << 40),
    "page_size": (1, 1 << 16),
    "max_mamba_cache_size": (1, 1 << 40),
    "mamba_full_memory_ratio": (0.001, 1000.0),
    "mamba_track_interval": (1, 1 << 31),
    "max_running_requests": (1, 1 << 16),
    "prefill_max_requests": (1, 1 << 16),
    "max_queued_requests": (0, 1 << 31),
    "chunked_prefill_size": (-1, 1 << 31),
    "chunked_prefill_stall_target": (0, 1e9),
    "max_prefill_tokens": (1, 1 << 31),
    "priority_scheduling_preemption_threshold": (0, 1 << 31),
    "schedule_conservativeness": (0.0, 100.0),
    "num_continuous_decode_steps": (1, 1024),
    "scheduler_recv_interval": (1, 1024),
    "speculative_accept_threshold_single": (0.0, 1.0),
    "speculative_accept_threshold_acc": (0.0, 1.0),
    "speculative_num_draft_tokens": (2, MOST_TOKENS),
    "speculative_num_steps": (1, 63),
    "speculative_eagle_topk": (1, 16),
    "speculative_ngram_min_match_window_size": (1, 64),
    "speculative_ngram_max_match_window_size": (1, 64),
    "speculative_ngram_branch_length": (2, 128),
    "speculative_ngram_min_bfs_breadth": (1, 64),
    "speculative_ngram_max_bfs_breadth": (1, 64),
    "speculative_ngram_capacity": (1, 1 << 30),
    "speculative_ngram_external_corpus_max_tokens": (1, 1 << 28),
    "speculative_ngram_external_sam_budget": (0, 64),
    "cpu_threads": (1, 1024),
    "cuda_graph_max_bs": (1, 1 << 16),
    "random_seed": (0, (1 << 63) - 1),
    "stream_interval": (1, 1 << 20),
    "watchdog_timeout": (0, 10**9),
    "soft_watchdog_timeout": (0, 10**9),
    "decode_log_interval": (1, 1 << 31),
    "gc_warning_threshold_secs": (0, 10**6),
}
"""inclusive limits of numbers, by option name"""
BUCKETS = (
    "bucket_time_to_first_token",
    "bucket_inter_token_latency",
    "bucket_e2e_request_latency",
)


def ranges(options: Options) -> list[str]:
    for option in all_options():
        value = option_value(options, option)
        if option.name not in RANGES or value is None:
            continue
        low, high = RANGES[option.name]
        if not low <= value <= high:
            raise ConfigError(f"{option.flag} must be between {low} and {high}, got {value}")
    if options.schedule.chunked_prefill_size == 0:
        raise ConfigError("--chunked-prefill-size 0: give a size, or -1 to never cut prompts")
    if any(size < 1 for size in options.runtime.cuda_graph_bs or ()):
        raise ConfigError("--cuda-graph-bs: batch sizes must be 1 or more")
    for name in BUCKETS:
        bounds = getattr(options.logging, name)
        if bounds and list(bounds) != sorted(set(bounds)):
            raise ConfigError(f"--{name.replace('_', '-')}: the bounds must increase")
    return []
