"""What models that answer with numbers need, and what does not go with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vivace.config.config import ModelContext, Options, ResolveContext
from vivace.config.errors import ConfigError
from vivace.config.parallelism import requested_sizes


def pooled_models(options: Options, context: ModelContext) -> list[str]:
    facts = context.facts
    if facts.pooled is None:
        return []
    if options.speculative.speculative_algorithm is not None:
        raise ConfigError(
            f"--speculative-algorithm with {facts.architecture}, which answers with numbers: "
            "nothing is drawn; leave it out"
        )
    if facts.pooled.encoder is not None and requested_sizes(options).attention_dp > 1:
        raise ConfigError(
            f"--enable-dp-attention with {facts.architecture}, which keeps no KV for engines to "
            "divide: leave it out; --data-parallel-size has several engines"
        )
    return []


def pooled_settings(options: Options, context: ResolveContext) -> Iterator[tuple[str, Any, str]]:
    """Before `captures` and `chunk`."""
    pooled = context.facts.pooled
    if pooled is None:
        return
    yield "is_embedding", True, "the model answers with numbers, it generates no text"
    if pooled.encoder is not None:
        whole = "an encoder computes whole texts, and keeps nothing of them"
        yield "chunked_prefill_size", -1, whole
        yield "disable_radix_cache", True, whole
        yield "disable_cuda_graph", True, whole
