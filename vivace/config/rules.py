"""The rewrites: (option name, new value, reason). Order matters; each is pure."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

from vivace.checkpoint.source import EMBEDDED_NAME
from vivace.config.all_to_all import travelling_tokens
from vivace.config.chunks import chunk, chunk_share
from vivace.config.config import Options, ResolveContext
from vivace.config.drafts import drafts
from vivace.config.parallelism import requested_sizes
from vivace.config.pooled_models import pooled_settings
from vivace.platforms.blocks import INT8_ACTIVATION_KINDS

Change = tuple[str, Any, str]
"""option name, new value, reason"""

DEFAULT_RECORD = 1000
"""steps that the recorder of experts keeps"""
INITIAL_RATIO = "SGLANG_INIT_NEW_TOKEN_RATIO"
DEFAULT_RATIO = 0.7
LEAST_WATCHDOG = {"watchdog_timeout": 2.0, "soft_watchdog_timeout": 1.0}
"""seconds: before it has learned what steps take, an engine has no step in less time overdue"""
DTYPE_NAMES = {"half": "float16", "float": "float32"}


def model_name(options: Options, context: ResolveContext) -> Iterator[Change]:
    if options.model.served_model_name is None and context.source.embedded:
        yield "served_model_name", EMBEDDED_NAME, "the embedded model is served"


def dtype(options: Options, context: ResolveContext) -> Iterator[Change]:
    value = options.model.dtype
    if value in DTYPE_NAMES:
        yield "dtype", DTYPE_NAMES[value], f"{value} is another name for it"
    if value != "auto":
        return
    best, why = fastest_type(options, context)
    if context.facts.dtype == "float32" and "float32" in context.platform.dtypes:
        yield "dtype", "float32", "the checkpoint's type; a narrower one would lose digits"
    elif best == context.facts.dtype:
        yield "dtype", best, "the checkpoint's type"
    else:
        yield "dtype", best, f"{why} (the checkpoint says {context.facts.dtype})"


def fastest_type(options: Options, context: ResolveContext) -> tuple[str, str]:
    """(dtype of the weights, why). The kernels widen a weight on its way into a register, so for
    them the narrowest is the fastest; torch needs a type that the CPU multiplies."""
    platform, stored = context.platform, context.facts.dtype
    if not platform.cpu_kernels or options.runtime.disable_cpu_kernels:
        return platform.dtypes[0], f"the fastest type on this {platform.name}"
    narrow = stored if stored in platform.dtypes else "bfloat16"
    return narrow, "the kernels read 16-bit weights as they are stored"


def kernels(options: Options, context: ResolveContext) -> Iterator[Change]:
    """Native kernels unless they were not built or do not take this model."""
    if not options.runtime.disable_cpu_kernels and context.platform.cpu_kernels:
        reason = why_no_kernels(options, context)
        if reason is not None:
            yield "disable_cpu_kernels", True, reason


def captures(options: Options, context: ResolveContext) -> Iterator[Change]:
    """After `kernels`."""
    if options.runtime.disable_cpu_kernels and not options.runtime.disable_cuda_graph:
        yield "disable_cuda_graph", True, "torch's operations on the CPU cannot be captured"
    elif options.runtime.enable_deterministic_inference and requested_sizes(options).dp_attention:
        reason = "sums of several engines in a fixed order cannot be captured"
        yield "disable_cuda_graph", True, reason


def capture_sizes(options: Options, context: ResolveContext) -> Iterator[Change]:
    """After `captures`."""
    if options.runtime.disable_cuda_graph:
        for name in ("cuda_graph_bs", "cuda_graph_max_bs"):
            yield name, None, "no step is captured (--disable-cuda-graph)"


def why_no_kernels(options: Options, context: ResolveContext) -> str | None:
    facts = context.facts
    if "kernels" not in context.platform.features:
        return (
            "the kernels were not built (no C++ compiler at installation): torch is slower; "
            "`vivace doctor` says what builds them"
        )
    if options.model.model_impl == "transformers":
        return "--model-impl transformers brings its own operations"
    if facts.latent is None and (facts.head_dim % 16 or facts.head_dim > 256):
        return f"the attention kernel takes heads of 16, 32, .. 256 numbers, not {facts.head_dim}"
    latents = () if facts.latent is None else (facts.latent.q_rank, facts.latent.kv_rank)
    if any(width % 2 for width in (facts.hidden_size, *facts.mlp_widths, *latents)):
        return "the kernels take layers of an even number of inputs"
    return None


def why_float_activations(options: Options, context: ResolveContext) -> str | None:
    """Why activations cannot be int8; None where they can."""
    quantization = options.quantization.quantization
    if context.source.format != "gguf":
        stored_as = context.source.format
        return f"only GGUF blocks are multiplied with int8, and this is a {stored_as} model"
    if quantization not in (None, "gguf"):
        return f"--quantization {quantization} says what activations are"
    if options.runtime.disable_cpu_kernels or not context.platform.cpu_kernels:
        return "only the native CPU kernels multiply blocks with int8"
    kinds = [stored.kind for stored in context.source.stored if stored.in_layers]
    if kinds and not set(kinds) & set(INT8_ACTIVATION_KINDS):
        found = ", ".join(kinds).upper()
        return f"blocks of at most six bits are multiplied with int8; this file has {found}"
    return None


def kv_type(options: Options, context: ResolveContext) -> Iterator[Change]:
    kv_cache_dtype = options.memory.kv_cache_dtype
    if (
        kv_cache_dtype == "auto"
        and options.model.dtype == "float16"
        and not options.runtime.disable_cpu_kernels
    ):
        yield "kv_cache_dtype", "float32", "the kernels keep KV in float32, bfloat16 or int8"
    elif kv_cache_dtype == "auto":
        yield "kv_cache_dtype", options.model.dtype, "follows --dtype"
    if kv_cache_dtype == "bf16":
        yield "kv_cache_dtype", "bfloat16", "bf16 is another name for it"


def activations(options: Options, context: ResolveContext) -> Iterator[Change]:
    """After `kernels`."""
    if options.quantization.activation_dtype == "auto":
        reason = why_float_activations(options, context)
        narrow = "the kernels' fastest product with GGUF blocks; float is more exact"
        yield "activation_dtype", "float" if reason else "int8", reason or narrow


def context(options: Options, context: ResolveContext) -> Iterator[Change]:
    if options.model.context_length is None:
        yield "context_length", context.facts.context, "the model's own limit"


def page_size(options: Options, context: ResolveContext) -> Iterator[Change]:
    """Whole pages are shared, so with small ones all of a query is."""
    if options.memory.page_size is not None:
        return
    platform = context.platform
    if scores_items(options):
        smallest = min(platform.page_sizes)
        yield "page_size", smallest, "--enable-mis: items share the query to its last token"
    else:
        yield "page_size", platform.page_sizes[0], f"best on the {platform.name}"


def rows(options: Options, context: ResolveContext) -> Iterator[Change]:
    if options.schedule.max_running_requests is None:
        platform = context.platform
        default = platform.max_running_requests
        yield "max_running_requests", default, f"default on the {platform.name}"


def conservativeness(options: Options, context: ResolveContext) -> Iterator[Change]:
    """Admission expects ratio times conservativeness of what running requests may still produce."""
    value = options.schedule.schedule_conservativeness
    ratio = float(options.environment.get(INITIAL_RATIO) or DEFAULT_RATIO)
    if ratio > 0 and value * ratio > 1:
        yield "schedule_conservativeness", 1 / ratio, "no request needs more than all of its output"


def shared_queries(options: Options, context: ResolveContext) -> Iterator[Change]:
    if scores_items(options):
        reason = "--enable-mis: items of a scoring request share what is computed of the query"
        if options.memory.disable_radix_cache:
            yield "disable_radix_cache", False, reason


def scores_items(options: Options) -> bool:
    """After `pooled_settings`: what generates no text scores no items of one query."""
    return options.optimization.enable_mis and not options.model.is_embedding


def prefix_order(options: Options, context: ResolveContext) -> Iterator[Change]:
    policy = options.schedule.schedule_policy
    if policy in ("lpm", "dfs-weight") and options.memory.disable_radix_cache:
        yield "schedule_policy", "fcfs", f"{policy} orders by cached prefixes, which are off"


def priority_order(options: Options, context: ResolveContext) -> Iterator[Change]:
    schedule = options.schedule
    if schedule.schedule_policy == "priority" and not schedule.enable_priority_scheduling:
        yield "enable_priority_scheduling", True, "--schedule-policy priority needs it"


def overlap(options: Options, context: ResolveContext) -> Iterator[Change]:
    if not context.platform.overlap:
        yield (
            "disable_overlap_schedule",
            True,
            "on CPU, scheduling and compute share the same cores",
        )


def tokenizer_workers(options: Options, context: ResolveContext) -> Iterator[Change]:
    if options.model.skip_tokenizer_init:
        yield "tokenizer_worker_num", 1, "--skip-tokenizer-init leaves nothing to tokenize"


def access_log(options: Options, context: ResolveContext) -> Iterator[Change]:
    if options.logging.log_level_http is None:
        yield "log_level_http", options.logging.log_level, "follows --log-level"


def seed(options: Options, context: ResolveContext) -> Iterator[Change]:
    if options.runtime.random_seed is None:
        yield "random_seed", secrets.randbelow(1 << 30), "drawn; give --random-seed to repeat a run"


def threads(options: Options, context: ResolveContext) -> Iterator[Change]:
    cpu_threads, cores = options.runtime.cpu_threads, context.platform.cores
    if cpu_threads is None or cpu_threads > cores:
        slower = "; more threads than cores wait for each other" if cpu_threads else ""
        yield "cpu_threads", cores, f"the cores this process may use{slower}"


def watchdogs(options: Options, context: ResolveContext) -> Iterator[Change]:
    for name, least in LEAST_WATCHDOG.items():
        timeout = getattr(options.runtime, name)
        if timeout and timeout < least:
            yield name, least, "a sound engine may compute one step for so long; 0 switches it off"


def expert_copies(options: Options, context: ResolveContext) -> Iterator[Change]:
    asked = options.experts
    mode, steps = asked.expert_distribution_recorder_mode, asked.eplb_rebalance_num_iterations
    counted = asked.enable_eplb or asked.enable_expert_distribution_metrics
    if mode is None and counted:
        flag = "enable-eplb" if asked.enable_eplb else "enable-expert-distribution-metrics"
        yield "expert_distribution_recorder_mode", "stat", f"--{flag} needs counts"
    elif mode == "stat_approx":
        yield "expert_distribution_recorder_mode", "stat", "counts are exact here, at no cost"
    copies = asked.ep_num_redundant_experts or asked.init_expert_location != "trivial"
    if asked.ep_dispatch_algorithm is None and (asked.enable_eplb or copies):
        yield "ep_dispatch_algorithm", "static", "experts may have copies"
    if asked.expert_distribution_recorder_buffer_size is None and (mode or counted):
        kept = steps if asked.enable_eplb else DEFAULT_RECORD
        yield "expert_distribution_recorder_buffer_size", kept, "the default"


RULES = [
    model_name,
    pooled_settings,
    kernels,
    travelling_tokens,
    captures,
    capture_sizes,
    dtype,
    activations,
    kv_type,
    context,
    page_size,
    chunk,
    chunk_share,
    rows,
    conservativeness,
    shared_queries,
    prefix_order,
    priority_order,
    overlap,
    tokenizer_workers,
    access_log,
    seed,
    threads,
    watchdogs,
    expert_copies,
    drafts,
]
