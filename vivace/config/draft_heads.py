"""Heads that draft (EAGLE): what their checkpoints say, and whether they fit the served model."""

from __future__ import annotations

from dataclasses import replace

from vivace.checkpoint.fields import ConfigFields, Integer, ListOf, Text
from vivace.checkpoint.source import ModelSource, SourceError
from vivace.config.config import DraftModel, HeadShape, ModelContext
from vivace.config.drafts import EAGLE3
from vivace.config.errors import ConfigError
from vivace.models.facts import ModelFacts, read_facts

PATH = "--speculative-draft-model-path"
LLAMA = "LlamaForCausalLM"
CLASSES = {
    EAGLE3: (f"{LLAMA}Eagle3",),
    "EAGLE": (f"{LLAMA}Eagle", LLAMA),
}
"""of `architectures` in the config.json of a head; EAGLE's own are called as the model is"""
OTHER_RESIDUALS = ("Gemma2ForCausalLM", "Gemma3ForCausalLM")
"""whose layers hand on something else than heads are trained with"""
MOST = 1 << 24
TAPPED = "eagle_aux_hidden_state_layer_ids"


def read_head(algorithm: str | None, source: ModelSource, facts: ModelFacts) -> DraftModel:
    """`facts`: of the served model. Raises SourceError naming the bad key."""
    classes = CLASSES.get(algorithm or "", ())
    given = ConfigFields(source.config, source.place)
    first = given.need("architectures", ListOf(Text(), 64, 1))[0]
    if first not in classes:
        raise SourceError(
            f"{source.place('architectures')} is {first!r}: --speculative-algorithm {algorithm} "
            f"takes heads of {' or '.join(classes)}"
        )
    config = {**source.config, "architectures": [LLAMA], "tie_word_embeddings": False}
    config.setdefault("model_type", "llama")
    read = replace(source, config=config)
    fields = ConfigFields(config, source.place)
    own = read_facts(read)
    if own.layers != 1:
        raise SourceError(f"{source.place('num_hidden_layers')} is {own.layers}: heads have 1")
    vocabulary = fields.get("draft_vocab_size", Integer(1, MOST), own.vocabulary)
    taps = read_taps(fields, facts.layers) if algorithm == EAGLE3 else ()
    head = HeadShape(taps=taps, vocabulary=vocabulary)
    return DraftModel(source=read, facts=own, head=head)


def head_behind(source: ModelSource, facts: ModelFacts, *, each: bool) -> DraftModel:
    """The first layer for multi-token prediction of a whole model, or `each`. Raises
    ConfigError."""
    if not facts.draft_layers or facts.decoder is None:
        raise ConfigError(
            f"{source.path} has no layers for drafts behind its last one "
            "(num_nextn_predict_layers); use EAGLE3 or STANDALONE with another path, or NGRAM"
        )
    if source.format not in ("safetensors", "dummy"):
        raise ConfigError(
            f"{source.path}: layers for drafts are read from safetensors files, this is a "
            f"{source.format} model; use NGRAM or STANDALONE"
        )
    head = HeadShape(vocabulary=facts.vocabulary, behind=facts.draft_layers if each else 1)
    return DraftModel(source=source, facts=facts, head=head)


def read_taps(fields: ConfigFields, layers: int) -> tuple[int, ...]:
    """Which layers' inputs: those behind the layers that `eagle_config` names; by
    default the third one, the middle one and the third last one."""
    inner = fields.inner("eagle_config")
    if inner is None or not inner.has(TAPPED):
        return (2, layers // 2, layers - 3)
    ids = inner.need(TAPPED, ListOf(Integer(-1, MOST), 16, 1))
    return tuple(one + 1 for one in ids)


def check_head(context: ModelContext, draft: DraftModel, head: HeadShape) -> list[str]:
    facts, own = context.facts, draft.facts
    where = f"{PATH} {draft.source.path}"
    remedy = f"use a head that was trained for {context.source.path}"
    if facts.decoder is None or (head.taps and facts.architecture in OTHER_RESIDUALS):
        raise ConfigError(
            f"{where}: heads do not draft for {facts.architecture} here; use NGRAM or STANDALONE"
        )
    for what, ours, wanted in (
        ("hidden size", own.hidden_size, facts.hidden_size),
        ("vocabulary", own.vocabulary, facts.vocabulary),
    ):
        if ours != wanted:
            raise ConfigError(f"{where}: its {what} is {ours}, the model's {wanted}; {remedy}")
    if head.vocabulary > own.vocabulary:
        raise ConfigError(
            f"{where}: draft_vocab_size {head.vocabulary} is above vocab_size {own.vocabulary}; "
            "correct its config.json"
        )
    if any(not 0 <= tap < facts.layers for tap in head.taps) or (
        sorted(set(head.taps)) != list(head.taps)
    ):
        shown = ", ".join(str(tap - 1) for tap in head.taps)
        raise ConfigError(
            f"{where}: it wants what layers {shown} hand on, in their order, and the model has "
            f"{facts.layers}; {remedy}"
        )
    return []
