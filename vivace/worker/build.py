"""From a Config to a Worker: platform, weights, KV pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from vivace.config.environment import switched_on
from vivace.models.loading import load_model
from vivace.platforms.attention import AttentionBackend, AttentionLayer
from vivace.platforms.platform import Platform, PlatformSettings, load_platform
from vivace.protocol.control import Capacity
from vivace.worker.heads import TokenHead
from vivace.worker.held import held_bytes
from vivace.worker.inputs import StepInputs
from vivace.worker.kv_memory import PagedKV, bytes_per_token
from vivace.worker.runner import (
    CapturedRunner,
    EagerRunner,
    RunnableModel,
    Runner,
    capture_steps,
)
from vivace.worker.sizing import Demand, Size, size
from vivace.worker.slots import Slots
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
LARGEST_STEP_BUFFER = 16384
"""tokens; longer steps enlarge the buffers when they come"""


def build(config: Config, report: Report) -> Worker:
    """Load the platform and the weights, size the pool with what is left, and assemble."""
    platform = load_platform(config.platform, settings_of(config))
    dtype = DTYPES[config.model.dtype]
    context = config.model.context_length or config.facts.context
    kv_dtype = KV_DTYPES[config.memory.kv_cache_dtype]
    # What a checkpoint claims is allocated for only as far as the memory could ever hold it.
    held = platform.available_bytes() // config.facts.kv_bytes_per_token(kv_dtype.itemsize)
    longest = max(1, min(context, held))
    model = load_model(
        config.source,
        config.facts,
        platform.ops,
        dtype=platform.activations(dtype),
        matrix_dtype=dtype,
        blocks=platform.reads_blocks,
        narrow=config.quantization.activation_dtype == "int8",
        quantization=config.quantization.quantization,
        positions=context,
        longest=longest,
        progress=report,
        implementation=config.model.model_impl,
        seed=config.runtime.random_seed or 0,
    )
    report("Sizing the KV pool", 0.0)
    layers = model.attention_layers
    page_size = config.memory.page_size or platform.facts.page_sizes[0]
    fit = size(_demand(config, platform, layers, kv_dtype, page_size, longest))
    worker = assemble(
        model,
        layers,
        platform,
        fit,
        page_size=page_size,
        dtype=platform.activations(dtype),
        kv_dtype=kv_dtype,
        vocabulary=config.facts.vocabulary,
        weight_bytes=held_bytes(model),
        step_tokens=_step_tokens(config, fit.rows),
        captures=captures_of(config, fit.rows),
        report=report,
        original_logprobs=switched_on(config.environment, ORIGINAL_LOGPROBS),
    )
    report("Sizing the KV pool", 1.0)
    return worker


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


def captures_of(config: Config, rows: int) -> Captures:
    """Sizes asked for, or one that serves every batch up to DEFAULT_CAPTURE rows.

    --cuda-graph-max-bs leaves larger ones out; more rows than a worker has are never needed.
    """
    runtime, exact = config.runtime, bool(config.optimization.disable_cuda_graph_padding)
    if runtime.disable_cuda_graph:
        return Captures()
    asked = runtime.cuda_graph_bs or ()
    most = min(runtime.cuda_graph_max_bs or max(asked, default=DEFAULT_CAPTURE), rows)
    sizes = asked or (range(1, most + 1) if exact else (most,))
    return Captures(tuple(size for size in sizes if size <= most) or (most,), exact)


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
) -> Worker:
    """A worker around a loaded model of `dtype`; its KV is kept in `kv_dtype`, if given."""
    kv = PagedKV(layers, fit.pages, page_size, kv_dtype or dtype, platform.device())
    slots = Slots(fit.rows, fit.context, page_size, fit.pages)
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
        graph_bytes=runner.nbytes,
        available_bytes=platform.available_bytes(),
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


def _demand(
    config: Config,
    platform: Platform,
    layers: Sequence[AttentionLayer],
    kv_dtype: torch.dtype,
    page_size: int,
    context: int,
) -> Demand:
    return Demand(
        total_bytes=platform.facts.memory_bytes,
        available_bytes=platform.available_bytes(),
        kv_bytes_per_token=bytes_per_token(layers, kv_dtype),
        page_size=page_size,
        context=context,
        static_fraction=config.memory.mem_fraction_static,
        max_total_tokens=config.memory.max_total_tokens,
        max_running_requests=config.schedule.max_running_requests,
    )


def _step_tokens(config: Config, rows: int) -> int:
    """Tokens of the longest usual step: a chunk of prompts and one token for every row."""
    chunk = config.schedule.chunked_prefill_size or 0
    return min(LARGEST_STEP_BUFFER, max(chunk, 1) + rows)
