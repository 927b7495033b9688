"""The arithmetic: from the records of a run to the figures of the output block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vivace.bench.transport import Record

MS = 1000.0
GOODPUT_KEYS = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, kw_only=True, slots=True)
class LatencySummary:
    """Summary of one latency in milliseconds; zeros when nothing was observed."""

    mean: float = 0.0
    median: float = 0.0
    std: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0
    count: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheReport:
    """Prompt tokens found in the server's prefix cache, by the tier that held them."""

    total_prompt_tokens: int
    total_cached_tokens: int
    device_cached_tokens: int
    host_cached_tokens: int
    storage_cached_tokens: int

    @property
    def hit_rate_pct(self) -> float:
        prompt = self.total_prompt_tokens
        return 100.0 * self.total_cached_tokens / prompt if prompt else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkMetrics:
    """Everything the block prints and the JSONL record holds. Times in ms, duration in seconds."""

    completed: int
    failed: int
    duration: float
    total_input: int
    total_output: int
    total_output_retokenized: int | None
    """None when there was no tokenizer to count with."""
    request_throughput: float
    input_throughput: float
    output_throughput: float
    output_throughput_retokenized: float | None
    total_throughput: float
    total_throughput_retokenized: float | None
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    concurrency: float
    accept_length: float | None
    e2e: LatencySummary
    ttft: LatencySummary
    tpot: LatencySummary
    itl: LatencySummary
    request_goodput: float | None
    """Requests per second that kept every limit of --goodput; None when none was asked."""
    cache: CacheReport | None
    """None when the server says nothing of cached tokens."""


def calculate_metrics(
    records: Sequence[Record],
    duration: float,
    *,
    retokenized: Sequence[int] | None = None,
    accept_length: float | None = None,
    goodput: Mapping[str, float] | None = None,
    streamed: bool = True,
) -> BenchmarkMetrics:
    """Compute all figures. `retokenized`: token counts of the answers, parallel to `records`.

    `streamed` False: there are no token times, so TTFT is E2E and TPOT and ITL stay empty.
    """
    good = [record for record in records if record.success]
    seconds = max(duration, 1e-9)
    inputs = sum(record.input_len for record in good)
    outputs = sum(record.output_len for record in good)
    again = (
        None
        if retokenized is None
        else sum(
            count for count, record in zip(retokenized, records, strict=True) if record.success
        )
    )
    peak_tokens, peak_requests = peaks(good)
    return BenchmarkMetrics(
        completed=len(good),
        failed=len(records) - len(good),
        duration=duration,
        total_input=inputs,
        total_output=outputs,
        total_output_retokenized=again,
        request_throughput=len(good) / seconds,
        input_throughput=inputs / seconds,
        output_throughput=outputs / seconds,
        output_throughput_retokenized=None if again is None else again / seconds,
        total_throughput=(inputs + outputs) / seconds,
        total_throughput_retokenized=None if again is None else (inputs + again) / seconds,
        max_output_tokens_per_s=peak_tokens,
        max_concurrent_requests=peak_requests,
        concurrency=sum(record.latency for record in good) / seconds,
        accept_length=accept_length,
        e2e=latency_summary([record.latency for record in good]),
        ttft=latency_summary([record.ttft for record in good]),
        tpot=latency_summary([v for r in good if (v := tpot(r)) is not None] if streamed else []),
        itl=latency_summary([gap for record in good for gap in record.itl]),
        request_goodput=None if not goodput else count_within_limits(good, goodput) / seconds,
        cache=cache_report(good),
    )


def cache_report(records: Sequence[Record]) -> CacheReport | None:
    """Over the requests whose cached tokens the server reported.

    Prompts are as long as the server says: it sees a chat template's tokens too. A server that
    names no tiers has one, the device.
    """
    counted = [record for record in records if record.cached_tokens is not None]
    if not counted:
        return None
    total = sum(record.cached_tokens or 0 for record in counted)
    host = sum(record.cached_tiers.get("host", 0) for record in counted)
    storage = sum(record.cached_tiers.get("storage", 0) for record in counted)
    return CacheReport(
        total_prompt_tokens=sum(
            record.input_len if record.prompt_tokens is None else record.prompt_tokens
            for record in counted
        ),
        total_cached_tokens=total,
        device_cached_tokens=total - host - storage,
        host_cached_tokens=host,
        storage_cached_tokens=storage,
    )


def tpot(record: Record) -> float | None:
    """Seconds per output token after the first; None for answers of one token."""
    if record.output_len < 2:
        return None
    return (record.latency - record.ttft) / (record.output_len - 1)


def count_within_limits(records: Sequence[Record], goodput: Mapping[str, float]) -> int:
    """How many requests kept every limit (milliseconds by `ttft`, `tpot`, `e2el`)."""
    return sum(
        all(latency_value(record, key) * MS <= limit for key, limit in goodput.items())
        for record in records
    )


def latency_value(record: Record, key: str) -> float:
    if key == "tpot":
        return tpot(record) or 0.0
    return record.ttft if key == "ttft" else record.latency


def peaks(records: Sequence[Record]) -> tuple[float, int]:
    """(most output tokens, most requests) in any bucket of one second since the first send.

    A token's time is start + TTFT + the ITLs up to it. A request counts in every second it
    touches, so the number may exceed the concurrency limit at a border.
    """
    if not records:
        return 0.0, 0
    origin = min(record.start for record in records)
    tokens: dict[int, int] = {}
    requests: dict[int, int] = {}
    for record in records:
        for moment in token_times(record):
            second = int(moment - origin)
            tokens[second] = tokens.get(second, 0) + 1
        first = int(record.start - origin)
        last = int(record.start + record.latency - origin)
        for second in range(first, last + 1):
            requests[second] = requests.get(second, 0) + 1
    return float(max(tokens.values(), default=0)), max(requests.values(), default=0)


def token_times(record: Record) -> list[float]:
    """When each token came, on the client's clock."""
    moment = record.start + record.ttft
    times = [moment]
    for gap in record.itl:
        moment += gap
        times.append(moment)
    return times


def split_chunk_gaps(records: Sequence[Record], counts: Sequence[Sequence[int]]) -> None:
    """Divide each chunk gap of an OpenAI back end by the tokens of its chunk, in place.

    Done only when the server speculates (an accept length is known): then one chunk may hold
    several tokens. `counts[i][j]`: tokens of piece j of record i, counted by the tokenizer.
    """
    for record, pieces in zip(records, counts, strict=True):
        gaps: list[float] = []
        for gap, tokens in zip(record.itl, pieces[1:], strict=False):
            share = max(tokens, 1)
            gaps.extend([gap / share] * share)
        record.itl = gaps


def latency_summary(seconds: Sequence[float]) -> LatencySummary:
    """Summary in milliseconds. Percentiles interpolate linearly; std is of the population."""
    if not seconds:
        return LatencySummary()
    ordered = sorted(seconds)
    mean = math.fsum(ordered) / len(ordered)
    variance = math.fsum((value - mean) ** 2 for value in ordered) / len(ordered)
    return LatencySummary(
        mean=mean * MS,
        median=percentile(ordered, 50) * MS,
        std=math.sqrt(variance) * MS,
        p90=percentile(ordered, 90) * MS,
        p95=percentile(ordered, 95) * MS,
        p99=percentile(ordered, 99) * MS,
        max=ordered[-1] * MS,
        count=len(ordered),
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of sorted values, linear between the two nearest ranks."""
    place = (len(ordered) - 1) * percent / 100.0
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
