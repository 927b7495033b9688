"""Models with layers that keep a state: what their flags mean, and what does not go with them."""

from __future__ import annotations

from vivace.config.config import ModelContext, Options, ResolveContext
from vivace.config.drafts import tree_flag
from vivace.config.errors import ConfigError
from vivace.models.facts import ModelFacts

STATE_FLAGS = ("max_mamba_cache_size", "mamba_full_memory_ratio", "mamba_track_interval")


def recurrent_layers(options: Options, context: ModelContext) -> list[str]:
    draft = context.draft
    if draft is not None and draft.head is None and has_states(draft.facts):
        raise ConfigError(
            f"--speculative-draft-model-path {draft.source.path}: a model whose layers keep a "
            "state does not draft; use one that only attends, or NGRAM"
        )
    if not has_states(context.facts):
        return [
            f"--{name.replace('_', '-')} has no effect: no layer of this model keeps a state"
            for name in STATE_FLAGS
            if getattr(options.mamba, name) != getattr(type(options.mamba)(), name)
        ]
    if flag := tree_flag(options):
        raise ConfigError(
            f"{flag}: layers of this model keep a state, which is that behind a chain of drafts; "
            f"use {flag.rpartition(' ')[0]} 1"
        )
    if options.mamba.max_mamba_cache_size is not None and options.memory.disable_radix_cache:
        return [
            "--max-mamba-cache-size has no effect: --disable-radix-cache is given, and saved "
            "states are for the prefix cache"
        ]
    return []


def has_states(facts: ModelFacts) -> bool:
    return facts.decoder is not None and facts.decoder.recurrent is not None


def whole_intervals(options: Options, context: ResolveContext) -> list[str]:
    """After the rules, which decide how large pages are."""
    page = options.memory.page_size or context.platform.page_sizes[0]
    interval = options.mamba.mamba_track_interval
    if not has_states(context.facts) or interval % page == 0:
        return []
    whole = -(-interval // page) * page
    return [f"--mamba-track-interval {interval} means {whole}: whole pages of {page} tokens"]
