"""How busy the engine is: GET /metrics (Prometheus text, SGLang's names) and GET /v1/loads."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from typing import Any

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

from vivace.frontend.errors import BadRequest
from vivace.protocol.messages import EngineState
from vivace.protocol.metrics import Histogram, Metrics, Series
from vivace.server.body import Body
from vivace.server.context import Context
from vivace.server.responses import HTTPError, json_response

PREFIX = "sglang:"
ENGINE_TYPE = "unified"
RANKS = {"tp_rank": "0", "pp_rank": "0"}
"""beside dp_rank, the engine"""


async def metrics(context: Context, _request: web.Request, _body: Body) -> web.Response:
    """Engine and HTTP layer in one page; 404 unless --enable-metrics."""
    if not context.settings.metrics:
        raise HTTPError(404, "metrics are off; start the server with --enable-metrics")
    states = await context.engine_states()
    common = {"model_name": context.served.name, "engine_type": ENGINE_TYPE, **RANKS}
    found: list[Metric] = []
    for rank, state in states.items():
        labels = {**common, "dp_rank": str(rank)}
        found += families([*series(state.metrics), *cache_config(context)], labels)
        found.append(resident_kv(state, labels))
    labels = {**common, "dp_rank": "0"}  # the HTTP layer before them
    found += context.http_metrics.families(list(labels), list(labels.values()))
    page = exposition(found)
    return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})


class Scrape(Collector):
    """The families of one scrape, as prometheus_client wants them."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def exposition(found: list[Metric]) -> bytes:
    """Prometheus text of metric families; those with one name become one."""
    unique: dict[str, Metric] = {}
    for metric in found:
        first = unique.setdefault(metric.name, metric)
        if first is not metric:
            first.samples += metric.samples
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Scrape([unique[name] for name in sorted(unique)]))
    return generate_latest(registry)


def series(metrics: Metrics) -> Iterator[Series]:
    """Everything the engine measures."""
    for group in (metrics.gauges, metrics.counters, metrics.histograms):
        for name, value in group.items():
            yield Series(name, {}, value)
    yield from metrics.series


def cache_config(context: Context) -> Iterator[Series]:
    capacity = context.frontend.capacity
    if capacity is not None:
        sizes = {"page_size": str(capacity.page_size), "num_pages": str(capacity.pages)}
        yield Series("cache_config_info", sizes, 1.0)


def resident_kv(state: EngineState, labels: dict[str, str]) -> Metric:
    """How much of the KV pool has memory behind it; SGLang has no such number."""
    text = "Bytes of the KV pool that have memory behind them."
    gauge = GaugeMetricFamily("vivace:kv_resident_bytes", text, labels=list(labels))
    gauge.add_metric(list(labels.values()), state.memory.get("kvcache_resident", 0.0) * 2**30)
    return gauge


def families(found: Iterable[Series], labels: dict[str, str]) -> Iterator[Metric]:
    """One family per series; `labels` are put on all of them."""
    for one in found:
        name, value = PREFIX + one.name, one.value
        every = {**labels, **one.labels}
        names, values = list(every), list(every.values())
        if isinstance(value, Histogram):
            histogram = HistogramMetricFamily(name, describe(one.name), labels=names)
            histogram.add_metric(values, buckets(value), value.total)
            yield histogram
        elif name.endswith("_total"):
            counter = CounterMetricFamily(name, describe(one.name), labels=names)
            counter.add_metric(values, value)
            yield counter
        else:
            gauge = GaugeMetricFamily(name, describe(one.name), labels=names)
            gauge.add_metric(values, value)
            yield gauge


def buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """(upper bound as text, cumulative count), ending with +Inf."""
    return [
        ("+Inf" if math.isinf(bound) else floatToGoString(bound), float(count))
        for bound, count in zip(histogram.bounds, histogram.counts, strict=True)
    ]


def describe(name: str) -> str:
    """HELP text: the name in words, with its unit where the name has one."""
    return name.removesuffix("_total").replace("_", " ").capitalize() + "."


SECTIONS = ("core", "memory", "spec", "lora", "disagg", "queues", "all")


async def loads(context: Context, request: web.Request, _body: Body) -> web.Response:
    """Query: dp_rank, include (comma-separated sections), format (json)."""
    wanted = check_query(request, len(context.frontend.engines))
    states = await context.engine_states()
    ranks = {rank: state for rank, state in states.items() if wanted in (None, rank)}
    loads = [rank_load(context, state, rank) for rank, state in ranks.items()]
    running, waiting = (sum(load[f"num_{what}_reqs"] for load in loads) for what in WHAT)
    count = max(1, len(loads))
    return json_response(
        {
            "timestamp": time.time(),
            "dp_rank_count": len(context.frontend.engines),
            "loads": loads,
            "aggregate": {
                "total_running_reqs": running,
                "total_waiting_reqs": waiting,
                "total_reqs": running + waiting,
                "avg_token_usage": sum(load["token_usage"] for load in loads) / count,
                "avg_throughput": sum(load["gen_throughput"] for load in loads) / count,
            },
        }
    )


WHAT = ("running", "waiting")


def check_query(request: web.Request, engines: int) -> int | None:
    """The rank that is asked for; None: all."""
    query = request.query
    wanted = query.get("dp_rank")
    if wanted is not None and wanted not in map(str, range(engines)):
        raise BadRequest("dp_rank", f"data-parallel ranks are 0 to {engines - 1}")
    if query.get("format", "json") != "json":
        raise BadRequest("format", "only json; Prometheus text is at /metrics")
    for section in filter(None, query.get("include", "").split(",")):
        if section not in SECTIONS:
            raise BadRequest("include", f"sections are {', '.join(SECTIONS)}")
    return None if wanted is None else int(wanted)


def rank_load(context: Context, state: EngineState, rank: int) -> dict[str, Any]:
    usage = state.used_tokens / state.total_tokens if state.total_tokens else 0.0
    capacity = context.frontend.capacity
    return {
        "dp_rank": rank,
        "num_running_reqs": state.running,
        "num_waiting_reqs": state.waiting,
        "num_total_reqs": state.running + state.waiting,
        "num_used_tokens": state.used_tokens,
        "max_total_num_tokens": state.total_tokens,
        "token_usage": usage,
        "gen_throughput": state.last_gen_throughput,
        "max_running_requests": capacity.rows if capacity else None,
        "memory": state.memory,
    }
