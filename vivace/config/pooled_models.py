"""What models that answer with numbers need, and what does not go with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vivace.config.config import ModelContext, Options, ResolveContext
from vivace.config.draft_flags import without_effect
from vivace.config.errors import ConfigError
from vivace.config.parallelism import requested_sizes

OF_TEXT = (
    *("tool_call_parser", "reasoning_parser", "tool_server", "grammar_backend", "stream_interval"),
    *("constrained_json_whitespace_pattern", "constrained_json_disable_any_whitespace"),
    *("stream_output", "sampling_defaults", "preferred_sampling_params", "enable_mis"),
)


def pooled_models(options: Options, context: ModelContext) -> list[str]:
    pooled, name = context.facts.pooled, context.facts.architecture
    if pooled is None and not options.model.is_embedding:
        return []
    if options.speculative.speculative_algorithm is not None:
        raise ConfigError(f"--speculative-algorithm: {name} draws nothing here; leave it out")
    if pooled and pooled.encoder and requested_sizes(options).attention_dp > 1:
        raise ConfigError(
            f"--enable-dp-attention with {name}, which keeps no KV for engines to divide: leave it "
            "out; --data-parallel-size has several engines"
        )
    idle = [one for one in OF_TEXT if one in options.given]
    return without_effect(idle, "where no text is generated")


def pooled_settings(options: Options, context: ResolveContext) -> Iterator[tuple[str, Any, str]]:
    """Before `captures` and `chunk`."""
    if pooled := context.facts.pooled:
        yield "is_embedding", True, "the model answers with numbers, it generates no text"
    if pooled and pooled.encoder:
        whole = "an encoder computes whole texts, and keeps nothing of them"
        yield "chunked_prefill_size", -1, whole
        yield "disable_radix_cache", True, whole
        yield "disable_cuda_graph", True, whole
