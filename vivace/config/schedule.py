"""Flags of the scheduler: how many run, in which order, in chunks of what size."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.config.option import no_effect, not_available, option


@dataclass(frozen=True)
class ScheduleOptions:
    max_running_requests: int | None = option(
        help="Maximum number of sequences that run at once, in each engine; engines of "
        "--enable-dp-attention divide it; default: 256 on the CPU."
    )
    prefill_max_requests: int | None = option(
        help="Maximum number of requests whose prompts share a step; default: no limit."
    )
    max_queued_requests: int | None = option(
        help="Most waiting requests, default: no limit; more are answered with 503."
    )
    chunked_prefill_size: int | None = option(
        help="Prompt tokens of one step, default: 1024 on the CPU; longer prompts continue later. "
        "-1: never cut."
    )
    chunked_prefill_stall_target: float = option(
        50.0,
        "Milliseconds that prompts take between two steps of streams: so many for each of up to "
        "four prompts that wait, and eight of those steps (below 50 in proportion fewer); chunks "
        "are cut to the measured speed. 0: prompts come first.",
    )
    max_prefill_tokens: int = option(16384, "Prompt tokens admitted to one step.")
    schedule_policy: str = option(
        "fcfs",
        "Order of the waiting queue.",
        choices=[
            "fcfs", "lpm", "dfs-weight", "lof", "random", "priority", "routing-key", "hrrn",
            "shortest-prefill-first",
        ],
        values={
            name: not_available("this order is not supported yet", "use fcfs")
            for name in ("routing-key", "hrrn", "shortest-prefill-first")
        },
    )  # fmt: skip
    enable_priority_scheduling: bool = option(
        False, "Requests carry a priority; larger runs first and may preempt."
    )
    schedule_low_priority_values_first: bool = option(
        False, "Smaller priority numbers are more important."
    )
    priority_scheduling_preemption_threshold: int = option(
        10, "Priority difference from which a request preempts another."
    )
    abort_on_priority_when_disabled: bool = option(
        False, "Refuse requests with a priority while priorities are off."
    )
    schedule_conservativeness: float = option(
        1.0, "Larger admits fewer requests and retracts less."
    )
    enable_mixed_chunk: bool = option(False, "Prompt chunks and decoding share a step.")
    disable_overlap_schedule: bool = option(
        False, "Schedule a step only when the previous one is done."
    )
    num_continuous_decode_steps: int = option(
        1, "Decode steps between two checks of the waiting queue."
    )
    scheduler_recv_interval: int = option(
        1, "Steps between two checks for new messages while requests run."
    )
    enable_dynamic_chunking: bool = option(
        False, "Vary the chunk so that every chunk of a pipeline takes the same time."
    )
    enable_prefill_delayer: bool = option(
        False,
        "Delay prompts until all ranks have one.",
        cpu=no_effect("it matters with data parallelism only"),
    )
    prefill_delayer_max_delay_passes: int = option(
        30, "Maximum delay, in steps.", cpu=no_effect("it matters with data parallelism only")
    )
    prefill_delayer_token_usage_low_watermark: float | None = option(
        help="Do not delay while KV usage is below this share.",
        cpu=no_effect("it matters with data parallelism only"),
    )
    prefill_delayer_forward_passes_buckets: tuple[float, ...] | None = option(
        help="Histogram bounds of delayed steps.",
        cpu=no_effect("it matters with data parallelism only"),
    )
    prefill_delayer_wait_seconds_buckets: tuple[float, ...] | None = option(
        help="Histogram bounds of the delay in seconds.",
        cpu=no_effect("it matters with data parallelism only"),
    )
