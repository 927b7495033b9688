"""What happened: SGLang's log lines, and the engine's metrics."""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping
from collections.abc import Sequence as Values
from dataclasses import dataclass
from itertools import accumulate

from vivace.engine.drafts.stats import DraftStats
from vivace.engine.sequence import Sequence
from vivace.engine.sequence_table import SequenceTable
from vivace.engine.settings import EngineSettings
from vivace.engine.step_builder import StepBuilder
from vivace.protocol.messages import FINISH_ABORT, Finish, Request
from vivace.protocol.metrics import Histogram, Metrics, Series

logger = logging.getLogger("vivace.engine")

SECONDS_TO_FIRST_TOKEN = (
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400),
)
SECONDS_BETWEEN_TOKENS = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08),
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8),
)
SECONDS_OF_A_REQUEST = (
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 1200),
    *(1800, 2400),
)
SECONDS_IN_QUEUE = (
    *(0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60),
    *(70, 80, 90, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1200, 1400, 1600),
)
RETRACTIONS_OF_A_REQUEST = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 50, 75, 100)
TOKENS_OF_A_REQUEST = (
    *(100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10000),
    *(12000, 15000, 20000, 22000, 25000, 30000, 35000, 40000, 66000, 99000, 132000, 300000),
)

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
class EngineLoad:
    """How full the engine is now, in requests and tokens."""

    running: int
    waiting: int
    used_tokens: int
    total_tokens: int

    @property
    def usage(self) -> float:
        return self.used_tokens / self.total_tokens


class StepTokens:
    """Tokens of a step, as metrics count them."""

    def __init__(self) -> None:
        self.total = self.first = 0
        """`first`: of requests that metrics count, those that had no token before them"""
        self.gaps: defaultdict[float, int] = defaultdict(int)  # others take longer to make
        """seconds since the token before -> how many of the others"""

    @property
    def counted(self) -> int:
        return self.first + sum(self.gaps.values())

    def add(self, tokens: int, before: float | None, sequence: Sequence, now: float) -> None:
        """`before`: when the sequence drew its last token; None: these follow its prompt. Of those
        that come at once each took an equal part of the time."""
        self.total += tokens
        if not sequence.log_metrics:
            return
        if before is None:
            self.first += tokens
        else:
            self.gaps[(now - before) / tokens] += tokens

    def add_each(
        self, moments: list[float], tokens: list[int], came: dict[int, int], now: float
    ) -> None:
        """Of several sequences when each drew its last token, how many each has drawn now, and the
        tally of these."""
        if moments and moments.count(moments[0]) == len(moments):  # the usual case is quicker
            groups = {(moments[0], count): each for count, each in came.items()}
        else:
            groups = Counter(zip(moments, tokens, strict=True))
        for (before, count), each in groups.items():
            if count:
                self.total += count * each
                self.gaps[(now - before) / count] += each * count


class Stats:
    """Booked by the scheduler at plan and commit; read by /metrics and the log."""

    def __init__(
        self,
        settings: EngineSettings,
        table: SequenceTable,
        now: float,
        startup: Mapping[str, float],
    ) -> None:
        """`startup`: seconds of the stages of the engine's start."""
        self._table = table
        self._log_interval = settings.decode_log_interval
        self.steps = 0
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self.gen_throughput = 0.0
        self.cache_hit_rate = 0.0
        self._decode_steps = 0
        self._generated = 0
        self._decode_mark = now
        self._prefill_tokens = 0
        self._prefill_mark = now
        self._captured = False
        self._idle = True
        self._startup = startup
        self._realtime = dict.fromkeys(MODES, 0)
        self.drafts = DraftStats()
        self._stages = {stage: Distribution(SECONDS_OF_A_REQUEST) for stage in STAGES}
        self._distributions = _distributions(settings)
        self._to_first_token = self._distributions["time_to_first_token_seconds"]
        self._between_tokens = self._distributions["inter_token_latency_seconds"]

    def load(self) -> EngineLoad:
        table, leases = self._table, self._table.pages.leases
        return EngineLoad(
            running=table.num_running,
            waiting=table.num_waiting,
            used_tokens=leases.used * leases.page_size,
            total_tokens=leases.total * leases.page_size,
        )

    def restart_throughput(self) -> None:
        """Nothing lived for a while: the time until the next step counts for no throughput."""
        self._idle = True

    def record_step(self, step: StepBuilder, now: float) -> None:
        """A step goes out; one with chunks is logged, unless it is for probes or the warm-up."""
        if self._idle:
            self._idle = False
            self._decode_mark = self._prefill_mark = now
            self._generated = self._prefill_tokens = 0
        prompts = len(step.chunks) - step.ahead
        if not prompts:
            return
        computed = step.chunk_tokens
        self._realtime["prefill_compute"] += computed
        self._realtime["prefill_cache"] += step.num_cached_tokens
        if computed + step.num_cached_tokens:
            self.cache_hit_rate = step.num_cached_tokens / (computed + step.num_cached_tokens)
        seconds = max(now - self._prefill_mark, 1e-9)
        throughput, self._prefill_tokens = self._prefill_tokens / seconds, computed
        self._prefill_mark = now
        if logger.isEnabledFor(logging.INFO) and any(one.log_metrics for one in step.chunks):
            load = self.load()
            logger.info(
                "Prefill batch, #new-seq: %d, #new-token: %d, #cached-token: %d, "
                "token usage: %.2f, #running-req: %d, #queue-req: %d, "
                "input throughput (token/s): %.2f",
                *(prompts, computed, step.num_cached_tokens, load.usage),
                *(load.running - prompts, load.waiting, throughput),
            )

    def record_first_token(self, sequence: Sequence, now: float) -> None:
        """A sequence computed its prompt for the first time and got its first token."""
        sequence.first_token_time = now
        if not sequence.log_metrics:
            return
        self._to_first_token.observe(max(0.0, now - sequence.arrival_time))
        waited = max(0.0, sequence.start_time - sequence.arrival_time)
        self._distributions["queue_time_seconds"].observe(waited)
        self._stages["prefill_waiting"].observe(waited)
        self._stages["prefill_forward"].observe(now - sequence.start_time)
        self._distributions["prompt_tokens_histogram"].observe(sequence.num_prompt_tokens)
        self.counters["prompt_tokens_total"] += sequence.num_prompt_tokens
        self.counters["cached_tokens_total"] += sequence.num_cached_tokens

    def record_tokens(self, drawn: StepTokens) -> None:
        """A step was committed."""
        self.steps += 1
        self.counters["generation_tokens_total"] += drawn.counted
        self._generated += drawn.total
        self._realtime["decode"] += drawn.total
        for seconds, count in drawn.gaps.items():
            self._between_tokens.observe(seconds, count)

    def record_decode(self, captured: bool, now: float) -> None:
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
        load = self.load()
        logger.info(
            "Decode batch, #running-req: %d, #token: %d, token usage: %.2f, %scuda graph: %s, "
            "gen throughput (token/s): %.2f, #queue-req: %d",
            *(load.running, load.used_tokens, load.usage, self.drafts.log_part(), self._captured),
            *(self.gen_throughput, load.waiting),
        )

    def record_retraction(self, sequence: Sequence) -> None:
        self.counters["num_retracted_requests_total"] += 1
        self.counters["num_retracted_input_tokens_total"] += sequence.num_prompt_tokens
        self.counters["num_retracted_output_tokens_total"] += sequence.num_output_tokens
        logger.info(
            "Retracted request %s (%d/%d tokens generated), requeued",
            *(
                sequence.request.rid,
                sequence.num_output_tokens,
                sequence.max_len - sequence.num_prompt_tokens,
            ),
        )

    def record_request(self, request: Request) -> None:
        self.counters["num_requests_total"] += request.log_metrics

    def record_finish(self, sequence: Sequence, finish: Finish | None, now: float) -> None:
        """A request is over; None: the client had its answer already (stop string)."""
        if not sequence.log_metrics:
            return
        if finish is not None and finish.type == FINISH_ABORT:
            self.counters["num_aborted_requests_total"] += 1
            return
        self._distributions["e2e_request_latency_seconds"].observe(
            max(0.0, now - sequence.arrival_time)
        )
        self._distributions["generation_tokens_histogram"].observe(sequence.num_output_tokens)
        self._distributions["num_retractions"].observe(sequence.retractions)
        if sequence.first_token_time:
            self._stages["decode_forward"].observe(max(0.0, now - sequence.first_token_time))

    def metrics(
        self, *, ratio: float, evicted_tokens: int, decoding_tokens: int, cpu_seconds: float
    ) -> Metrics:
        """`decoding_tokens`: of the sequences that decode; `cpu_seconds`: of the process."""
        load = self.load()
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
                **self.drafts.gauges(),
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
                *self.drafts.series(),
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


class Distribution:
    """Counts observations per bucket; `snapshot` makes them cumulative."""

    def __init__(self, bounds: Values[float]) -> None:
        self._bounds = sorted({*(float(bound) for bound in bounds), math.inf})
        self._counts = [0] * len(self._bounds)
        self._total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def snapshot(self) -> Histogram:
        return Histogram(self._bounds, list(accumulate(self._counts)), self._total)
