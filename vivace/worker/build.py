"""From a Config to a Worker: platform, weights, KV pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from vivace.config.environment import switched_on
from vivace.config.parallelism import engine_rows, requested_sizes
from vivace.config.tensor_parallel import input_groups
from vivace.layers.layout import SINGLE, ParallelLayout
from vivace.models.causal_lm import CausalLM
from vivace.models.loading import (
    ModelShare,
    OpenWeights,
    ReportProgress,
    RequestedQuantization,
    WeightReading,
    load_model,
    unwatched,
)
from vivace.models.pooling.build import without_head
from vivace.platforms.cache import (
    CacheLayer,
    CacheMemory,
    bytes_per_state,
    group_bytes_per_token,
    own_windows,
)
from vivace.platforms.groups import Group
from vivace.platforms.platform import Platform, PlatformSettings, load_platform
from vivace.platforms.rendezvous import Rendezvous
from vivace.protocol.messages import Capacity, Rewrite
from vivace.protocol.step import window_slack
from vivace.quantization.packed import weight_packer
from vivace.sampling.processors import ProcessorFactory
from vivace.worker.captures import Captures, build_runner, choose_captures, rewrite
from vivace.worker.drafter import NO_DRAFTS, Drafter
from vivace.worker.drafters.build import DraftTarget, accept_thresholds, build_drafter, is_fixed
from vivace.worker.drafters.place import DrafterPlace
from vivace.worker.drafters.step_costs import time_steps
from vivace.worker.experts import NO_EXPERTS, ExpertLayers, locate_experts, movable_experts
from vivace.worker.heads import SamplingHead, SamplingSettings, StepHeads
from vivace.worker.hidden_states import HiddenStatesHead
from vivace.worker.layout import join_ranks
from vivace.worker.model_runner import ModelRunner, RunnableModel
from vivace.worker.pooling.steps import pooling_head
from vivace.worker.rank_sizes import own_share, share_memory, size_together, windows_of_all
from vivace.worker.rows import RowStates
from vivace.worker.sizing import (
    Demand,
    PoolSize,
    WindowDemand,
    count_slots,
)
from vivace.worker.stage_heads import HeadsElsewhere
from vivace.worker.step_inputs import StepInputs
from vivace.worker.tensor_memory import tensor_bytes
from vivace.worker.worker import Worker

if TYPE_CHECKING:
    from vivace.config.config import Config

DTYPES = {
    "float32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
}
KV_DTYPES = {**DTYPES, "int8": torch.int8}
PINNED = "SGLANG_SET_CPU_AFFINITY"
ORIGINAL_LOGPROBS = "SGLANG_RETURN_ORIGINAL_LOGPROB"
DEFAULT_ROWS = 256
MAX_STEP_BUFFER = 16384
"""tokens; longer steps enlarge the buffers when they come"""


def build_worker(
    config: Config,
    report: ReportProgress,
    rendezvous: Rendezvous | None = None,
    *,
    owns_process: bool = False,
    share: int = 0,
    drafting: Callable[[DraftTarget], Drafter] = build_drafter,
    processors: Sequence[ProcessorFactory] = (),
) -> Worker:
    """Load, size the pool with what is left. `rendezvous`: of ranks; the rest is `Setup`'s."""
    report("Loading kernels", 0.0)
    workers = requested_sizes(config).node_devices
    platform = load_platform(config.platform, platform_settings(config, workers, owns_process))
    dtype, kv_dtype = DTYPES[config.model.dtype], KV_DTYPES[config.memory.kv_cache_dtype]
    group, layout = join_ranks(config, platform, rendezvous)
    free, share = share_memory(platform, workers, share, group)
    max_tokens = longest_request(config, free, kv_dtype)
    read = partial(load, platform=platform, max_tokens=max_tokens, report=report, rank=group.rank)
    model = read(config, layout=layout)
    drafter = drafting(DraftTarget(config, platform, dtype, model, layout, read))
    layers, weights = [*model.attention_layers, *drafter.layers], tensor_bytes([model, drafter])
    demand = memory_demand(
        *(config, layers, kv_dtype),
        free_bytes=free,
        available_bytes=own_share(platform, workers, max(0, share - weights)),
        weight_bytes=weights,
        workers=workers,
        windows=find_windows(config, layers, max_tokens, group),
        max_tokens=max_tokens,
        row_bytes=drafter.row_numbers * platform.activations(dtype).itemsize,
    )
    size = size_together(demand, group, report)
    worker = assemble(
        *(model, model.attention_layers, platform, size),
        page_size=demand.page_size,
        dtype=platform.activations(dtype),
        kv_dtype=kv_dtype,
        vocabulary=config.facts.vocabulary,
        weight_bytes=weights,
        step_tokens=_step_tokens(config, size.rows),
        captures=choose_captures(config, size.rows),
        report=report,
        sampling=sampling_settings(config, processors),
        rewrites=other_threads(config, platform, workers),
        experts=movable_experts(config, model, group, DTYPES[config.model.dtype]),
        layout=layout,
        drafter=drafter,
    )
    return worker if is_fixed(config) else time_steps(worker, layout.peers.size, report)


def sampling_settings(config: Config, processors: Sequence[ProcessorFactory]) -> SamplingSettings:
    return SamplingSettings(
        original_logprobs=switched_on(config.environment, ORIGINAL_LOGPROBS),
        thresholds=accept_thresholds(config),
        processors=processors,
    )


def find_windows(
    config: Config, layers: Sequence[CacheLayer], max_tokens: int, group: Group
) -> tuple[int, ...]:
    one_pool = config.memory.disable_hybrid_swa_memory
    return windows_of_all(own_windows(layers, max_tokens, one_pool=one_pool), group)


def longest_request(config: Config, free: int, kv_dtype: torch.dtype) -> int:
    """Tokens. What a checkpoint claims is allocated for only as far as the memory of the ranks of
    an attention group (`free` bytes each) could ever hold it. They divide heads of keys; latents
    each has whole."""
    one_pool, facts = config.memory.disable_hybrid_swa_memory, config.facts
    sizes = requested_sizes(config)
    kept = (0 if one_pool else facts.full_kv_elements) or facts.kv_elements
    shares = sizes.pp * (1 if facts.latent else min(sizes.attention_tp, facts.kv_heads))
    return max(1, min(wanted_context(config), free * shares // max(1, kept * kv_dtype.itemsize)))


def load(
    config: Config,
    platform: Platform,
    max_tokens: int,
    report: ReportProgress,
    layout: ParallelLayout,
    rank: int = 0,
    watch: Callable[[OpenWeights], OpenWeights] = unwatched,
) -> CausalLM:
    """The model with its weights, for requests of up to `max_tokens` tokens."""
    report("Loading weights", 0.0)
    dtype, source, facts = DTYPES[config.model.dtype], config.source, config.facts
    if config.pooling is not None:
        source, facts = without_head(source, facts)
    packer = weight_packer(platform, dtype)
    seed, quantization = config.runtime.random_seed or 0, config.quantization
    return load_model(
        *(source, facts, packer),
        WeightReading(progress=report, seed=seed, watch=watch),
        positions=wanted_context(config),
        longest=max_tokens,
        share=ModelShare(
            layout=layout,
            experts=locate_experts(config, layout.experts),
            rank=rank,
            groups=input_groups(config, config.source),
        ),
        requested=RequestedQuantization(
            method=quantization.quantization,
            int8_activations=quantization.activation_dtype == "int8",
        ),
    )


def wanted_context(config: Config) -> int:
    """Longest prompt + output that is asked for, in tokens."""
    return config.model.context_length or config.facts.context


def other_threads(config: Config, platform: Platform, ranks: int) -> list[Rewrite]:
    requested = (config.runtime.cpu_threads or 0) // ranks
    if not requested or platform.threads == requested:
        return []
    reason = "the system starts no more threads for this process (pids limit, ulimit -u)"
    if config.runtime.disable_cpu_kernels:
        reason = "torch's threads are those of the program (torch.set_num_threads)"
    return [rewrite("cpu_threads", requested, platform.threads, reason)]


def platform_settings(config: Config, ranks: int, owns_process: bool) -> PlatformSettings:
    """The ranks of all engines of a machine divide its threads among them."""
    threads = config.runtime.cpu_threads or config.platform.cores
    return PlatformSettings(
        threads=max(1, threads // ranks),
        deterministic=bool(config.runtime.enable_deterministic_inference),
        pinned=switched_on(config.environment, PINNED),
        kernels=not config.runtime.disable_cpu_kernels,
        owns_process=owns_process,
    )


def assemble(
    model: RunnableModel,
    layers: Sequence[CacheLayer],
    platform: Platform,
    size: PoolSize,
    *,
    page_size: int,
    dtype: torch.dtype,
    vocabulary: int,
    kv_dtype: torch.dtype | None = None,
    weight_bytes: int = 0,
    step_tokens: int = 1024,
    captures: Captures = Captures(),
    report: ReportProgress = lambda stage, fraction: None,
    sampling: SamplingSettings = SamplingSettings(),
    rewrites: Sequence[Rewrite] = (),
    drafter: Drafter = NO_DRAFTS,
    experts: ExpertLayers = NO_EXPERTS,
    layout: ParallelLayout = SINGLE,
) -> Worker:
    """`layers`: the model's. KV in `kv_dtype`; None: `dtype`, which is that of activations.
    `rewrites`: made before."""
    kv = build_memory(layers, size, page_size, kv_dtype or dtype, platform, drafter)
    attention = platform.attention_backend(layers, kv, dtype, size.context + 1)
    rows = build_rows(size, page_size, drafter, platform, trees=attention.reads_paths)
    drafter.attach(DrafterPlace(rows, kv, platform, captures, dtype, step_tokens, report))
    recorder = platform.recorder() if captures.sizes else None
    inputs = StepInputs(rows, step_tokens, captures.replayed(recorder), drafter, layout.peers.size)
    runner = build_runner(recorder, model, attention, inputs, captures, report)
    return Worker(
        capacity=describe_capacity(
            *(size, kv, runner, platform, drafter),
            page_size=page_size,
            vocabulary=vocabulary,
            weight_bytes=weight_bytes,
            rewrites=(*rewrites, *size.rewrites, *captures.rewrites),
        ),
        rows=rows,
        kv=kv,
        attention=attention,
        runner=runner,
        heads=build_heads(model, platform, rows, vocabulary, sampling)
        if layout.stage.target is None
        else HeadsElsewhere(platform.sampling(), rows),
        inputs=inputs,
        platform=platform,
        experts=experts,
        drafter=drafter,
    )


def describe_capacity(
    size: PoolSize,
    kv: CacheMemory,
    runner: ModelRunner,
    platform: Platform,
    drafter: Drafter,
    *,
    page_size: int,
    vocabulary: int,
    weight_bytes: int,
    rewrites: tuple[Rewrite, ...],
) -> Capacity:
    return Capacity(
        pages=size.pages,
        others=size.others,
        page_size=page_size,
        rows=size.rows,
        context=size.context,
        vocabulary=vocabulary,
        weight_bytes=weight_bytes,
        kv_bytes=kv.nbytes,
        cache_share=size.cache_share if kv.lazy else None,
        graph_bytes=runner.nbytes + drafter.nbytes,
        available_bytes=platform.available_bytes(),
        free_bytes=size.free_bytes,
        rewrites=rewrites,
        instructions=platform.instructions,
        reports_ready=drafter.reports_ready,
        undivided_draft=drafter.undivided,
    )


def build_heads(
    model: RunnableModel,
    platform: Platform,
    rows: RowStates,
    vocabulary: int,
    sampling: SamplingSettings,
) -> StepHeads:
    head = SamplingHead(model, platform.sampling(), rows, vocabulary, sampling)
    return StepHeads(head, [pooling_head(rows, model), HiddenStatesHead(rows)])


def build_rows(
    size: PoolSize, page_size: int, drafter: Drafter, platform: Platform, *, trees: bool
) -> RowStates:
    """`trees`: attention does them; a state behind each draft is that of a chain."""
    return RowStates(
        size.rows,
        size.context,
        page_size,
        size.pages,
        drafter.width,
        size.others,
        device=platform.device(),
        row_ops=platform.row_ops,
        trees=trees and drafter.trees and not any(group.state for group in size.others),
    )


def build_memory(
    layers: Sequence[CacheLayer],
    size: PoolSize,
    page_size: int,
    dtype: torch.dtype,
    platform: Platform,
    drafter: Drafter,
) -> CacheMemory:
    pages = [size.pages, *(group.pages for group in size.others)]
    windows = [group.reach + 1 for group in size.others if not group.state]
    states = [group.pages for group in size.others if group.state]
    slots = sum(count_slots(size.rows, drafter.width, count) for count in states)
    kept = [*layers, *drafter.layers]
    return platform.cache(kept, pages, page_size, dtype, windows, slots)


def memory_demand(
    config: Config,
    layers: Sequence[CacheLayer],
    kv_dtype: torch.dtype,
    *,
    free_bytes: int,
    available_bytes: int,
    weight_bytes: int,
    workers: int,
    windows: Sequence[int],
    max_tokens: int,
    row_bytes: int,
) -> Demand:
    """What the flags ask for, with these layers and the draft's. `windows`: of groups 1, 2 ..."""
    first, *others = group_bytes_per_token(layers, windows, kv_dtype)
    chunk, context = config.schedule.chunked_prefill_size, wanted_context(config)
    return Demand(
        free_bytes=free_bytes,
        available_bytes=available_bytes,
        weight_bytes=weight_bytes,
        workers=workers,
        kv_bytes_per_token=first,
        page_size=config.memory.page_size or config.platform.page_sizes[0],
        context=context,
        max_request_tokens=max_tokens,
        rows=engine_rows(config) or DEFAULT_ROWS,
        static_fraction=config.memory.mem_fraction_static,
        max_total_tokens=config.memory.max_total_tokens,
        windows=tuple(
            WindowDemand(window=window, kv_bytes_per_token=nbytes)
            for window, nbytes in zip(windows, others, strict=True)
        ),
        window_slack=window_slack(config.depth, config.draft_width),
        step_tokens=config.depth * (chunk if chunk and chunk > 0 else context),
        window_ratio=config.memory.swa_full_tokens_ratio,
        state_bytes=bytes_per_state(layers, kv_dtype),
        drafts=config.draft_width,
        state_interval=max(1, config.mamba.mamba_track_interval),
        saved_states=0 if config.memory.disable_radix_cache else config.mamba.max_mamba_cache_size,
        state_ratio=config.mamba.mamba_full_memory_ratio,
        row_bytes=row_bytes,
        draft_logits=config.draft_width * config.facts.vocabulary,
    )


def _step_tokens(config: Config, rows: int) -> int:
    """Tokens of the longest usual step: a chunk of prompts and one token for every row."""
    chunk = config.schedule.chunked_prefill_size or 0
    return min(MAX_STEP_BUFFER, max(chunk, 1) + rows)
