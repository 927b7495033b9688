"""How much fits: KV pages, rows and the longest request, from memory and settings."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from vivace.errors import CannotStart
from vivace.protocol.messages import STATE_INTERVAL, CacheGroup, Rewrite

GIB = 1 << 30
DEFAULT_SHARE = 0.25
"""of the memory that is free after loading, when nobody says: a CPU's memory is not ours alone"""
DEFAULT_MAX_BYTES = 4 * GIB
"""of the pool then; but a quarter of what the weights take, where these are large"""
ASKED_FRACTION = 0.8
"""stands in for --mem-fraction-static where only --max-total-tokens was given"""
RESERVE = 256 << 20
"""bytes for activations and the rest of the process"""
PAGE_COST = 256
"""bytes that book-keeping takes for a page: its owner, its versions, its place in the free list"""
MIN_POOL_TOKENS = 16
MAX_FRACTION = 0.99


class SizingError(CannotStart):
    """The model's KV does not fit; the text says what to change."""


@dataclass(frozen=True, kw_only=True)
class WindowDemand:
    """Layers of a cache group with a window."""

    window: int
    """tokens"""
    kv_bytes_per_token: int


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What sizing looks at. Bytes; None = not asked for."""

    free_bytes: int
    """of the device before the weights were loaded: what others hold is not ours to share out"""
    available_bytes: int
    """free now, with the weights loaded"""
    weight_bytes: int
    kv_bytes_per_token: int
    """of the layers that keep every token"""
    page_size: int
    context: int
    """longest prompt + output that is to be served, in tokens"""
    max_request_tokens: int | None = None
    """what the loaded model is prepared for"""
    rows: int
    """sequences that are to run at once (--max-running-requests)"""
    static_fraction: float | None = None
    """share of free_bytes for weights and KV together (--mem-fraction-static)"""
    max_total_tokens: int | None = None
    windows: tuple[WindowDemand, ...] = ()
    """groups of layers that keep only the last tokens"""
    window_slack: int = 0
    """tokens that a decoding row may have beside its window"""
    step_tokens: int = 0
    """prompt tokens of all steps in flight, which have KV in those groups, too"""
    window_ratio: float | None = None
    """tokens of each such group for a token of the first one (--swa-full-tokens-ratio); None: what
    all rows need at once"""
    workers: int = 1
    """that divide the memory of this machine; all bytes are of one's share"""
    state_bytes: int = 0
    """of the states of one row; 0: no layer has one"""
    drafts: int = 0
    """of a row in one step: each has a state behind it"""
    state_interval: int = STATE_INTERVAL
    """tokens of a prefix from one saved state to the next"""
    saved_states: int | None = None
    """most of these (--max-mamba-cache-size; 0 without a prefix cache)"""
    state_ratio: float = 0.9
    """memory of states for that of the rest of the pool (--mamba-full-memory-ratio)"""
    row_bytes: int = 0
    """that a drafter keeps of each row, beside pages"""
    draft_logits: int = 0
    """of a row in one step: float32 numbers"""

    @property
    def fixed_bytes(self) -> int:
        """Whatever the pool has: weights, and what a drafter keeps."""
        return self.weight_bytes + self.rows * self.row_bytes

    @property
    def page_bytes(self) -> int:
        return self.kv_bytes_per_token * self.page_size + PAGE_COST

    def other_groups(self, pages: int) -> tuple[CacheGroup, ...]:
        """Groups 1, 2 ... beside so many pages of the first one. Of windows never more than these:
        then the window has no use; enough for one row in any case. Of states one for each row to
        go on from, and one for every so many tokens of the pool."""
        groups: list[CacheGroup] = []
        for window in self.windows:
            group = CacheGroup(pages=pages, reach=window.window - 1)
            row = group.row_pages(self.window_slack, self.page_size)
            wanted = self.rows * row - (-self.step_tokens // self.page_size)
            if self.window_ratio is not None:
                wanted = math.ceil(self.window_ratio * pages)
            groups.append(msgspec.structs.replace(group, pages=min(pages, max(row, wanted))))
        rows = min(self.rows, pages)
        if self.state_bytes:
            count = rows + pages * self.page_size // self.state_interval
            count = _least(count, self.saved_states)
            groups.append(CacheGroup(pages=count, reach=1, state=True))
        return self.weigh(groups, rows)

    def weigh(self, groups: Sequence[CacheGroup], rows: int) -> tuple[CacheGroup, ...]:
        """With the bytes that they take of this rank."""
        each = [self.page_size * window.kv_bytes_per_token for window in self.windows]
        sizes = [group.pages * nbytes for group, nbytes in zip(groups, each, strict=False)]
        if len(groups) > len(sizes):
            sizes.append(count_slots(rows, self.drafts, groups[-1].pages) * self.state_bytes)
        weighed = zip(groups, sizes, strict=True)
        return tuple(msgspec.structs.replace(group, kv_bytes=nbytes) for group, nbytes in weighed)

    def pool_bytes(self, pages: int) -> int:
        """Of all groups, with so many pages in the first one."""
        groups = self.other_groups(pages)
        others = sum(group.kv_bytes + group.pages * PAGE_COST for group in groups)
        return pages * self.page_bytes + others

    def most_pages(self, nbytes: int) -> int:
        """The most that the first group can have in so many bytes."""
        low, high = 0, max(0, nbytes) // self.page_bytes
        if not (self.windows or self.state_bytes):
            return high
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.pool_bytes(middle) <= nbytes else (low, middle - 1)
        return low

    @property
    def fewest_pages(self) -> int:
        """of the first group, with which there is any use"""
        return -(-min(MIN_POOL_TOKENS, self.context) // self.page_size)

    @property
    def room(self) -> int:
        """Most that KV can take: what is free now, and what was free less the weights. Weights
        that are pages of a mapped file count as available now, and others may have come since."""
        free = min(self.available_bytes, self.free_bytes - self.weight_bytes)
        return free - self.rows * self.row_bytes - self.reserve

    @property
    def reserve(self) -> int:
        """for activations and the rest of the process"""
        return RESERVE + 4 * self.rows * self.draft_logits


@dataclass(frozen=True, kw_only=True)
class PoolSize:
    pages: int
    rows: int
    context: int
    cache_share: int
    """pages (Capacity.cache_share): those of one request of the whole context, which may be a
    conversation that pauses; all of them when the size was asked for"""
    others: tuple[CacheGroup, ...] = ()
    """groups of windows, then of states"""
    rewrites: tuple[Rewrite, ...] = ()
    """settings that did not fit as they were"""
    free_bytes: int = 0
    """`Demand.free_bytes` that it was made of"""


def count_slots(rows: int, drafts: int, pages: int) -> int:
    """Slots of a group of states with so many pages: see worker/state_slots.py."""
    return pages + rows * (2 + drafts) + 2


def size_pool(demand: Demand) -> PoolSize:
    """Pages, rows and context. Raises SizingError when not even a short request fits."""
    page, asked = demand.page_size, demand
    demand = fit_states(demand)
    allowed = demand.most_pages(_budget(demand))
    wanted = _wanted_pages(demand)
    pages = allowed if wanted is None else min(allowed, wanted)
    tokens = pages * page
    if pages < demand.fewest_pages:
        raise SizingError(_too_small(demand, allowed))
    context = _context(demand, tokens)
    fixed = demand.static_fraction is not None or demand.max_total_tokens is not None
    size = PoolSize(
        pages=pages,
        rows=min(demand.rows, pages),
        context=context,
        cache_share=pages if fixed else min(pages, -(-context // page)),
        others=demand.other_groups(pages),
        free_bytes=demand.free_bytes,
    )
    return replace(size, rewrites=tuple(_rewrites(asked, demand, size)))


def most_pages(demand: Demand) -> int:
    """Of the first group, whatever was asked for."""
    demand = fit_states(demand)
    return demand.most_pages(_budget(demand))


def fit_states(demand: Demand) -> Demand:
    """With as many rows as have room for their states, and the rest of that for saved ones: the
    ratio divides the pool, as in SGLang. One row in any case."""
    if not demand.state_bytes:
        return demand
    further = range(2, demand.rows + 1)
    rows = 1 + bisect_left(further, True, key=lambda n: not _rows_fit(replace(demand, rows=n)))
    most = _most_states(fit := replace(demand, rows=rows)) - count_slots(rows, demand.drafts, 0)
    return replace(fit, saved_states=_least(max(0, most), demand.saved_states))


def _rows_fit(demand: Demand) -> bool:
    needed = count_slots(demand.rows, demand.drafts, _least(demand.rows, demand.saved_states))
    return needed <= _most_states(demand)


def _most_states(demand: Demand) -> int:
    """In their share, and beside the least pool there is any use of."""
    budget, least = _budget(demand), replace(demand, state_bytes=0).pool_bytes(demand.fewest_pages)
    share = budget * demand.state_ratio / (1 + demand.state_ratio)
    return min(int(share), budget - least) // demand.state_bytes


def _least(count: int, limit: int | None) -> int:
    return count if limit is None else min(count, limit)


def _context(demand: Demand, tokens: int) -> int:
    return min(demand.context, tokens, demand.max_request_tokens or demand.context)


def _budget(demand: Demand) -> int:
    """Bytes for the KV pool: what was free before loading times the fraction, less the
    weights; without a wish a share of what is free now, with a largest size."""
    if demand.static_fraction is None and demand.max_total_tokens is None:
        most = max(DEFAULT_MAX_BYTES, demand.weight_bytes // 4)
        share = min(most, int(demand.available_bytes * DEFAULT_SHARE))
    else:
        fraction = demand.static_fraction or ASKED_FRACTION
        share = int(demand.free_bytes * fraction) - demand.fixed_bytes
    return max(0, min(share, demand.room))


def _wanted_pages(demand: Demand) -> int | None:
    """What was asked for, None: all that fits; without a wish no more than all rows can fill."""
    if demand.max_total_tokens is not None:
        return demand.max_total_tokens // demand.page_size
    if demand.static_fraction is not None and demand.kv_bytes_per_token:
        return None
    return demand.rows * -(-(demand.context + 1) // demand.page_size)


def _rewrites(asked: Demand, demand: Demand, size: PoolSize) -> Iterator[Rewrite]:
    """`demand`: what was asked for with the rows that have room for their states"""
    tokens, requested = size.pages * demand.page_size, demand.max_total_tokens
    whole = requested is not None and requested // demand.page_size == size.pages
    fraction = demand.static_fraction or ASKED_FRACTION
    if requested is not None and requested != tokens:
        reason = (
            f"whole pages of {demand.page_size} tokens" if whole else _memory_text(demand, fraction)
        )
        yield _rewrite("max_total_tokens", requested, tokens, reason)
    cut = demand.static_fraction is not None and (
        int(demand.free_bytes * demand.static_fraction) - demand.weight_bytes > demand.room
    )
    if cut and not whole:
        got = math.floor(1000 * (demand.room + demand.weight_bytes) / demand.free_bytes) / 1000
        reason = f"{_gib(demand.reserve)} of what is free are kept for activations and the process"
        yield _rewrite("mem_fraction_static", demand.static_fraction, got, reason)
    yield from _ratio_rewrites(demand, size)
    yield from _row_rewrites(asked, demand, size)
    if size.context < demand.context:
        reason = (
            f"the KV pool holds {tokens:,} tokens"
            if size.context == tokens
            else f"{_gib(demand.free_bytes)} were free before loading"
        )
        yield _rewrite("context_length", demand.context, size.context, reason)


def _ratio_rewrites(demand: Demand, size: PoolSize) -> Iterator[Rewrite]:
    ratio = demand.window_ratio
    if ratio is None:
        return
    windows = [group for group in size.others if not group.state]
    if not windows:
        reason = "no layer of this model keeps less than the context"
        yield _rewrite("swa_full_tokens_ratio", ratio, None, reason)
    elif any(group.pages != math.ceil(ratio * size.pages) for group in windows):
        got = round(max(group.pages for group in windows) / size.pages, 3)
        reason = "a window's pool holds at least one request, and no more tokens than the full one"
        yield _rewrite("swa_full_tokens_ratio", ratio, got, reason)


def _row_rewrites(asked: Demand, demand: Demand, size: PoolSize) -> Iterator[Rewrite]:
    count = 2 + demand.drafts + (asked.saved_states != 0)
    drafts = f" ({demand.drafts} behind drafts)" if demand.drafts else ""
    share = (
        f"a running request has {count} states of {_gib(demand.state_bytes)}{drafts}, and all may "
        f"take {demand.state_ratio:g} (--mamba-full-memory-ratio) times what KV has of "
        f"{_gib(_budget(demand))} (--mem-fraction-static)"
    )
    saved = sum(group.pages for group in size.others if group.state)
    if asked.saved_states and asked.saved_states != saved:
        enough = "one for each running request and each interval of the KV pool are enough"
        reason = share if saved == demand.saved_states else enough
        yield _rewrite("max_mamba_cache_size", asked.saved_states, saved, reason)
    if size.rows < asked.rows:
        pages = f"a running request needs a page of KV, and there are {size.pages:,}"
        reason = pages if size.rows < demand.rows else share
        yield _rewrite("max_running_requests", asked.rows, size.rows, reason)


def _rewrite(field: str, before: Any, after: Any, reason: str) -> Rewrite:
    return Rewrite(field=field, before=before, after=after, rule="size", reason=reason)


def _memory_text(demand: Demand, fraction: float) -> str:
    source = "" if demand.static_fraction is None else "--mem-fraction-static "
    return (
        f"{_gib(demand.free_bytes)} were free before loading, times {source}{fraction:g}, less "
        f"{_fixed_text(demand)}, at {_kib(demand.kv_bytes_per_token)} for a token"
        + "".join(
            f" and {_kib(window.kv_bytes_per_token)} for each of the last {window.window:,}"
            for window in demand.windows
        )
        + _states_text(demand)
    )


def _states_text(demand: Demand) -> str:
    if not demand.state_bytes:
        return ""
    count, size = count_slots(demand.rows, demand.drafts, 0), _gib(demand.state_bytes)
    return f", with {count} states of {size} (--max-running-requests {demand.rows})"


def _fixed_text(demand: Demand) -> str:
    kept = demand.rows * demand.row_bytes
    drafts = f" and {_gib(kept)} of {demand.rows} rows' features for drafts" if kept else ""
    return f"{_gib(demand.weight_bytes)} of weights{drafts}"


def _too_small(demand: Demand, allowed: int) -> str:
    """What is wrong, and what would help: the smallest fraction, or other numbers."""
    page, requested = demand.page_size, demand.max_total_tokens
    least = demand.fewest_pages * page
    if requested is not None and requested // page < demand.fewest_pages:
        return (
            f"--max-total-tokens {requested}: the smallest KV pool is {least} tokens "
            f"(pages of {page}); give {least} or more, or leave it out"
        )
    need = demand.pool_bytes(demand.fewest_pages)
    if demand.static_fraction is not None and need <= demand.room:
        memory = _memory_text(demand, demand.static_fraction)
    else:
        workers, flags = demand.workers, "--data-parallel-size, --tensor-parallel-size"
        share = "" if workers == 1 else f" for each of {workers} workers ({flags})"
        drafts = f" and the logits of {demand.rows} rows' drafts" if demand.draft_logits else ""
        memory = (
            f"{_gib(demand.free_bytes)} were free{share} before loading, less "
            f"{_fixed_text(demand)} and {_gib(demand.reserve)} for activations{drafts}, "
            f"{_gib(max(0, demand.room))} are left for KV{_states_text(demand)}"
        )
    return (
        f"the KV pool would hold {allowed * page} tokens: {memory}, and {least} tokens "
        f"take {_gib(need)}. {_remedy(demand, need)}"
    )


def _remedy(demand: Demand, need: int) -> str:
    fraction = math.ceil(1000 * (demand.fixed_bytes + need) / max(1, demand.free_bytes)) / 1000
    if need <= demand.room and fraction <= MAX_FRACTION:
        return (
            f"The smallest --mem-fraction-static that works is {fraction:g}; "
            "more of it holds longer and more requests"
        )
    smaller = ", lower --page-size" if demand.page_size > MIN_POOL_TOKENS else ""
    if demand.rows > 1 and (demand.row_bytes or demand.draft_logits):
        smaller += ", lower --max-running-requests"
    return f"Free memory (or raise the container's limit){smaller}, or choose a smaller model"


def _gib(count: int) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB // 10 else f"{count / (1 << 20):.2f} MiB"


def _kib(count: int) -> str:
    return f"{count / 1024:.3g} KiB"
