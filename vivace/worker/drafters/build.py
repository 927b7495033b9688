"""Which drafter a configuration asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

import torch

from vivace.checkpoint.open import open_weights
from vivace.checkpoint.tensor_headers import name_head_tensors
from vivace.checkpoint.weights import EMBEDDING, OUTPUT
from vivace.config.draft_flags import SCRIPTED
from vivace.config.draft_models import draft_config
from vivace.config.drafts import EAGLE3, NGRAM, branches, most_breadth
from vivace.config.errors import ConfigError
from vivace.config.plugins import load_installed
from vivace.config.speculative import DRAFTERS
from vivace.errors import CannotStart
from vivace.layers.layout import SINGLE, ParallelLayout, share_all_layers
from vivace.layers.linear import Embedding
from vivace.layers.module import Bindings, Module
from vivace.models.causal_lm import CausalLM
from vivace.models.decoder import DecoderForCausalLM
from vivace.models.facts import checkpoint_quantization
from vivace.models.families import FAMILIES
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
from vivace.worker.drafters.heads import ChosenWords, DraftHead, Eagle3Body, EagleBody, OwnWords
from vivace.worker.drafters.layered_drafter import LayeredDrafter
from vivace.worker.drafters.nextn import MtpBody, NextnBody
from vivace.worker.drafters.ngram import Breadth, NgramDrafter
from vivace.worker.drafters.relaxed import EXACT, AcceptThresholds
from vivace.worker.drafters.scripted import RememberedAnswers, ScriptedDrafter, SentDrafter
from vivace.worker.drafters.searches import ChainSearch, DraftSearch, TreeSearch

if TYPE_CHECKING:
    from vivace.config.config import Config, HeadShape

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


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


@dataclass(frozen=True)
class LoadedDraft(Generic[T_co]):
    """`undivided`: as `Drafter.undivided`"""

    layers: T_co
    undivided: str = ""


@dataclass(frozen=True)
class DraftTarget:
    """What a drafter is built for. `model`: this rank's part; `load` loads another one."""

    config: Config
    platform: Platform
    dtype: torch.dtype
    model: CausalLM
    layout: ParallelLayout
    load: LoadDraft


def build_drafter(served: DraftTarget) -> Drafter:
    """Raises CannotStart."""
    config, layout = served.config, served.layout
    if not config.draft_width:
        return NO_DRAFTS
    if layout.stage.target is not None:
        return SentDrafter(config.draft_width)
    drafter = choose_drafter(served)
    alone = layout.attention.size == 1 and layout.stage.source is None
    if config.draft is None and config.speculative.speculative_algorithm != NGRAM:
        return GuardedDrafter(
            drafter, config.facts.vocabulary, width=config.draft_width, alone=alone
        )
    return GuardedDrafter(drafter) if alone else drafter


def choose_drafter(served: DraftTarget) -> Drafter:
    """What proposes. Raises CannotStart."""
    config = served.config
    if acceptance := config.environment.get(SCRIPTED):
        return ScriptedDrafter(config.draft_width, RememberedAnswers(float(acceptance)))
    if config.speculative.speculative_algorithm == NGRAM:
        settings, stages = ngram_settings(config), served.layout.stage.source is not None
        return NgramDrafter(
            served.platform.ngram_index(settings),
            settings.width,
            certain=0 if config.speculative.speculative_fixed_width else settings.longest,
            vocabulary=config.facts.vocabulary,
            corpus_tokens=config.speculative.speculative_ngram_external_corpus_max_tokens,
            overlap=settings.longest + settings.width,
            breadth=None if stages else ngram_breadth(config, settings),
            sends=stages,
        )
    if config.draft is None:
        return load_drafter(config)
    first = 1 + max(layer.index for layer in served.model.attention_layers)
    if config.draft.head is not None:
        return build_head_drafter(served, config.draft.head, first)
    draft = draft_config(config)
    loaded = load_divided(served.layout, lambda own: served.load(draft, layout=own))
    number_layers(cast(Module, loaded.layers), first)
    drafter = ModelDrafter(
        config.draft_width,
        loaded.layers,
        loaded.layers.attention_layers,
        search=choose_search(config),
        vocabulary=config.facts.vocabulary,
        ids=draft.facts.vocabulary,
    )
    drafter.undivided = loaded.undivided
    return drafter


def build_head_drafter(served: DraftTarget, shape: HeadShape, first: int) -> Drafter:
    """`first`: number of the head's first layer. Raises CannotStart."""
    config, packer = served.config, weight_packer(served.platform, served.dtype)
    loaded = load_divided(served.layout, lambda own: load_heads(config, packer, served.model, own))
    heads = loaded.layers
    layers = list[list[CacheLayer]]()
    for head in heads:
        layers.append(number_layers(head, first + sum(map(len, layers))))
    if shape.taps:
        cast("DecoderForCausalLM", served.model).model.tap(shape.taps)
    features = [config.facts.hidden_size] * max(1, len(shape.taps))
    drafter = (
        LayeredDrafter(heads, layers, *features)
        if config.speculative.enable_multi_layer_eagle and shape.behind
        else HeadDrafter(config.draft_width, heads[0], layers[0], features, choose_search(config))
    )
    drafter.undivided = loaded.undivided
    return drafter


def choose_search(config: Config) -> DraftSearch:
    """How a model's drafts are found."""
    topk, steps = branches(config), config.speculative.speculative_num_steps or 1
    return ChainSearch() if topk == 1 else TreeSearch(topk, steps, config.draft_width)


def load_drafter(config: Config) -> Drafter:
    """That of an installed package. Raises ConfigError."""
    name = config.speculative.speculative_algorithm or ""
    build = load_installed(DRAFTERS, name)
    try:
        drafter: Drafter = build(config)
        members = (one for one in (*Drafter.__annotations__, *vars(Drafter)) if one[0] != "_")
        known = {*dir(type(drafter)), *dir(drafter)}  # some can be read once it is attached
        lacking = [one for one in members if one not in known]
    except CannotStart:
        raise
    except Exception as error:  # it is other people's code
        raise ConfigError(
            f"--speculative-algorithm {name}: its package fails: {type(error).__name__}: {error}"
        ) from error
    if lacking:
        raise ConfigError(
            f"--speculative-algorithm {name}: the {type(drafter).__name__} of its package has no "
            f"{', '.join(lacking)}; correct it: a class that extends NoDrafter has all of that"
        )
    if not isinstance(drafter.width, int) or drafter.width < 1:
        raise ConfigError(
            f"--speculative-algorithm {name}: its package's width is {drafter.width!r}; correct "
            "it: that is how many tokens it proposes, at least 1"
        )
    if drafter.width < config.draft_width:
        raise ConfigError(
            f"--speculative-algorithm {name} proposes {drafter.width} tokens at most: give "
            f"--speculative-num-draft-tokens {drafter.width + 1} or less"
        )
    return drafter


def load_divided(layout: ParallelLayout, load: Callable[[ParallelLayout], T]) -> LoadedDraft[T]:
    """The ranks of an engine divide a draft as they divide heads, and each has all of one that does
    not go into them, whichever of them finds that. Engines draft for themselves."""
    group, found = layout.attention, None
    if group.size == 1:
        return LoadedDraft(load(SINGLE))
    undivided = "another rank cannot divide it"
    try:
        found = load(replace(share_all_layers(group), deterministic=layout.deterministic))
    except CannotStart as error:  # a small one may have fewer heads than ranks
        undivided = str(error)
    (all_have,) = group.minimum([int(found is not None)])
    if found is not None and all_have:
        return LoadedDraft(found)
    return LoadedDraft(load(SINGLE), undivided)


def load_heads(
    config: Config, packer: WeightPacker, model: CausalLM, layout: ParallelLayout
) -> list[DraftHead]:
    """One, or one for each draft. Raises CannotStart."""
    assert config.draft is not None and config.draft.head is not None
    draft = draft_config(config)
    served = cast("DecoderForCausalLM", model)
    weights = open_weights(
        draft.source,
        draft.facts,
        seed=config.runtime.random_seed or 0,
        dtype=packer.dtype,
        spell=None if config.draft.head.behind else name_head_tensors,
    )
    method = draft.quantization.quantization
    quantization = select_quantization(
        checkpoint_quantization(draft.source, method), weights, packer, requested=method
    )
    heads = build_heads(config, served)
    for head in heads:
        head.bind("", Bindings(packer=packer, quantization=quantization, layout=layout))
        with torch.inference_mode():
            head.load(weights)
    shape = config.draft.head
    if shape.ids and not shape.own_words:
        words = ChosenWords(shape.ids, read_output(config, packer), packer)
        for head in heads:
            head.words = words
    if not shape.behind:  # else there is a whole model beside it
        weights.finish({name for head in heads for name in head.claims()})
    return heads


def read_output(config: Config, packer: WeightPacker) -> torch.Tensor:
    """[vocabulary, hidden] of the served model's head. Raises CheckpointError."""
    facts, seed = config.facts, config.runtime.random_seed or 0
    weights = open_weights(config.source, facts, seed=seed, dtype=packer.dtype)
    name = EMBEDDING if weights.tied else OUTPUT
    return weights.take(name, (facts.vocabulary, facts.hidden_size))


def build_heads(config: Config, model: DecoderForCausalLM) -> list[DraftHead]:
    draft = config.draft
    assert draft is not None and draft.head is not None and draft.facts.decoder is not None
    shapes, hidden = (draft.facts, draft.facts.decoder), draft.facts.hidden_size
    positions = config.model.context_length or config.facts.context
    if draft.head.behind:
        first, beside = draft.head.first_layer, FAMILIES[draft.facts.architecture].draft_stem
        bodies = (
            [MtpBody(*shapes, positions)]
            if beside
            else [
                NextnBody(*shapes, positions, first + place) for place in range(draft.head.behind)
            ]
        )
        return [DraftHead(model, hidden, body, body) for body in bodies[: config.draft_width]]
    if config.speculative.speculative_algorithm == EAGLE3:
        features, shape = config.facts.hidden_size, draft.head
        body = Eagle3Body(*shapes, positions, features=features, shape=shape)
        words = OwnWords(shape.vocabulary, hidden, shape.ids) if shape.own_words else None
        embedding = Embedding(draft.facts.vocabulary, hidden) if shape.own_embedding else None
        own = {"words": words, "embedding": embedding}
        return [DraftHead(model, hidden, body, body, fuse=body.fuse, **own)]
    older = EagleBody(*shapes, positions)
    return [DraftHead(model, hidden, older, older)]


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
