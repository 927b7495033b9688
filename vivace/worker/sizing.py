"""How much fits: KV pages, rows and the longest request, from memory and settings."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.errors import CannotStart

GIB = 1 << 30
DEFAULT_SHARE = 0.25
"""of the memory that is free after loading, when nobody says: a CPU's memory is not ours alone"""
DEFAULT_LARGEST = 4 * GIB
RESERVE = 256 << 20
"""bytes for activations and the rest of the process"""
DEFAULT_ROWS = 256
SMALLEST_POOL_TOKENS = 16


class SizingError(CannotStart):
    """The model's KV does not fit; the text says what to change."""


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What sizing looks at. Bytes; None = not asked for."""

    total_bytes: int
    """memory of the device"""
    available_bytes: int
    """free now, with the weights loaded"""
    kv_bytes_per_token: int
    page_size: int
    context: int
    """longest prompt + output the model serves, in tokens"""
    static_fraction: float | None = None
    """share of total_bytes for weights and KV together (--mem-fraction-static)"""
    max_total_tokens: int | None = None
    max_running_requests: int | None = None


@dataclass(frozen=True, kw_only=True)
class Size:
    pages: int
    rows: int
    context: int


def size(demand: Demand) -> Size:
    """Pages, rows and context. Raises SizingError when not even a short request fits."""
    pages = _budget(demand) // (demand.kv_bytes_per_token * demand.page_size)
    wanted_rows = demand.max_running_requests or DEFAULT_ROWS
    most = wanted_rows * -(-(demand.context + 1) // demand.page_size)
    if demand.max_total_tokens is not None:
        most = min(most, demand.max_total_tokens // demand.page_size)
    pages = min(pages, most)
    tokens = pages * demand.page_size
    if pages < 1 or tokens < min(SMALLEST_POOL_TOKENS, demand.context):
        raise SizingError(_too_small(demand, tokens))
    return Size(pages=pages, rows=min(wanted_rows, tokens), context=min(demand.context, tokens))


def _budget(demand: Demand) -> int:
    """Bytes for the KV pool."""
    if demand.static_fraction is None:
        share = min(DEFAULT_LARGEST, int(demand.available_bytes * DEFAULT_SHARE))
    else:
        used = demand.total_bytes - demand.available_bytes
        share = int(demand.total_bytes * demand.static_fraction) - used
    return max(0, min(share, demand.available_bytes - RESERVE))


def _too_small(demand: Demand, tokens: int) -> str:
    return (
        f"the KV pool would hold {max(0, tokens)} tokens: {demand.available_bytes / GIB:.2f} GiB "
        f"are free after loading the weights and a token takes "
        f"{demand.kv_bytes_per_token / 1024:.0f} KiB. Raise --mem-fraction-static or "
        "--max-total-tokens, lower --page-size, free memory, or choose a smaller model"
    )
