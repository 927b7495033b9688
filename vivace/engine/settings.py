"""What the engine needs from the configuration, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vivace.engine.drafts.gains import DraftShape
from vivace.protocol.messages import STATE_INTERVAL, Capacity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vivace.config.config import Config


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Decisions of scheduler and loop. Sizes are tokens, times are seconds."""

    rows: int = 256
    """sequences that run at once"""
    depth: int = 2
    """plans in flight"""
    sequence_depth: int | None = None
    """plans in flight that may mention one sequence when another token is planned for it; None =
    all of them. 2 plans ahead of tokens nobody knows yet; 1 leaves a pipeline no token to wait
    for, and its stages take turns with cohorts of the sequences"""
    micro_batch_size: int = 1 << 31
    """sequences of one step (--pp-max-micro-batch-size)"""
    num_speculative_tokens: int = 0
    """draft tokens that a decode span may carry behind the known one"""
    draft_tree: tuple[int, int] | None = None
    """passes in which a tree of drafts is made, and branches that each but the first goes on from;
    None: drafts are chains"""
    reports_ready: bool = False
    """as in `Capacity`"""
    drafts_catch_up: bool = False
    """what the drafter has not read of a prompt it can read later"""
    fixed_draft_width: bool = False
    """every span carries as many as there are; otherwise as many as pay for what they cost"""
    eos_ids: tuple[int, ...] = ()

    chunk: int | None = 8192
    """prompt tokens (with mixed chunks: all tokens) of one step; None = prompts stay whole"""
    dynamic_chunks: bool = False
    """chunks take as long as each other: shorter ones behind a longer context"""
    chunk_smoothing: float = 0.75
    """how far, 0..1, they go from `chunk` to what is predicted"""
    stall_target: float = 0.05
    """time a chunk may take beside streams for each of up to four prompts; 0 = prompts first"""
    max_prefill_tokens: int = 16384
    """prompt tokens one step admits; the first request is always admitted"""
    prefill_max_requests: int | None = None
    mixed: bool = False
    """prompt chunks and decoding share a step"""
    continuous_decode_steps: int = 1
    """decode steps between two looks at the waiting queue"""
    receive_interval: int = 1
    """iterations of the loop between two looks at the mailbox while steps are in flight"""

    policy: str = "fcfs"
    priorities: bool = False
    low_values_first: bool = False
    preemption_threshold: int = 10
    abort_on_priority_when_disabled: bool = False
    max_queued: int | None = None
    waiting_timeout: float | None = None
    running_timeout: float | None = None

    conservativeness: float = 1.0
    initial_ratio: float = 0.7
    """share of the remaining output a running request is expected to produce"""
    final_ratio_factor: float = 0.14
    ratio_decay_steps: int = 600
    clip_new_tokens: int = 4096
    """output tokens of a request that the estimate believes in"""
    retract_steps: int = 20
    """decode steps that must fit after a retraction"""
    shared_prefix_wait: int = 32
    """shared tokens for which a request waits while a running prompt computes them"""
    retract_every: int = 0
    """test aid: retract a sequence each so many decode steps; 0 = never"""

    state_interval: int = STATE_INTERVAL
    """tokens from one recurrent state that is saved, so that others may start there, to the next"""

    prefix_cache: bool = True
    eviction: str = "lru"
    seed: int = 0

    stream_interval: int = 1
    coarse_interval: int = 64
    """tokens between two deltas of a request that does not stream"""
    decode_log_interval: int = 40
    time_to_first_token_buckets: tuple[float, ...] = ()
    """histogram bounds; empty = the defaults of stats.py"""
    inter_token_latency_buckets: tuple[float, ...] = ()
    e2e_latency_buckets: tuple[float, ...] = ()

    @property
    def draft_shape(self) -> DraftShape:
        width = self.num_speculative_tokens
        if self.draft_tree is None:
            return DraftShape(width, width)
        return DraftShape(width, *self.draft_tree, trees=True)


def engine_settings(config: Config, capacity: Capacity) -> EngineSettings:
    """The engine's view of a resolved configuration and of what the device can hold."""
    schedule, memory, runtime = config.schedule, config.memory, config.runtime
    logging = config.logging
    chunk, stages = schedule.chunked_prefill_size, config.parallel.pp_size
    rows = min(schedule.max_running_requests or capacity.rows, capacity.rows)
    batch = (config.parallel.pp_max_micro_batch_size if stages > 1 else None) or rows
    return EngineSettings(
        rows=min(rows, batch * config.depth),
        depth=config.depth,
        sequence_depth=1 if stages > 1 else None,
        micro_batch_size=batch,
        num_speculative_tokens=config.draft_width,
        draft_tree=config.draft_tree,
        reports_ready=capacity.reports_ready,
        drafts_catch_up=config.draft is not None and config.draft.head is None,
        fixed_draft_width=config.speculative.speculative_fixed_width,
        eos_ids=tuple(config.facts.eos_ids),
        chunk=chunk if chunk is not None and chunk > 0 else None,
        dynamic_chunks=schedule.enable_dynamic_chunking and stages > 1,
        stall_target=schedule.chunked_prefill_stall_target / 1000,
        max_prefill_tokens=schedule.max_prefill_tokens or 16384,
        prefill_max_requests=schedule.prefill_max_requests,
        mixed=schedule.enable_mixed_chunk,
        continuous_decode_steps=max(1, schedule.num_continuous_decode_steps),
        receive_interval=max(1, schedule.scheduler_recv_interval),
        policy=schedule.schedule_policy,
        priorities=schedule.enable_priority_scheduling,
        low_values_first=schedule.schedule_low_priority_values_first,
        preemption_threshold=schedule.priority_scheduling_preemption_threshold,
        abort_on_priority_when_disabled=schedule.abort_on_priority_when_disabled,
        max_queued=schedule.max_queued_requests,
        conservativeness=schedule.schedule_conservativeness,
        prefix_cache=not memory.disable_radix_cache,
        state_interval=config.mamba.mamba_track_interval,
        eviction=memory.radix_eviction_policy,
        seed=runtime.random_seed or 0,
        stream_interval=max(1, runtime.stream_interval),
        decode_log_interval=max(1, logging.decode_log_interval),
        time_to_first_token_buckets=tuple(logging.bucket_time_to_first_token or ()),
        inter_token_latency_buckets=tuple(logging.bucket_inter_token_latency or ()),
        e2e_latency_buckets=tuple(logging.bucket_e2e_request_latency or ()),
        **_from_environment(config.environment),
    )


_NUMBERS: dict[str, tuple[str, type[int] | type[float]]] = {
    "SGLANG_INIT_NEW_TOKEN_RATIO": ("initial_ratio", float),
    "SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR": ("final_ratio_factor", float),
    "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS": ("ratio_decay_steps", int),
    "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": ("clip_new_tokens", int),
    "SGLANG_RETRACT_DECODE_STEPS": ("retract_steps", int),
    "SGLANG_REQ_WAITING_TIMEOUT": ("waiting_timeout", float),
    "SGLANG_REQ_RUNNING_TIMEOUT": ("running_timeout", float),
}
"""that ask for nothing where they are not above 0"""
_SMOOTHING = "SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR"
_SWITCHES_OFF = frozenset({"", "0", "false", "no", "off"})


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Settings that SGLang takes from variables; config/ has read and recorded them."""
    found: dict[str, Any] = {}
    for variable, (name, number) in _NUMBERS.items():
        if variable not in environment:
            continue
        try:
            value = number(environment[variable])
        except ValueError as error:
            raise ValueError(
                f"{variable}={environment[variable]!r} is not a number; unset it or give one"
            ) from error
        if value > 0:
            found[name] = value
    if _SMOOTHING in environment:
        found["chunk_smoothing"] = float(environment[_SMOOTHING])
    if environment.get("SGLANG_TEST_RETRACT", "").lower() not in _SWITCHES_OFF:
        found["retract_every"] = int(environment.get("SGLANG_TEST_RETRACT_INTERVAL", "3"))
    return found
