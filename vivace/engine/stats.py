"""What happened: SGLang's log lines, and the engine's metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vivace.engine.metrics import (
    RETRACTIONS_OF_A_REQUEST,
    SECONDS_BETWEEN_TOKENS,
    SECONDS_IN_QUEUE,
    SECONDS_OF_A_REQUEST,
    SECONDS_TO_FIRST_TOKEN,
    TOKENS_OF_A_REQUEST,
    Distribution,
)
from vivace.engine.sequence import Sequence
from vivace.engine.settings import EngineSettings
from vivace.engine.step_builder import StepBuilder
from vivace.protocol.control import Metrics, Series
from vivace.protocol.output import FINISH_ABORT, Finish
from vivace.protocol.request import Request

logger = logging.getLogger("vivace.engine")

_COUNTERS = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "cached_tokens_total",
    "num_requests_total",
    "num_aborted_requests_total",
    "num_retracted_requests_total",
    "num_retracted_input_tokens_total",
    "num_retracted_output_tokens_total",
    "cuda_graph_passes_total",
)

MODES = ("prefill_compute", "prefill_cache", "decode")
"""Tokens computed of prompts, found in the prefix cache, and drawn."""
STAGES = ("prefill_waiting", "prefill_forward", "decode_forward")
"""Of a request: until it gets a row, until its first token, until its end."""


@dataclass(frozen=True, slots=True)
class Load:
    """How full the engine is now, in requests and tokens."""

    running: int
    waiting: int
    used_tokens: int
    total_tokens: int

    @property
    def usage(self) -> float:
        return self.used_tokens / self.total_tokens


class Stats:
    """Booked by the scheduler at plan and commit; read by /metrics and the log."""

    def __init__(
        self,
        settings: EngineSettings,
        load: Callable[[], Load],
        now: float,
        startup: Mapping[str, float],
    ) -> None:
        """`startup`: seconds of the stages of the engine's start."""
        self._load = load
        self._log_interval = settings.decode_log_interval
        self.steps = 0
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self.gen_throughput = 0.0
        self.cache_hit_rate = 0.0
        self.decode_tokens = 0
        """positions that decoding sequences hold, as of the last log line"""
        self._decode_steps = 0
        self._generated = 0
        self._decode_mark = now
        self._prefill_tokens = 0
        self._prefill_mark = now
        self._captured = False
        self._resting = True
        self._startup = startup
        self._realtime = dict.fromkeys(MODES, 0)
        self._stages = {stage: Distribution(SECONDS_OF_A_REQUEST) for stage in STAGES}
        self._distributions = _distributions(settings)
        self._first_token = self._distributions["time_to_first_token_seconds"]
        self._between_tokens = self._distributions["inter_token_latency_seconds"]

    def rested(self) -> None:
        """Nothing lived for a while: the time until the next step counts for no throughput."""
        self._resting = True

    def planned(self, draft: StepBuilder, now: float) -> None:
        """A step goes out; one with chunks is logged, unless it is for probes or the warm-up."""
        if self._resting:
            self._resting = False
            self._decode_mark = self._prefill_mark = now
            self._generated = self._prefill_tokens = 0
        if not draft.chunks:
            return
        computed = draft.chunk_tokens
        self._realtime["prefill_compute"] += computed
        self._realtime["prefill_cache"] += draft.cached
        if computed + draft.cached:
            self.cache_hit_rate = draft.cached / (computed + draft.cached)
        seconds = max(now - self._prefill_mark, 1e-9)
        throughput, self._prefill_tokens = self._prefill_tokens / seconds, computed
        self._prefill_mark = now
        if logger.isEnabledFor(logging.INFO) and any(one.log_metrics for one in draft.chunks):
            load = self._load()
            logger.info(
                "Prefill batch, #new-seq: %d, #new-token: %d, #cached-token: %d, "
                "token usage: %.2f, #running-req: %d, #queue-req: %d, "
                "input throughput (token/s): %.2f",
                *(len(draft.chunks), computed, draft.cached, load.usage),
                *(load.running - len(draft.chunks), load.waiting, throughput),
            )

    def started(self, sequence: Sequence, now: float) -> None:
        """A sequence computed its prompt for the first time and got its first token."""
        sequence.first_token = now
        if not sequence.log_metrics:
            return
        self._first_token.observe(max(0.0, now - sequence.arrival))
        waited = max(0.0, sequence.started - sequence.arrival)
        self._distributions["queue_time_seconds"].observe(waited)
        self._stages["prefill_waiting"].observe(waited)
        self._stages["prefill_forward"].observe(now - sequence.started)
        self._distributions["prompt_tokens_histogram"].observe(sequence.prompt)
        self.counters["prompt_tokens_total"] += sequence.prompt
        self.counters["cached_tokens_total"] += sequence.cached

    def drew(self, tokens: int, counted: int, moments: list[float], now: float) -> None:
        """A step landed with `tokens` new ones; metrics of requests show `counted` of them.

        `moments`: when each decoding sequence got its token before, of those that are counted.
        """
        self.steps += 1
        self.counters["generation_tokens_total"] += counted
        self._generated += tokens
        self._realtime["decode"] += tokens
        if moments:
            self._between_tokens.observe_since(moments, now)

    def decoded(self, captured: bool, now: float) -> None:
        """Some of the step's sequences were decoding."""
        self._captured = captured
        self.counters["cuda_graph_passes_total"] += captured
        self._decode_steps += 1
        if self._decode_steps % self._log_interval == 0:
            self._log_decode(now)

    def _log_decode(self, now: float) -> None:
        seconds = max(now - self._decode_mark, 1e-9)
        self.gen_throughput = self._generated / seconds
        self._generated, self._decode_mark = 0, now
        load = self._load()
        logger.info(
            "Decode batch, #running-req: %d, #token: %d, token usage: %.2f, cuda graph: %s, "
            "gen throughput (token/s): %.2f, #queue-req: %d",
            *(load.running, load.used_tokens, load.usage, self._captured),
            *(self.gen_throughput, load.waiting),
        )

    def retracted(self, sequence: Sequence) -> None:
        self.counters["num_retracted_requests_total"] += 1
        self.counters["num_retracted_input_tokens_total"] += sequence.prompt
        self.counters["num_retracted_output_tokens_total"] += sequence.generated
        logger.info(
            "Retracted request %s (%d/%d tokens generated), requeued",
            *(sequence.request.rid, sequence.generated, sequence.limit - sequence.prompt),
        )

    def received(self, request: Request) -> None:
        self.counters["num_requests_total"] += request.log_metrics

    def ended(self, sequence: Sequence, finish: Finish | None, now: float) -> None:
        """A request is over; None: the client had its answer already (stop string)."""
        if not sequence.log_metrics:
            return
        if finish is not None and finish.type == FINISH_ABORT:
            self.counters["num_aborted_requests_total"] += 1
            return
        self._distributions["e2e_request_latency_seconds"].observe(max(0.0, now - sequence.arrival))
        self._distributions["generation_tokens_histogram"].observe(sequence.generated)
        self._distributions["num_retractions"].observe(sequence.retractions)
        if sequence.first_token:
            self._stages["decode_forward"].observe(max(0.0, now - sequence.first_token))

    def metrics(
        self, *, ratio: float, evicted_tokens: int, decoding_tokens: int, cpu_seconds: float
    ) -> Metrics:
        """`decoding_tokens`: of the sequences that decode; `cpu_seconds`: of the process."""
        load = self._load()
        return Metrics(
            gauges={
                "num_running_reqs": load.running,
                "num_queue_reqs": load.waiting,
                "num_used_tokens": load.used_tokens,
                "token_usage": load.usage,
                "full_token_usage": load.usage,
                "max_total_num_tokens": load.total_tokens,
                "gen_throughput": self.gen_throughput if load.running else 0.0,
                "cache_hit_rate": self.cache_hit_rate,
                "new_token_ratio": ratio,
                "is_cuda_graph": float(self._captured),
                "decode_sum_seq_lens": decoding_tokens,
                "engine_startup_time": sum(self._startup.values()),
                "engine_load_weights_time": self._startup.get("loading_weights", 0.0),
                "num_retracted_reqs": self.counters["num_retracted_requests_total"],
            },
            counters={
                **{name: float(value) for name, value in self.counters.items()},
                "evicted_tokens_total": float(evicted_tokens),
            },
            histograms={
                name: distribution.snapshot() for name, distribution in self._distributions.items()
            },
            series=[
                *(
                    Series("realtime_tokens_total", {"mode": mode}, float(count))
                    for mode, count in self._realtime.items()
                ),
                *(
                    Series("per_stage_req_latency_seconds", {"stage": stage}, found.snapshot())
                    for stage, found in self._stages.items()
                ),
                *(
                    Series("startup_latency_breakdown_seconds_max", {"context": stage}, seconds)
                    for stage, seconds in self._startup.items()
                ),
                Series("process_cpu_seconds_total", {"component": "scheduler"}, cpu_seconds),
            ],
        )


def _distributions(settings: EngineSettings) -> dict[str, Distribution]:
    first = settings.time_to_first_token_buckets or SECONDS_TO_FIRST_TOKEN
    between = settings.inter_token_latency_buckets or SECONDS_BETWEEN_TOKENS
    whole = settings.e2e_latency_buckets or SECONDS_OF_A_REQUEST
    return {
        "time_to_first_token_seconds": Distribution(first),
        "inter_token_latency_seconds": Distribution(between),
        "e2e_request_latency_seconds": Distribution(whole),
        "queue_time_seconds": Distribution(SECONDS_IN_QUEUE),
        "num_retractions": Distribution(RETRACTIONS_OF_A_REQUEST),
        "prompt_tokens_histogram": Distribution(TOKENS_OF_A_REQUEST),
        "generation_tokens_histogram": Distribution(TOKENS_OF_A_REQUEST),
    }
