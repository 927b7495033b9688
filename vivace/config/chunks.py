"""--chunked-prefill-size: what it is without a wish, what each engine has of it, whole pages."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.config.config import Options, ResolveContext
from vivace.config.errors import ConfigError
from vivace.config.parallelism import requested_sizes


def chunk_and_page(options: Options) -> list[str]:
    chunk, page = options.schedule.chunked_prefill_size, options.memory.page_size
    engines = requested_sizes(options).attention_dp
    if chunk is None or page is None or chunk < 0:
        return []
    if chunk // engines % page or chunk < engines:
        whole = page * engines
        times = f" times {engines} engines (--enable-dp-attention)" if engines > 1 else ""
        raise ConfigError(
            f"--chunked-prefill-size {chunk} is not a multiple of --page-size {page}{times}; "
            f"use {max(whole, chunk // whole * whole)}"
        )
    return []


def chunk(options: Options, context: ResolveContext) -> Iterator[tuple[str, int, str]]:
    if options.schedule.chunked_prefill_size is None:
        size, page = context.platform.chunked_prefill_size, options.memory.page_size or 1
        yield (
            "chunked_prefill_size",
            max(page, size // page * page),
            "full speed, and newcomers wait only briefly; less beside other requests",
        )


def chunk_share(options: Options, context: ResolveContext) -> Iterator[tuple[str, int, str]]:
    """After `chunk`."""
    size, engines = options.schedule.chunked_prefill_size, requested_sizes(options).attention_dp
    if size is not None and size > 0 and engines > 1:
        each, page = size // engines, options.memory.page_size or 1
        reason = f"--enable-dp-attention divides it among {engines} engines"
        yield "chunked_prefill_size", max(page, each // page * page), reason
