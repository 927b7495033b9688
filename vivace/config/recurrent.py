"""Models with layers that keep a state: what their flags mean, and what does not go with them."""

from __future__ import annotations

from collections.abc import Sequence

from vivace.config.config import ModelContext, Options, ResolveContext
from vivace.config.drafts import tree_flag
from vivace.config.errors import ConfigError
from vivace.models.facts import ModelFacts

SAVING_FLAGS = ("max_mamba_cache_size", "mamba_track_interval")
STATE_FLAGS = (*SAVING_FLAGS, "mamba_full_memory_ratio")


def recurrent_layers(options: Options, context: ModelContext) -> list[str]:
    draft = context.draft
    if draft is not None and draft.head is None and has_states(draft.facts):
        raise ConfigError(
            f"--speculative-draft-model-path {draft.source.path}: a model whose layers keep a "
            "state does not draft; use one that only attends, or NGRAM"
        )
    if not has_states(context.facts):
        return unused_flags(options, STATE_FLAGS, "no layer of this model keeps a state")
    if flag := tree_flag(options):
        raise ConfigError(
            f"{flag}: layers of this model keep a state, which is that behind a chain of drafts; "
            f"use {flag.rpartition(' ')[0]} 1"
        )
    if options.memory.disable_radix_cache:
        return unused_flags(options, SAVING_FLAGS, "with --disable-radix-cache no state is saved")
    return []


def unused_flags(options: Options, names: Sequence[str], why: str) -> list[str]:
    return [
        f"--{name.replace('_', '-')} has no effect: {why}"
        for name in names
        if getattr(options.mamba, name) != getattr(type(options.mamba)(), name)
    ]


def has_states(facts: ModelFacts) -> bool:
    return facts.decoder is not None and facts.decoder.recurrent is not None


def whole_intervals(options: Options, context: ResolveContext) -> list[str]:
    """After the rules, which decide how large pages are."""
    page = options.memory.page_size or context.platform.page_sizes[0]
    interval = options.mamba.mamba_track_interval
    used = has_states(context.facts) and not options.memory.disable_radix_cache
    if not used or interval % page == 0:
        return []
    whole = -(-interval // page) * page
    return [f"--mamba-track-interval {interval} means {whole}: whole pages of {page} tokens"]
