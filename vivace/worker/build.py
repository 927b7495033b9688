"""From a Config to a Worker: platform, weights, KV pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from vivace.config.environment import switched_on
from vivace.models.causal_lm import CausalLM
from vivace.models.loading import load_model
from vivace.platforms.attention import AttentionBackend, AttentionLayer
from vivace.platforms.platform import Platform, PlatformSettings, load_platform
from vivace.protocol.control import Capacity, Rewrite
from vivace.worker.heads import TokenHead
from vivace.worker.inputs import StepInputs
from vivace.worker.kv_memory import PagedKV, bytes_per_token
from vivace.worker.rows import RowStates
from vivace.worker.runner import (
    CapturedRunner,
    EagerRunner,
    RunnableModel,
    Runner,
    capture_steps,
)
from vivace.worker.sizing import Demand, Size, size
from vivace.worker.tensor_memory import held_bytes
from vivace.worker.worker import Worker

if TYPE_CHECKING:
    from vivace.config.config import Config

Report = Callable[[str, float], None]
"""(stage, fraction of it that is done, 0..1)"""

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
DEFAULT_CAPTURE = 256
"""rows: a replay runs only the rows that are there, so one capture serves every batch"""
DEFAULT_ROWS = 256
LARGEST_STEP_BUFFER = 16384
"""tokens; longer steps enlarge the buffers when they come"""


def build_worker(config: Config, report: Report) -> Worker:
    """Load the platform and the weights, size the pool with what is left, and assemble."""
    report("Loading kernels", 0.0)
    platform = load_platform(config.platform, settings_of(config))
    kv_dtype = KV_DTYPES[config.memory.kv_cache_dtype]
    free = platform.available_bytes()
    # What a checkpoint claims is allocated for only as far as the memory could ever hold it.
    held = free // config.facts.kv_bytes_per_token(kv_dtype.itemsize)
    longest = max(1, min(context_of(config), held))
    report("Loading weights", 0.0)
    model = load(config, platform, longest, report)
    report("Sizing the KV pool", 0.0)
    layers, weight_bytes = model.attention_layers, held_bytes(model)
    demand = demand_of(
        config,
        free_bytes=free,
        available_bytes=platform.available_bytes(),
        weight_bytes=weight_bytes,
        kv_bytes_per_token=bytes_per_token(layers, kv_dtype),
        longest=longest,
    )
    fit = size(demand)
    report("Sizing the KV pool", 1.0)
    return assemble(
        model,
        layers,
        platform,
        fit,
        page_size=demand.page_size,
        dtype=platform.activations(DTYPES[config.model.dtype]),
        kv_dtype=kv_dtype,
        vocabulary=config.facts.vocabulary,
        weight_bytes=weight_bytes,
        step_tokens=_step_tokens(config, fit.rows),
        captures=captures_of(config, fit.rows),
        report=report,
        original_logprobs=switched_on(config.environment, ORIGINAL_LOGPROBS),
        rewrites=fewer_threads(config, platform),
    )


def load(config: Config, platform: Platform, longest: int, report: Report) -> CausalLM:
    """The model with its weights, for requests of up to `longest` tokens."""
    dtype = DTYPES[config.model.dtype]
    return load_model(
        config.source,
        config.facts,
        platform.ops,
        dtype=platform.activations(dtype),
        matrix_dtype=dtype,
        blocks=platform.reads_blocks,
        int8_activations=config.quantization.activation_dtype == "int8",
        quantization=config.quantization.quantization,
        positions=context_of(config),
        longest=longest,
        progress=report,
        seed=config.runtime.random_seed or 0,
    )


def context_of(config: Config) -> int:
    """Longest prompt + output that is asked for, in tokens."""
    return config.model.context_length or config.facts.context


def fewer_threads(config: Config, platform: Platform) -> list[Rewrite]:
    asked = config.runtime.cpu_threads or 0
    if platform.threads >= asked:
        return []
    reason = "the system starts no more threads for this process (pids limit, ulimit -u)"
    return [_rewrite("cpu_threads", asked, platform.threads, reason)]


def settings_of(config: Config) -> PlatformSettings:
    return PlatformSettings(
        threads=config.runtime.cpu_threads or None,
        deterministic=bool(config.runtime.enable_deterministic_inference),
        pinned=switched_on(config.environment, PINNED),
        kernels=not config.runtime.disable_cpu_kernels,
    )


@dataclass(frozen=True)
class Captures:
    """Which decode steps are captured; no sizes = none."""

    sizes: tuple[int, ...] = ()
    exact: bool = False
    """a capture serves its own size only"""
    rewrites: tuple[Rewrite, ...] = ()
    """sizes that were asked for and are not captured"""


def captures_of(config: Config, rows: int) -> Captures:
    """Sizes asked for, or one that serves every batch up to DEFAULT_CAPTURE rows.

    --cuda-graph-max-bs leaves larger ones out; more rows than a worker has are never needed.
    """
    runtime, exact = config.runtime, bool(config.optimization.disable_cuda_graph_padding)
    if runtime.disable_cuda_graph:
        return Captures()
    asked, most = runtime.cuda_graph_bs or (), runtime.cuda_graph_max_bs
    limit = min(most or max(asked, default=DEFAULT_CAPTURE), rows)
    sizes = asked or (range(1, limit + 1) if exact else (limit,))
    kept = tuple(size for size in sizes if size <= limit) or (limit,)
    rewrites = []
    reason = f"at most {rows} requests run at once"
    if most is not None and most > rows:
        rewrites.append(_rewrite("cuda_graph_max_bs", most, rows, reason))
    if asked and set(kept) != set(asked):
        why = reason if limit == rows else f"--cuda-graph-max-bs is {most}"
        rewrites.append(_rewrite("cuda_graph_bs", asked, kept, why))
    return Captures(kept, exact, tuple(rewrites))


def assemble(
    model: RunnableModel,
    layers: Sequence[AttentionLayer],
    platform: Platform,
    fit: Size,
    *,
    page_size: int,
    dtype: torch.dtype,
    vocabulary: int,
    kv_dtype: torch.dtype | None = None,
    weight_bytes: int = 0,
    step_tokens: int = 1024,
    captures: Captures = Captures(),
    report: Report = lambda stage, fraction: None,
    original_logprobs: bool = False,
    rewrites: Sequence[Rewrite] = (),
) -> Worker:
    """A worker around a loaded model of `dtype`; its KV is kept in `kv_dtype`, if given.
    `rewrites`: what the platform did not allow as it was asked for."""
    kv = PagedKV(layers, fit.pages, page_size, kv_dtype or dtype, platform.device())
    slots = RowStates(fit.rows, fit.context, page_size, fit.pages)
    attention = platform.attention_backend(layers, kv, dtype, fit.context + 1)
    inputs = StepInputs(slots, step_tokens, kv.empty_page)
    runner = runner_of(platform, model, attention, inputs, captures, report)
    capacity = Capacity(
        pages=fit.pages,
        page_size=page_size,
        rows=fit.rows,
        context=fit.context,
        vocabulary=vocabulary,
        weight_bytes=weight_bytes,
        kv_bytes=kv.nbytes,
        cache_share=fit.cache_share if kv.lazy else None,
        graph_bytes=runner.nbytes,
        available_bytes=platform.available_bytes(),
        rewrites=(*rewrites, *fit.rewrites, *captures.rewrites),
        instructions=platform.instructions,
    )
    return Worker(
        capacity=capacity,
        slots=slots,
        kv=kv,
        attention=attention,
        runner=runner,
        head=TokenHead(
            model, platform.sampling(), slots, vocabulary, original_logprobs=original_logprobs
        ),
        inputs=inputs,
        trim=platform.trim,
    )


def runner_of(
    platform: Platform,
    model: RunnableModel,
    attention: AttentionBackend,
    inputs: StepInputs,
    captures: Captures,
    report: Report,
) -> Runner:
    """Eager, or captured where the platform can and steps were asked for."""
    eager, recorder = EagerRunner(model, attention), platform.recorder()
    if recorder is None or not captures.sizes:
        return eager
    steps = capture_steps(
        eager,
        recorder,
        inputs,
        attention,
        captures.sizes,
        lambda fraction: report("Capturing decode steps", fraction),
    )
    nbytes = recorder.nbytes + sum(step.graph.nbytes for step in steps)
    return CapturedRunner(eager, attention, steps, nbytes=nbytes, exact=captures.exact)


def demand_of(
    config: Config,
    *,
    free_bytes: int,
    available_bytes: int,
    weight_bytes: int,
    kv_bytes_per_token: int,
    longest: int,
) -> Demand:
    """What the flags ask of a device with so much memory."""
    return Demand(
        free_bytes=free_bytes,
        available_bytes=available_bytes,
        weight_bytes=weight_bytes,
        kv_bytes_per_token=kv_bytes_per_token,
        page_size=config.memory.page_size or config.platform.page_sizes[0],
        context=context_of(config),
        longest=longest,
        rows=config.schedule.max_running_requests or DEFAULT_ROWS,
        static_fraction=config.memory.mem_fraction_static,
        max_total_tokens=config.memory.max_total_tokens,
    )


def _step_tokens(config: Config, rows: int) -> int:
    """Tokens of the longest usual step: a chunk of prompts and one token for every row."""
    chunk = config.schedule.chunked_prefill_size or 0
    return min(LARGEST_STEP_BUFFER, max(chunk, 1) + rows)


def _rewrite(field: str, before: object, after: object, reason: str) -> Rewrite:
    return Rewrite(field=field, before=before, after=after, rule="build", reason=reason)
