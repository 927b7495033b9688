"""Counters of the HTTP layer. Labels come from the route table, so their number is bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})
OTHER = "other"


class HttpMetrics:
    """Requests and answers by endpoint, counted in the request turn (plain integers)."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._responses: Counter[tuple[str, str, str]] = Counter()
        self._active: Counter[tuple[str, str]] = Counter()

    def begin(self, endpoint: str | None, method: str) -> tuple[str, str]:
        """Count a request; `endpoint` is a path of the route table or None for anything else."""
        label = (endpoint or OTHER, method if method in METHODS else OTHER)
        self._requests[label] += 1
        self._active[label] += 1
        return label

    def end(self, label: tuple[str, str], status: int) -> None:
        self._active[label] -= 1
        self._responses[(*label, str(status))] += 1

    def families(self, names: list[str], values: list[str]) -> Iterator[Metric]:
        """Prometheus families; `names` and `values` are the labels every metric carries."""
        requests = CounterMetricFamily(
            "sglang:http_requests",
            "HTTP requests received, by endpoint and method.",
            labels=[*names, "endpoint", "method"],
        )
        for key, count in self._requests.items():
            requests.add_metric([*values, *key], count)
        responses = CounterMetricFamily(
            "sglang:http_responses",
            "HTTP responses sent, by endpoint, method and status.",
            labels=[*names, "endpoint", "method", "status_code"],
        )
        for key, count in self._responses.items():
            responses.add_metric([*values, *key], count)
        active = GaugeMetricFamily(
            "sglang:http_requests_active",
            "HTTP requests in progress, by endpoint and method.",
            labels=[*names, "endpoint", "method"],
        )
        for key, count in self._active.items():
            active.add_metric([*values, *key], count)
        yield from (requests, responses, active)
