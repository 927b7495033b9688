"""Heads that draft (EAGLE): what their checkpoints say, and whether they fit the served model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vivace.checkpoint.fields import ConfigFields, Flag, Integer, ListOf, Object, Text
from vivace.checkpoint.source import ModelSource, SourceError
from vivace.checkpoint.tensor_headers import StoredTensor, read_draft_ids
from vivace.config.config import DraftModel, HeadShape
from vivace.config.draft_tensors import (
    check_head_tensors,
    check_layer_tensors,
    read_head_tensors,
)
from vivace.config.drafts import EAGLE3, NEXTN
from vivace.config.errors import ConfigError
from vivace.models.facts import ModelFacts, read_facts
from vivace.models.families import FAMILIES

PATH = "--speculative-draft-model-path"
LLAMA = "LlamaForCausalLM"
SPECULATOR = "Eagle3Speculator"
"""of the library speculators, which has what describes the layer in an object of its own"""
CLASSES = {
    EAGLE3: (f"{LLAMA}Eagle3", SPECULATOR),
    "EAGLE": (f"{LLAMA}Eagle", LLAMA),
}
"""of `architectures` in the config.json of a head; EAGLE's own are called as the model is"""
WHOLE_MODEL = "a whole model drafts with --speculative-algorithm STANDALONE"
DFLASH = "DFlash"
"""how the class of a head of block diffusion begins"""
READ_FORMATS = ("safetensors", "dummy")
EXPORTED = "NextN"
"""how the class of a model ends where only its layer for multi-token prediction was saved"""
OTHER_RESIDUALS = ("Gemma2ForCausalLM", "Gemma3ForCausalLM")
"""whose layers hand on something else than heads are trained with"""
LLAMA4, WIDTH = "llama4_text", "intermediate_size_mlp"
"""of heads that are Llamas nevertheless: model type, and what they call the width of their MLP"""
UNKNOWN_NORMS = ("norm_before_fc", "fc_norm")
"""settings of heads with further norms"""
MOST = 1 << 24
FEWEST_LAYERS = 7
"""of which the usual three that a head reads are three"""
TAPPED = "eagle_aux_hidden_state_layer_ids"


def read_head(algorithm: str | None, source: ModelSource, facts: ModelFacts) -> DraftModel:
    """`facts`: of the served model. Raises SourceError naming the bad key, or tensor."""
    if source.format not in READ_FORMATS:
        raise SourceError(
            f"{source.path}: heads are read from safetensors files, this is a {source.format} "
            f"model; give such a head; {WHOLE_MODEL}"
        )
    read = replace(source, config=head_config(algorithm, source))
    fields = ConfigFields(read.config, source.place, source.advice)
    own = read_facts(read)
    if own.layers != 1:
        raise SourceError(
            f"{source.place('num_hidden_layers')} is {own.layers}: heads have 1 here; use such "
            f"a head, or NGRAM; {WHOLE_MODEL}"
        )
    tensors = read_head_tensors(read)
    if algorithm == EAGLE3:
        head = read_eagle3(fields, source, own, facts, tensors)
    else:
        head = HeadShape(vocabulary=own.vocabulary)
    draft = DraftModel(source=read, facts=own, head=head)
    check_shapes(draft, facts)
    check_head_tensors(draft, head, facts.hidden_size, tensors, third=algorithm == EAGLE3)
    return draft


def head_config(algorithm: str | None, source: ModelSource) -> dict[str, Any]:
    """As that of the Llama that a head's layer is one of. Raises SourceError."""
    classes = CLASSES.get(algorithm or "", ())
    first = read_class(source)
    if first not in classes:
        others = [name for name, heads in CLASSES.items() if first in heads and first != LLAMA]
        others += [NEXTN] if has_layers(source) else []
        remedy = f"use --speculative-algorithm {others[0]}" if others else WHOLE_MODEL
        if first.startswith(DFLASH):
            remedy = "heads of block diffusion are not supported; use EAGLE3, STANDALONE or NGRAM"
        raise SourceError(
            f"{source.place('architectures')} is {first!r}: --speculative-algorithm {algorithm} "
            f"takes heads of {' or '.join(classes)}; {remedy}"
        )
    config = {**source.config, "architectures": [LLAMA], "tie_word_embeddings": False}
    if first == SPECULATOR:
        given = ConfigFields(source.config, source.place, source.advice)
        layer = given.need("transformer_layer_config", Object())
        config = {"norm_before_residual": True, **layer, **config}
    if config.get("model_type") == LLAMA4:
        config["intermediate_size"] = config.get(WIDTH, config.get("intermediate_size"))
    if config.get("model_type") in (None, LLAMA4):
        config["model_type"] = "llama"
    return config


def read_class(source: ModelSource) -> str:
    given = ConfigFields(source.config, source.place, source.advice)
    return given.need("architectures", ListOf(Text(), 64, 1))[0]


def read_eagle3(
    fields: ConfigFields,
    source: ModelSource,
    own: ModelFacts,
    facts: ModelFacts,
    tensors: Mapping[str, StoredTensor] | None,
) -> HeadShape:
    for key in UNKNOWN_NORMS:
        if fields.get(key, Flag(), False):
            raise SourceError(
                f"{source.place(key)} is true: heads with that norm are not supported; use another "
                "head, or NGRAM"
            )
    narrow = check_features(fields, source, own, facts)
    given = fields.find("draft_vocab_size", Integer(1, MOST))
    tied = ConfigFields(source.config, source.place, source.advice).get(
        "tie_word_embeddings", Flag(), False
    )
    own_words = given is not None and not tied
    if tensors is not None:
        own_words = any(name.startswith("lm_head.") for name in tensors)
    if tied and not own_words and not facts.tied:
        raise SourceError(
            f"{source.place('tie_word_embeddings')} is true and its files have no lm_head: its "
            "head is the embedding, and the model's head is another matrix; use another head"
        )
    vocabulary = own.vocabulary if given is None else given
    taps = read_taps(fields, source, facts.layers)
    if narrow and not (own_words and taps):
        lacking = "no lm_head.weight" if taps else "use_aux_hidden_state false"
        raise SourceError(
            f"{source.path}: it has {lacking}, and its hidden size of {own.hidden_size} is not the "
            f"model's {facts.hidden_size}; use another head, or NGRAM"
        )
    if not own_words and vocabulary != own.vocabulary:
        raise SourceError(
            f"{source.path}: it has no lm_head.weight, and draft_vocab_size {vocabulary} of "
            f"{own.vocabulary} tokens, so the model's head is not its own; fetch it again"
        )
    return HeadShape(
        taps=taps,
        vocabulary=vocabulary,
        ids=()
        if tensors is None
        else read_draft_ids(source.path, tensors, vocabulary, own.vocabulary),
        own_words=own_words,
        own_embedding=narrow,
        norm_before_residual=fields.get("norm_before_residual", Flag(), False),
        norm_output=fields.get("norm_output", Flag(), False),
    )


def check_features(
    fields: ConfigFields, source: ModelSource, own: ModelFacts, facts: ModelFacts
) -> bool:
    """Whether the head says that it has another hidden size than the model, and so an embedding of
    its own. Raises SourceError where the model's states are not as wide as it wants them."""
    features = fields.get("target_hidden_size", Integer(1, MOST), facts.hidden_size)
    if features != facts.hidden_size:
        raise SourceError(
            f"{source.place('target_hidden_size')} is {features}, the model's hidden size is "
            f"{facts.hidden_size}; use a head that was trained for it"
        )
    return fields.has("target_hidden_size") and own.hidden_size != features


def head_behind(source: ModelSource, facts: ModelFacts, *, each: bool) -> DraftModel:
    """The first layer for multi-token prediction of a whole model, or `each`. Raises SourceError,
    ConfigError."""
    if not facts.draft_layers or facts.decoder is None:
        raise ConfigError(
            f"{source.path} has no layers for drafts behind its last one "
            "(num_nextn_predict_layers); use EAGLE3 or STANDALONE with another path, or NGRAM"
        )
    if source.format not in READ_FORMATS:
        raise ConfigError(
            f"{source.path}: layers for drafts are read from safetensors files, this is a "
            f"{source.format} model; use NGRAM or STANDALONE"
        )
    beside = bool(FAMILIES[facts.architecture].draft_stem)
    count = facts.draft_layers if each and not beside else 1
    head = HeadShape(vocabulary=facts.vocabulary, behind=count, first_layer=facts.layers)
    facts = replace(facts, draft_layers=check_layer_tensors(source, facts, head))
    return DraftModel(source=source, facts=facts, head=head)


def exported_layer(source: ModelSource, facts: ModelFacts) -> DraftModel:
    """The layer for multi-token prediction that was saved alone, as SGLang's export_deepseek_nextn
    does it: layer 0 of a model of 1. `facts`: of the served model, whose shapes it has. Raises
    SourceError."""
    given = ConfigFields(source.config, source.place, source.advice)
    own = replace(
        facts,
        draft_layers=1,
        hidden_size=given.get("hidden_size", Integer(1, MOST), facts.hidden_size),
        vocabulary=given.get("vocab_size", Integer(1, MOST), facts.vocabulary),
    )
    read = replace(source, config={**source.config, "architectures": [facts.architecture]})
    head = HeadShape(vocabulary=facts.vocabulary, behind=1)
    check_shapes(draft := DraftModel(source=read, facts=own, head=head), facts)
    check_layer_tensors(source, facts, head)
    return draft


def check_layer_class(source: ModelSource, facts: ModelFacts) -> None:
    """Whether a layer for multi-token prediction was made for such a model. Raises SourceError."""
    if (found := read_class(source)).removesuffix(EXPORTED) != facts.architecture:
        raise SourceError(
            f"{source.place('architectures')} is {found!r}, the model is of {facts.architecture}: "
            "such a layer drafts for what it was trained with; use the model's own, or NGRAM"
        )


def has_layers(source: ModelSource) -> bool:
    """Whether a checkpoint is of a whole model with such layers, or of one of these alone, and
    not of a head."""
    family = FAMILIES.get(found := read_class(source))
    beside = family is not None and bool(family.draft_stem)
    behind = bool(source.config.get("num_nextn_predict_layers"))
    return found.endswith(EXPORTED) or beside or behind


def read_taps(fields: ConfigFields, source: ModelSource, layers: int) -> tuple[int, ...]:
    """Which layers' inputs, that behind the last one among them; none: the model's last hidden
    state. SGLang's `eagle_config` names the layers in front of these, vLLM's key of the same name,
    which stands by itself, these. By default the third one, the middle one and the third last
    one. Raises SourceError."""
    inner = fields.inner("eagle_config")
    if inner is not None and not inner.get("use_aux_hidden_state", Flag(), True):
        return ()
    for given, shift in ((inner, 1), (fields, 0)):
        if given is not None and (ids := given.get(TAPPED, ListOf(Integer(-1, MOST), 16), ())):
            taps = tuple(one + shift for one in ids)
            if ascending(taps, layers):
                return taps
            raise SourceError(
                f"{given.place(TAPPED)} is {list(ids)}: the model has {layers} layers, so numbers "
                f"in rising order, from {-shift} to {layers - shift}, are meant; use a head that "
                "was trained for it"
            )
    if not ascending(usual := (2, layers // 2, layers - 3), layers):
        raise SourceError(
            f"{source.place('eagle_config')} has no {TAPPED}, and of the model's {layers} layers "
            f"there are no usual three: that takes {FEWEST_LAYERS}; name there the layers that it "
            "was trained with, or use NGRAM"
        )
    return usual


def ascending(taps: tuple[int, ...], layers: int) -> bool:
    return sorted({*taps} & {*range(layers + 1)}) == [*taps]


def check_family(algorithm: str | None, facts: ModelFacts) -> None:
    """Whether the served model is one that heads draft for. Raises ConfigError."""
    if facts.decoder is None or (algorithm == EAGLE3 and facts.architecture in OTHER_RESIDUALS):
        raise ConfigError(
            f"--speculative-algorithm {algorithm}: heads do not draft for {facts.architecture} "
            "here; use NGRAM or STANDALONE"
        )


def check_shapes(draft: DraftModel, facts: ModelFacts) -> None:
    """Of a head, against `facts` of the served model. Raises ConfigError."""
    own, head = draft.facts, draft.head
    where = f"{PATH} {draft.source.path}"
    narrow = head is not None and head.own_embedding
    for what, ours, wanted in (
        ("hidden size", own.hidden_size, facts.hidden_size),
        ("vocabulary", own.vocabulary, facts.vocabulary),
    ):
        if ours != wanted and not (narrow and what == "hidden size"):
            raise ConfigError(
                f"{where}: its {what} is {ours}, the model's {wanted}; use a head that was trained "
                "for it, with its hidden size and vocabulary"
            )
    if head is not None and head.vocabulary > own.vocabulary:
        raise ConfigError(
            f"{where}: draft_vocab_size {head.vocabulary} is above vocab_size {own.vocabulary}; "
            "correct its config.json"
        )
