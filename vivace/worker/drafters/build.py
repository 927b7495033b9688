"""Which drafter a configuration asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from vivace.config.draft_models import draft_config
from vivace.config.drafts import NGRAM
from vivace.errors import CannotStart
from vivace.layers.layout import SINGLE, ParallelLayout, share_all_layers
from vivace.layers.module import Module
from vivace.models.causal_lm import CausalLM
from vivace.platforms.attention import AttentionLayer, LatentLayer
from vivace.platforms.cache import CacheLayer
from vivace.platforms.ngrams import NgramSettings
from vivace.platforms.platform import Platform
from vivace.worker.drafter import NO_DRAFTS, Drafter
from vivace.worker.drafters.draft_model import ModelDrafter
from vivace.worker.drafters.ngram import NgramDrafter

if TYPE_CHECKING:
    from vivace.config.config import Config


class LoadDraft(Protocol):
    def __call__(self, config: Config, *, layout: ParallelLayout) -> CausalLM:
        """`layout`: who shares its layers. Raises CannotStart."""
        ...


def is_fixed(config: Config) -> bool:
    """What drafts cost does not matter: there are none, or all that flags allow."""
    return not config.draft_width or config.speculative.speculative_fixed_width


def build_drafter(
    config: Config,
    platform: Platform,
    layers: Sequence[CacheLayer],
    layout: ParallelLayout,
    load: LoadDraft,
) -> Drafter:
    """`layers`: the served model's, of this rank. Raises CannotStart."""
    if not config.draft_width:
        return NO_DRAFTS
    if config.speculative.speculative_algorithm == NGRAM:
        settings = ngram_settings(config)
        return NgramDrafter(
            platform.ngram_index(settings),
            settings.width,
            certain=0 if config.speculative.speculative_fixed_width else settings.longest,
            vocabulary=config.facts.vocabulary,
            corpus_tokens=config.speculative.speculative_ngram_external_corpus_max_tokens,
        )
    draft = draft_config(config)
    model = load_divided(draft, layout, load)
    number_layers(model, 1 + max(layer.index for layer in layers))
    return ModelDrafter(
        config.draft_width,
        model,
        model.attention_layers,
        vocabulary=config.facts.vocabulary,
        ids=draft.facts.vocabulary,
    )


def load_divided(draft: Config, layout: ParallelLayout, load: LoadDraft) -> CausalLM:
    """The ranks of an engine divide a draft as they divide heads, and each has all of one that does
    not go into them. Engines draft for themselves."""
    group = layout.attention
    if group.size > 1:
        try:
            own = replace(share_all_layers(group), deterministic=layout.deterministic)
            return load(draft, layout=own)
        except CannotStart:  # a small model may have fewer heads than there are ranks
            pass
    return load(draft, layout=SINGLE)


def number_layers(model: CausalLM, first: int) -> None:
    """A draft's layers come behind those of the served model."""
    for each in cast(Module, model).find(Module):
        shape: Any = getattr(each, "shape", None)
        if isinstance(shape, AttentionLayer | LatentLayer):
            each.shape = replace(shape, index=shape.index + first)  # pyright: ignore


def ngram_settings(config: Config) -> NgramSettings:
    asked = config.speculative
    budget = asked.speculative_ngram_external_sam_budget
    return NgramSettings(
        width=config.draft_width,
        shortest=asked.speculative_ngram_min_match_window_size,
        longest=asked.speculative_ngram_max_match_window_size,
        depth=asked.speculative_ngram_branch_length,
        capacity=asked.speculative_ngram_capacity,
        by_frequency=asked.speculative_ngram_match_type == "PROB",
        budget=config.draft_width if budget is None else budget,
    )
