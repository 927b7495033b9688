"""GET /metrics: SGLang's names in Prometheus text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from vivace.protocol.control import Histogram, Metrics
from vivace.server.context import Context
from vivace.server.errors import Refusal
from vivace.server.state import engine_state

PREFIX = "sglang:"
LABELS = ["model_name", "engine_type"]
ENGINE_TYPE = "unified"


async def metrics(context: Context, _request: web.Request, _body: bytes) -> web.Response:
    """Engine and HTTP layer in one page; 404 unless --enable-metrics."""
    if not context.settings.metrics:
        raise Refusal(404, "metrics are off; start the server with --enable-metrics")
    state = await engine_state(context)
    values = [context.served.name, ENGINE_TYPE]
    page = exposition(
        [
            *families(state.metrics, values),
            *context.http_metrics.families(LABELS, values),
        ]
    )
    return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})


class Scrape(Collector):
    """The families of one scrape, as prometheus_client wants them."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def exposition(found: list[Metric]) -> bytes:
    """Prometheus text of metric families; the first of two with one name wins."""
    unique = {metric.name: metric for metric in reversed(found)}
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Scrape([unique[name] for name in sorted(unique)]))
    return generate_latest(registry)


def families(metrics: Metrics, values: list[str]) -> Iterator[Metric]:
    """Families of a `Metrics` message; `values` are those of LABELS."""
    for name, value in metrics.gauges.items():
        gauge = GaugeMetricFamily(PREFIX + name, describe(name), labels=LABELS)
        gauge.add_metric(values, value)
        yield gauge
    for name, value in metrics.counters.items():
        counter = CounterMetricFamily(PREFIX + name, describe(name), labels=LABELS)
        counter.add_metric(values, value)
        yield counter
    for name, histogram in metrics.histograms.items():
        family = HistogramMetricFamily(PREFIX + name, describe(name), labels=LABELS)
        family.add_metric(values, buckets(histogram), histogram.total)
        yield family


def buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """(upper bound as text, cumulative count), ending with +Inf."""
    return [
        ("+Inf" if math.isinf(bound) else floatToGoString(bound), float(count))
        for bound, count in zip(histogram.bounds, histogram.counts, strict=True)
    ]


def describe(name: str) -> str:
    """HELP text: the name in words, with its unit where the name has one."""
    return name.removesuffix("_total").replace("_", " ").capitalize() + "."
