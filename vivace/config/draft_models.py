"""The model that proposes drafts: where it is, and whether it may propose to the served one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vivace.checkpoint.source import ModelSource, locate
from vivace.checkpoint.vocabulary import differing, read_words
from vivace.checkpoint.weight_files import SHARDED
from vivace.config.config import Config, DraftModel, ModelContext, Options, ResolveContext
from vivace.config.draft_heads import (
    EXPORTED,
    check_family,
    check_layer_class,
    check_shapes,
    exported_layer,
    has_layers,
    head_behind,
    read_class,
    read_head,
)
from vivace.config.draft_tensors import check_whole_model
from vivace.config.drafts import EAGLE, EAGLE3, NEXTN, STANDALONE, branches, drafts_by_model
from vivace.config.errors import ConfigError
from vivace.config.kernels import UNQUANT
from vivace.config.parallel import ExpertOptions
from vivace.config.rules import why_no_kernels
from vivace.config.token_map import FLAG as TOKEN_MAP
from vivace.config.token_map import read_token_map
from vivace.models.facts import ModelFacts, checkpoint_quantization, read_facts
from vivace.models.families import FAMILIES
from vivace.models.registry import check_architecture

PATH, QUANTIZATION = "--speculative-draft-model-path", "--speculative-draft-model-quantization"
LAYERED = "--enable-multi-layer-eagle"
READ_FORMATS = ("auto", "safetensors", "gguf", "dummy")
"""of a draft; others are refused, by their flag, once it is found"""
MOST_DIFFERING = 0.01
"""share of the ids of two models that may stand for other tokens: markers that one has renamed.
Such drafts are refused when they are verified"""


def draft_path(options: Options) -> str | None:
    """Where flags say that a draft model is."""
    if not drafts_by_model(options):
        return None
    return options.speculative.speculative_draft_model_path


def locate_draft(
    options: Options, target: ModelSource, facts: ModelFacts, cache: Path | None
) -> DraftModel | None:
    """`facts`: of the model that is served. None: no model proposes. Raises SourceError,
    ConfigError."""
    if not drafts_by_model(options):
        return None
    asked = options.speculative
    if asked.speculative_algorithm != STANDALONE:
        check_family(asked.speculative_algorithm, facts)
    if asked.speculative_draft_model_path is None:
        if takes_own_layers(options):
            each = asked.enable_multi_layer_eagle
            return with_token_map(options, head_behind(target, facts, each=each))
        raise ConfigError(
            f"--speculative-algorithm {asked.speculative_algorithm} needs {PATH}: a smaller model "
            f"or a head with the vocabulary of {target.path}"
        )
    load_format = asked.speculative_draft_load_format or "auto"
    source = locate(
        asked.speculative_draft_model_path,
        load_format=load_format if load_format in READ_FORMATS else "auto",
        revision=asked.speculative_draft_model_revision,
        cache=cache,
        flag=PATH,
    )
    if asked.speculative_algorithm == STANDALONE:
        check_architecture(source)
        draft = DraftModel(source=source, facts=read_facts(source))
        check_whole_model(draft)
        return draft
    layers = asked.speculative_algorithm == EAGLE and has_layers(source)
    if layers or takes_own_layers(options):
        return with_token_map(options, locate_layers(options, source, facts))
    return with_token_map(options, read_head(asked.speculative_algorithm, source, facts))


def locate_layers(options: Options, source: ModelSource, facts: ModelFacts) -> DraftModel:
    """Those for multi-token prediction of another checkpoint. Raises SourceError, ConfigError."""
    check_layer_class(source, facts)
    if read_class(source).endswith(EXPORTED):
        return exported_layer(source, facts)
    check_architecture(source)
    each = options.speculative.enable_multi_layer_eagle
    check_shapes(draft := head_behind(source, read_facts(source), each=each), facts)
    return draft


def with_token_map(options: Options, draft: DraftModel) -> DraftModel:
    """Of a head that has the model's vocabulary."""
    path = options.speculative.speculative_token_map
    if path is None or draft.head is None or options.speculative.speculative_algorithm == EAGLE3:
        return draft
    ids = read_token_map(path, draft.facts.vocabulary)
    return replace(draft, head=replace(draft.head, ids=ids))


def takes_own_layers(options: Options) -> bool:
    """A layer behind the last one of a whole model drafts: the served one's, where no path is
    given."""
    asked = options.speculative
    alone = asked.speculative_draft_model_path is None
    return asked.speculative_algorithm in ((NEXTN, EAGLE) if alone else (NEXTN,))


def draft_models(options: Options, context: ModelContext) -> list[str]:
    """What must hold between the draft and the model."""
    if context.draft is None:  # no model drafts, or it does not lie on this machine
        return []
    refuse_divided_head(options, context)
    notices = layers_of_drafts(options, context.draft)
    quantization = options.speculative.speculative_draft_model_quantization
    method = known_method(context.draft, quantization)
    checkpoint_quantization(context.draft.source, method, QUANTIZATION)
    if context.draft.head is not None:
        return notices
    return notices + check_vocabulary(context, context.draft)


def layers_of_drafts(options: Options, draft: DraftModel) -> list[str]:
    """Where each draft comes from a layer of its own, there are as many as layers."""
    asked, layers = options.speculative, draft.head.behind if draft.head is not None else 0
    notices = list[str]()
    if layers and (known := draft.facts.draft_layers) > layers:
        beside = asked.enable_multi_layer_eagle or FAMILIES[draft.facts.architecture].draft_stem
        text = f"only the first of its {known} layers for drafts is used"
        notices = [f"{draft.source.path}: {text}{'' if beside else f' (see {LAYERED})'}"]
    if not asked.enable_multi_layer_eagle:
        return notices
    if not layers:
        return [f"{LAYERED} has no effect: drafts come from no layers behind the model's last one"]
    if branches(options) > 1:
        raise ConfigError(
            f"{LAYERED}: each of these layers says one token, so drafts are chains; use "
            "--speculative-eagle-topk 1"
        )
    steps = asked.speculative_num_steps or (asked.speculative_num_draft_tokens or 1) - 1
    if steps > layers:
        raise ConfigError(
            f"{LAYERED}: {steps} steps, and {draft.source.path} has {layers} layers for drafts, "
            f"one for each; use --speculative-num-steps {layers}, or leave the flag out"
        )
    return notices


def refuse_divided_head(options: Options, context: ModelContext) -> None:
    """A token map chooses rows of the model's head."""
    head = context.draft.head if context.draft is not None else None
    chosen = head is not None and head.ids and not head.own_words
    if chosen and context.source.format == SHARDED:
        raise ConfigError(
            f"{TOKEN_MAP}: the model's head is read whole, and each rank has files of its own "
            "(--load-format sharded_state); leave one of them out"
        )


def kernels_of_draft(options: Options, context: ResolveContext) -> list[str]:
    """After the rules: what computes the model computes the draft, too."""
    if context.draft is None or options.runtime.disable_cpu_kernels:
        return []
    own = replace(context, source=context.draft.source, facts=context.draft.facts)
    if reason := why_no_kernels(options, own):
        raise ConfigError(
            f"{PATH} {context.draft.source.path}: {reason}; use another draft, or "
            "--disable-cpu-kernels"
        )
    return []


def check_vocabulary(context: ModelContext, draft: DraftModel) -> list[str]:
    own, target = draft.facts.vocabulary, context.facts.vocabulary
    words, others = (read_words(each.source.tokenizer_path) for each in (context, draft))
    where = f"{PATH} {draft.source.path}"
    remedy = f"use a draft with the tokenizer of {context.source.path}"
    if not (words and others):
        if own != target:
            raise ConfigError(f"{where}: {own} tokens, the model has {target}; {remedy}")
        return [f"{where}: its tokenizer is not compared with the model's, one of them has none"]
    shared = min(len(words), len(others))
    different = differing(words, others)
    if len(different) > MOST_DIFFERING * shared or shared < (1 - MOST_DIFFERING) * len(words):
        first = min(different, default=shared)
        raise ConfigError(
            f"{where}: another vocabulary ({len(different)} of {shared} tokens differ, of "
            f"{len(others)} and {len(words)}; id {first} is {others.get(first)!r} and "
            f"{words.get(first)!r}); {remedy}"
        )
    return []


def known_method(draft: DraftModel, requested: str | None) -> str | None:
    """--speculative-draft-model-quantization as --quantization says it: "unquant" asks for nothing
    of floats, and "gguf" for nothing of a GGUF file."""
    if requested == "gguf" and draft.source.format != "gguf":
        raise ConfigError(
            f"{QUANTIZATION} gguf: {draft.source.path} is a {draft.source.format} model"
        )
    floats = requested == UNQUANT and checkpoint_quantization(draft.source) is None
    return None if requested == "gguf" or floats else requested


def draft_config(config: Config) -> Config:
    """With what the draft is loaded. Only where a model proposes."""
    assert config.draft is not None
    method = config.speculative.speculative_draft_model_quantization
    if method is None and config.speculative.speculative_draft_model_path is None:  # own layers
        method = config.quantization.quantization
    method = known_method(config.draft, method)
    return replace(
        config,
        source=config.draft.source,
        facts=config.draft.facts,
        quantization=replace(config.quantization, quantization=method),
        experts=ExpertOptions(),
        pooling=None,
        draft=None,
    )
