"""Which drafter a configuration asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import torch

from vivace.checkpoint.open import open_weights
from vivace.checkpoint.weights import EMBEDDING, OUTPUT
from vivace.config.draft_models import draft_config
from vivace.config.drafts import EAGLE3, NGRAM, branches, most_breadth
from vivace.config.errors import ConfigError
from vivace.config.plugins import load_installed
from vivace.config.speculative import DRAFTERS
from vivace.errors import CannotStart
from vivace.layers.layout import SINGLE, ParallelLayout, share_all_layers
from vivace.layers.module import Bindings, Module
from vivace.models.causal_lm import CausalLM
from vivace.models.decoder import DecoderForCausalLM
from vivace.models.facts import checkpoint_quantization
from vivace.platforms.attention import AttentionLayer, LatentLayer
from vivace.platforms.cache import CacheLayer
from vivace.platforms.ngrams import NgramSettings
from vivace.platforms.platform import Platform
from vivace.quantization.packed import WeightPacker, weight_packer
from vivace.quantization.select import select_quantization
from vivace.worker.drafter import NO_DRAFTS, Drafter
from vivace.worker.drafters.draft_model import ModelDrafter
from vivace.worker.drafters.guarded import GuardedDrafter
from vivace.worker.drafters.head_drafter import HeadDrafter
from vivace.worker.drafters.heads import DraftHead, Eagle3Head, EagleHead
from vivace.worker.drafters.nextn import NextnHead
from vivace.worker.drafters.ngram import Breadth, NgramDrafter
from vivace.worker.drafters.relaxed import EXACT, AcceptThresholds
from vivace.worker.drafters.scripted import RememberedAnswers, ScriptedDrafter, SentDrafter
from vivace.worker.drafters.searches import ChainSearch, DraftSearch, TreeSearch

if TYPE_CHECKING:
    from vivace.config.config import Config

T = TypeVar("T")
BODY = "model"
SCRIPTED = "VIVACE_TEST_DRAFTS"


class LoadDraft(Protocol):
    def __call__(self, config: Config, *, layout: ParallelLayout) -> CausalLM:
        """`layout`: who shares its layers. Raises CannotStart."""
        ...


def is_fixed(config: Config) -> bool:
    """What drafts cost does not matter: there are none, or all that flags allow."""
    return not config.draft_width or config.speculative.speculative_fixed_width


def accept_thresholds(config: Config) -> AcceptThresholds:
    asked = config.speculative
    if not config.draft_width:
        return EXACT
    return AcceptThresholds(
        asked.speculative_accept_threshold_single, asked.speculative_accept_threshold_acc
    )


def build_drafter(
    config: Config,
    platform: Platform,
    dtype: torch.dtype,
    model: CausalLM,
    layout: ParallelLayout,
    load: LoadDraft,
) -> Drafter:
    """`model`: the served one, this rank's part; `load` loads another one. Raises CannotStart."""
    if not config.draft_width:
        return NO_DRAFTS
    if layout.stage.target is not None:
        return SentDrafter(config.draft_width)
    drafter = choose_drafter(config, platform, dtype, model, layout, load)
    alone = layout.attention.size == 1 and layout.stage.source is None
    if config.draft is None and config.speculative.speculative_algorithm != NGRAM:
        return GuardedDrafter(drafter, config.facts.vocabulary, alone=alone)
    return GuardedDrafter(drafter) if alone else drafter


def choose_drafter(
    config: Config,
    platform: Platform,
    dtype: torch.dtype,
    model: CausalLM,
    layout: ParallelLayout,
    load: LoadDraft,
) -> Drafter:
    """As `build_drafter`, of what proposes."""
    if acceptance := config.environment.get(SCRIPTED):
        return ScriptedDrafter(config.draft_width, RememberedAnswers(float(acceptance)))
    if config.speculative.speculative_algorithm == NGRAM:
        settings, stages = ngram_settings(config), layout.stage.source is not None
        return NgramDrafter(
            platform.ngram_index(settings),
            settings.width,
            certain=0 if config.speculative.speculative_fixed_width else settings.longest,
            vocabulary=config.facts.vocabulary,
            corpus_tokens=config.speculative.speculative_ngram_external_corpus_max_tokens,
            breadth=None if stages else ngram_breadth(config, settings),
            sends=stages,
        )
    if config.draft is None:
        return load_drafter(config)
    draft = draft_config(config)
    first = 1 + max(layer.index for layer in model.attention_layers)
    if config.draft.head is not None:
        packer = weight_packer(platform, dtype)
        head = load_divided(layout, lambda own: load_head(config, packer, model, own))
        layers, hidden = number_layers(head, first), config.facts.hidden_size
        taps = config.draft.head.taps
        if taps:
            cast("DecoderForCausalLM", model).model.tap(taps)
        features = [hidden] * max(1, len(taps))
        return HeadDrafter(config.draft_width, head, layers, features, choose_search(config))
    smaller = load_divided(layout, lambda own: load(draft, layout=own))
    number_layers(cast(Module, smaller), first)
    return ModelDrafter(
        config.draft_width,
        smaller,
        smaller.attention_layers,
        search=choose_search(config),
        vocabulary=config.facts.vocabulary,
        ids=draft.facts.vocabulary,
    )


def choose_search(config: Config) -> DraftSearch:
    """How a model's drafts are found."""
    topk, steps = branches(config), config.speculative.speculative_num_steps or 1
    return ChainSearch() if topk == 1 else TreeSearch(topk, steps, config.draft_width)


def load_drafter(config: Config) -> Drafter:
    """That of an installed package. Raises ConfigError."""
    name = config.speculative.speculative_algorithm or ""
    drafter: Drafter = load_installed(DRAFTERS, name)(config)
    if drafter.width < config.draft_width:
        raise ConfigError(
            f"--speculative-algorithm {name} proposes {drafter.width} tokens at most: give "
            f"--speculative-num-draft-tokens {drafter.width + 1} or less"
        )
    return drafter


def load_divided(layout: ParallelLayout, load: Callable[[ParallelLayout], T]) -> T:
    """The ranks of an engine divide a draft as they divide heads, and each has all of one that does
    not go into them. Engines draft for themselves."""
    group = layout.attention
    if group.size > 1:
        try:
            return load(replace(share_all_layers(group), deterministic=layout.deterministic))
        except CannotStart:  # a small model may have fewer heads than there are ranks
            pass
    return load(SINGLE)


def load_head(
    config: Config, packer: WeightPacker, model: CausalLM, layout: ParallelLayout
) -> DraftHead:
    """Raises CannotStart."""
    assert config.draft is not None and config.draft.head is not None
    draft = draft_config(config)
    served = cast("DecoderForCausalLM", model)
    weights = open_weights(
        draft.source,
        draft.facts,
        seed=config.runtime.random_seed or 0,
        progress=lambda stage, done: None,
        dtype=packer.dtype,
    )
    method = draft.quantization.quantization
    quantization = select_quantization(
        checkpoint_quantization(draft.source, method), weights, packer, requested=method
    )
    head = build_head(config, served)
    # What has an embedding and no head is read as the body of a model.
    name = BODY if weights.names() is not None and weights.has(f"{BODY}.fc.weight") else ""
    head.bind(name, Bindings(packer=packer, quantization=quantization, layout=layout))
    with torch.inference_mode():
        head.load(weights)
    if config.draft.head.ids:
        head.choose(config.draft.head.ids, read_output(config, packer), packer)
    if not config.draft.head.behind:  # else there is a whole model beside it
        weights.finish(set(head.claims()))
    return head


def read_output(config: Config, packer: WeightPacker) -> torch.Tensor:
    """[vocabulary, hidden] of the served model's head. Raises CheckpointError."""
    facts = config.facts
    weights = open_weights(
        config.source,
        facts,
        seed=config.runtime.random_seed or 0,
        progress=lambda stage, done: None,
        dtype=packer.dtype,
    )
    name = EMBEDDING if weights.tied else OUTPUT
    return weights.take(name, (facts.vocabulary, facts.hidden_size))


def build_head(config: Config, model: DecoderForCausalLM) -> DraftHead:
    draft = config.draft
    assert draft is not None and draft.head is not None and draft.facts.decoder is not None
    shapes = draft.facts, draft.facts.decoder, model
    positions = config.model.context_length or config.facts.context
    if draft.head.behind:
        return NextnHead(*shapes, positions)
    if config.speculative.speculative_algorithm == EAGLE3:
        return Eagle3Head(
            *shapes,
            positions,
            features=config.facts.hidden_size,
            taps=len(draft.head.taps),
            vocabulary=draft.head.vocabulary,
        )
    return EagleHead(*shapes, positions)


def number_layers(model: Module, first: int) -> list[CacheLayer]:
    """A draft's layers come behind those of the served model, which have numbers below `first`."""
    shapes: list[Any] = [
        each
        for each in model.find(Module)
        if isinstance(getattr(each, "shape", None), AttentionLayer | LatentLayer)
    ]
    places = sorted({each.shape.index for each in shapes})
    for each in shapes:
        each.shape = replace(each.shape, index=first + places.index(each.shape.index))
    return [each.shape for each in shapes]


def ngram_breadth(config: Config, settings: NgramSettings) -> Breadth | None:
    """None: drafts are chains."""
    most = most_breadth(config)
    if most == 1:
        return None
    least = config.speculative.speculative_ngram_min_bfs_breadth
    return Breadth(least, most, settings.shortest, settings.longest)


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
