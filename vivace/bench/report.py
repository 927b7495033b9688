"""The printed result: SGLang's lines, in its order and format, each with its definition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vivace.bench.metrics import BenchmarkMetrics, LatencySummary

WIDTH = 50
LABEL = 40
PARTS = ("mean", "median", "p90", "p95", "p99")
"""What is printed of each latency."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the block repeats from the command."""

    backend: str
    request_rate: float | str
    """A number, or "trace"."""
    max_concurrency: int | None
    cache_report: bool = False


@dataclass(frozen=True)
class Line:
    """One line: "label:   value"; `definition` is printed with --explain."""

    label: str
    value: str
    definition: str

    def __str__(self) -> str:
        return f"{self.label + ':':<{LABEL}} {self.value:<10}"


@dataclass(frozen=True)
class Separator:
    """A separating line with a title."""

    title: str
    character: str = "-"

    def __str__(self) -> str:
        return f"{self.title:{self.character}^{WIDTH}}"


def render(metrics: BenchmarkMetrics, setting: Setting) -> str:
    """The whole block, ready to print."""
    rows = [str(row) for row in report_rows(metrics, setting)]
    return "\n".join(["", *rows, "=" * WIDTH])


def explain(metrics: BenchmarkMetrics, setting: Setting) -> str:
    """Every line of the block with what it means."""
    lines = [row for row in report_rows(metrics, setting) if isinstance(row, Line)]
    return "\n".join(f"{line.label}\n    {line.definition}" for line in lines)


def report_rows(metrics: BenchmarkMetrics, setting: Setting) -> Iterator[Line | Separator]:
    yield Separator(" Serving Benchmark Result ", "=")
    yield from _setting_lines(setting)
    yield from _count_lines(metrics)
    yield from _rate_lines(metrics)
    if metrics.request_goodput is not None:
        yield Line(
            "Request goodput (req/s)",
            f"{metrics.request_goodput:.2f}",
            "Successful requests that kept every limit of --goodput, divided by the duration.",
        )
    if setting.cache_report:
        yield from _cache_lines(metrics)
    yield from _latency_lines(metrics)


def _setting_lines(setting: Setting) -> Iterator[Line]:
    limit = setting.max_concurrency
    yield Line("Backend", setting.backend, "The protocol the client spoke (--backend).")
    yield Line(
        "Traffic request rate",
        str(setting.request_rate),
        "Requests sent per second on average (Poisson); inf = all at once; trace = recorded times.",
    )
    yield Line(
        "Max request concurrency",
        "not set" if limit is None else str(limit),
        "Most requests the client keeps open; others wait in the client, outside every latency.",
    )


def _count_lines(metrics: BenchmarkMetrics) -> Iterator[Line]:
    again = metrics.total_output_retokenized
    yield Line(
        "Successful requests",
        str(metrics.completed),
        "Requests answered with HTTP 200 and to the end.",
    )
    yield Line(
        "Benchmark duration (s)",
        f"{metrics.duration:.2f}",
        "From the first send to the end of the last answer (SGLang adds one /get_server_info).",
    )
    yield Line(
        "Total input tokens",
        str(metrics.total_input),
        "Prompt lengths of the successful requests by the client's tokenizer.",
    )
    yield Line("Total input text tokens", str(metrics.total_input), "Those that are text: all.")
    yield Line("Total input vision tokens", "0", "Those that are images: this client sends none.")
    yield Line(
        "Total generated tokens",
        str(metrics.total_output),
        "Completion tokens as the server counts them; the asked length where it does not say.",
    )
    yield Line(
        "Total generated tokens (retokenized)",
        "not counted" if again is None else str(again),
        "Tokens of the received text, encoded again by the client. Differs where ids do not "
        "survive text (special tokens, broken UTF-8).",
    )


def _rate_lines(metrics: BenchmarkMetrics) -> Iterator[Line]:
    yield _rate("Request throughput (req/s)", metrics.request_throughput, "Successful / duration.")
    yield _rate(
        "Input token throughput (tok/s)", metrics.input_throughput, "Input tokens / duration."
    )
    yield _rate(
        "Output token throughput (tok/s)",
        metrics.output_throughput,
        "Generated tokens / duration.",
    )
    yield _rate(
        "Peak output token throughput (tok/s)",
        metrics.max_output_tokens_per_s,
        "Most tokens that came within one second of the run (buckets of 1 s).",
    )
    yield Line(
        "Peak concurrent requests",
        str(metrics.max_concurrent_requests),
        "Most requests that touched the same second; at a border it can exceed the limit.",
    )
    yield _rate(
        "Total token throughput (tok/s)",
        metrics.total_throughput,
        "(Input + generated tokens) / duration.",
    )
    yield _rate(
        "Concurrency",
        metrics.concurrency,
        "Sum of the end-to-end latencies / duration: requests in flight on average.",
    )
    if metrics.accept_length is not None:
        yield _rate(
            "Accept length",
            metrics.accept_length,
            "Tokens accepted per speculative step, the server's average since its start.",
        )


def _cache_lines(metrics: BenchmarkMetrics) -> Iterator[Line | Separator]:
    yield Separator("Cache Hits")
    meaning = "Prompt tokens the server took from its prefix cache, as it reports them."
    report = metrics.cache
    if report is None:
        yield Line("Total cached tokens", "not reported", meaning)
        return
    yield Line(
        "Total prompt tokens",
        str(report.total_prompt_tokens),
        "Prompt lengths by the server's count, where it reported cached tokens.",
    )
    yield Line("Total cached tokens", str(report.total_cached_tokens), meaning)
    yield _rate("Cache hit rate (%)", report.hit_rate_pct, "Cached tokens / prompt tokens.")
    for tier in ("device", "host", "storage"):
        yield Line(
            f"{tier.capitalize()} cached tokens",
            str(getattr(report, f"{tier}_cached_tokens")),
            f"Those found in the {tier} tier of the cache.",
        )


def _latency_lines(metrics: BenchmarkMetrics) -> Iterator[Line | Separator]:
    yield Separator("End-to-End Latency")
    e2e = "from sending a request to the end of its answer"
    yield from _distribution("E2E Latency", metrics.e2e, PARTS, e2e)
    yield Separator("Time to First Token")
    ttft = "from sending a request to the first piece of its answer that is not empty"
    yield from _distribution("TTFT", metrics.ttft, PARTS, ttft)
    yield Separator("Time per Output Token (excl. 1st token)")
    tpot = "(E2E - TTFT) / (output tokens - 1) of one request, over requests with more than one"
    yield from _distribution("TPOT", metrics.tpot, PARTS, tpot)
    yield Separator("Inter-Token Latency")
    itl = (
        "gap between two pieces of an answer, divided equally among the new tokens where the "
        "server counts them (native back ends)"
    )
    yield from _distribution("ITL", metrics.itl, (*PARTS, "max"), itl)


def _distribution(
    name: str, values: LatencySummary, parts: tuple[str, ...], meaning: str
) -> Iterator[Line]:
    for part in parts:
        title = part.upper() if part.startswith("p") else part.capitalize()
        yield _rate(f"{title} {name} (ms)", getattr(values, part), f"{title} of: {meaning}.")


def _rate(label: str, value: float, definition: str) -> Line:
    return Line(label, f"{value:.2f}", definition)
