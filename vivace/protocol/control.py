"""Control commands frontend -> engine and their replies; they wait until no step is in flight."""

from __future__ import annotations

from typing import Any

import msgspec

from vivace.protocol.output import Deltas
from vivace.protocol.request import Cancel, Request


class FlushCache(msgspec.Struct, frozen=True, tag="flush_cache"):
    """Drop the prefix cache; refused (ok=False) while requests run or wait."""


class GetState(msgspec.Struct, frozen=True, tag="get_state"):
    """Ask for an `EngineState`."""


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Take no new request (503), finish what runs, then reply. `timeout` in seconds."""

    timeout: float


class Command(msgspec.Struct, frozen=True, tag="command"):
    """A control command with a ticket; answered by exactly one `Reply` with the same ticket."""

    ticket: int
    """frontend << 40 | counter, like a request key"""
    body: FlushCache | GetState | Drain


class Histogram(msgspec.Struct, frozen=True, array_like=True):
    """Cumulative histogram: `counts[i]` observations <= `bounds[i]`; the last bound is +inf."""

    bounds: list[float]
    counts: list[int]
    total: float


class Series(msgspec.Struct, frozen=True, array_like=True):
    """One series of a metric with labels of its own. Names in `_total` count, others are gauges."""

    name: str
    labels: dict[str, str]
    value: float | Histogram


class Metrics(msgspec.Struct, kw_only=True):
    """Engine-side metrics by SGLang's names without the `sglang:` prefix."""

    gauges: dict[str, float] = {}
    counters: dict[str, float] = {}
    histograms: dict[str, Histogram] = {}
    series: list[Series] = []


class EngineState(msgspec.Struct, kw_only=True, tag="state"):
    """What /server_info, /metrics and the tests look at."""

    running: int
    waiting: int
    total_tokens: int
    """KV capacity"""
    used_tokens: int
    """held by live requests (not merely cached)"""
    cached_tokens: int
    """evictable: in the prefix tree, held by nobody"""
    last_gen_throughput: float
    steps: int
    audit: list[str]
    """findings of the KV audit; empty when every page has exactly one explanation"""
    metrics: Metrics
    memory: dict[str, float] = {}
    """weight, kvcache, kvcache_resident, graph: GB; token_capacity: tokens"""
    executor: str = ""
    pid: int = 0
    instructions: str = ""
    """as in `Capacity`"""


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    ticket: int
    ok: bool
    message: str = ""
    state: EngineState | None = None


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Engine -> every frontend, once it can serve; `capacity` is what was sized on the device."""

    epoch: int
    capacity: Capacity


class Rewrite(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that was decided for the user. `field`: the option's name, or a retired one;
    `typed`: the user had asked for something else."""

    field: str
    before: Any
    after: Any
    rule: str
    reason: str
    typed: bool = False


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What the device can hold, known after weights are loaded."""

    pages: int
    page_size: int
    rows: int
    """sequences that can run at once (max_running_requests after sizing)"""
    context: int
    """longest prompt + output in tokens"""
    vocabulary: int
    weight_bytes: int = 0
    kv_bytes: int = 0
    cache_share: int | None = None
    """pages beyond which cached prefixes go before memory is taken for new ones (see
    kv/pages.py); None: all pages have their memory, there is none to take or give back"""
    graph_bytes: int = 0
    """of captured steps and their buffers"""
    available_bytes: int = 0
    rewrites: tuple[Rewrite, ...] = ()
    """settings that the device or the pool did not allow as they were"""
    instructions: str = ""
    """whose operations compute, with which instruction set: "native kernels, avx2" """

    @property
    def tokens(self) -> int:
        return self.pages * self.page_size


class Down(msgspec.Struct, frozen=True, tag="down"):
    """Supervisor -> frontends: the engine died (reason) and is, or is not, being restarted."""

    reason: str
    restarting: bool
    refused: list[int] = []
    """keys of requests that were found to kill engines"""
    suspects: dict[int, int] = {}
    """key -> `Request.suspect` of those that were in a step in which an engine died"""


ToEngine = Request | Cancel | Command
ToFrontend = Deltas | Reply | Ready | Down
