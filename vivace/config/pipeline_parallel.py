"""Which layers each stage of a pipeline has, and what goes with stages."""

from __future__ import annotations

from collections.abc import Mapping

from vivace.config.config import ModelContext, Options, Slices
from vivace.config.errors import ConfigError

PARTITION = "SGLANG_PP_LAYER_PARTITION"
FLAG = "--pipeline-parallel-size"


def stage_layers(layers: int, stages: int, environment: Mapping[str, str]) -> list[range]:
    """The layers of each stage: as SGLANG_PP_LAYER_PARTITION says, or equally many, the first
    stages one more, because the last one has the head. Raises ConfigError."""
    if stages > layers:
        raise ConfigError(f"{FLAG} {stages}: the model has {layers} layers; give {layers} or less")
    each, more = divmod(layers, stages)
    counts = [each + (stage < more) for stage in range(stages)]
    if (text := environment.get(PARTITION, "").strip()) and stages > 1:
        counts = read_partition(text, layers, stages)
    ends = [sum(counts[: stage + 1]) for stage in range(stages)]
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]


def read_partition(text: str, layers: int, stages: int) -> list[int]:
    """Raises ConfigError."""
    parts = [part.strip() for part in text.split(",")]
    stated = all(part.isascii() and part.isdecimal() and 0 < len(part) < 6 for part in parts)
    counts = [int(part) for part in parts] if stated else []
    if not counts or min(counts) < 1:
        raise ConfigError(
            f"{PARTITION}={text!r}: give the number of layers of each stage, at least 1, as 12,12"
        )
    if len(counts) != stages:
        raise ConfigError(
            f"{PARTITION}={text} has {len(counts)} numbers for {FLAG} {stages}; give {stages}"
        )
    if sum(counts) != layers:
        raise ConfigError(
            f"{PARTITION}={text} has {sum(counts)} layers, the model {layers}; give numbers with "
            f"the sum {layers}"
        )
    return counts


def plans_in_flight(slices: Slices) -> int:
    """Of one stage two, where the next step is planned while one runs. Of a pipeline one in each
    stage, and as many more as are asked for; so many parts of the running requests take turns."""
    parallel = slices.parallel
    if parallel.pp_size > 1:
        return parallel.pp_size + parallel.pp_async_batch_depth
    return 1 if slices.schedule.disable_overlap_schedule else 2


def pipeline_parallel(options: Options, context: ModelContext) -> list[str]:
    parallel, stages = options.parallel, options.parallel.pp_size
    if stages == 1:
        return list(idle_flags(options))
    stage_layers(context.facts.layers, stages, options.environment)
    schedule, notices = options.schedule, list[str]()
    if schedule.enable_dynamic_chunking and schedule.chunked_prefill_size == -1:
        notices.append("--enable-dynamic-chunking has no effect: prompts stay whole")
    size, rows = parallel.pp_max_micro_batch_size, schedule.max_running_requests
    if size is not None and rows is not None and rows > size * plans_in_flight(options):
        notices.append(
            f"--max-running-requests {rows}: {plans_in_flight(options)} micro-batches of "
            f"--pp-max-micro-batch-size {size} run at once, which are fewer"
        )
    return notices


def idle_flags(options: Options) -> list[str]:
    parallel, found = options.parallel, list[str]()
    if parallel.pp_max_micro_batch_size is not None:
        found.append("--pp-max-micro-batch-size")
    if parallel.pp_async_batch_depth:
        found.append("--pp-async-batch-depth")
    if options.schedule.enable_dynamic_chunking:
        found.append("--enable-dynamic-chunking")
    if options.environment.get(PARTITION):
        found.append(PARTITION)
    return [f"{flag} has no effect: there is one stage ({FLAG})" for flag in found]
