"""Facts of models that answer with numbers: decoders with a head that judges a text, and encoders.
Torch-free, as are those of models that generate."""

from __future__ import annotations

from dataclasses import replace

from vivace.checkpoint.classifier import EncoderFacts, PooledFacts, read_classifier
from vivace.checkpoint.fields import ConfigFields, Flag, Integer, Number, OneOf
from vivace.checkpoint.pooling import CLS, LAST, STEPS, PoolerConfig, read_pooling
from vivace.checkpoint.source import ModelSource
from vivace.models.class_name import read_class_name
from vivace.models.config_fields import TABLE, ModelFields
from vivace.models.facts import ModelFacts, checkpoint_quantization, read_dtype, read_facts
from vivace.models.head_facts import check_projected
from vivace.models.pooling.kinds import BERT, ENCODERS, JUDGES, NOMIC, ROBERTA, STEP_TOKEN
from vivace.models.pooling.nomic import (
    nomic_source,
    read_length,
    read_theta,
    refuse_other_nomic,
)
from vivace.models.registry import check_architecture

STEP_KEY = "step_tag_id"
ENCODER_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}
"""a configuration's name -> the operation's"""


def read_served_facts(source: ModelSource) -> ModelFacts:
    """The facts of whatever Vivace has written. Raises SourceError naming the bad key, or the
    architecture that is not supported."""
    if read_class_name(source) in ENCODERS:
        return read_encoder(source)
    check_architecture(source)
    facts = read_facts(source)
    named = source.config["architectures"][0]
    judge = next((kind for ending, kind in JUDGES.items() if named.endswith(ending)), None)
    if judge is None:
        return facts
    classifier = read_classifier(source, judge.labels)
    step = read_step_token(source, facts) if judge.steps else None
    pooled = PooledFacts(head=judge.head, classifier=classifier, step_token=step)
    return replace(facts, pooled=pooled)


def read_step_token(source: ModelSource, facts: ModelFacts) -> int:
    """What ends a step of reasoning. Raises SourceError where the vocabulary has no such token."""
    fields = ConfigFields(source.config, source.place, source.advice)
    kind = Integer(0, facts.vocabulary - 1)
    if facts.vocabulary > STEP_TOKEN:
        return fields.get(STEP_KEY, kind, STEP_TOKEN)
    return fields.need(STEP_KEY, kind)


def read_pooler(source: ModelSource, facts: ModelFacts) -> PoolerConfig:
    """Which hidden states become an answer. Where the files of an encoder do not say it, the first
    token's, normalized, as in SGLang. Raises SourceError."""
    pooled = facts.pooled
    if pooled is None:
        return read_pooling(source, facts.hidden_size)
    first = CLS if pooled.encoder is not None else LAST
    if pooled.classifier is not None:
        mode = first if pooled.step_token is None else STEPS
        return PoolerConfig(mode=mode, normalize=False, dimensions=())
    found = read_pooling(source, facts.hidden_size)
    return found if found.stated else replace(found, mode=first)


# --- encoders -------------------------------------------------------------------------------


def read_encoder(source: ModelSource) -> ModelFacts:
    """Of BERT and its kin."""
    name = read_class_name(source)
    kind = ENCODERS[name]
    checkpoint_quantization(source)
    gguf = bool(source.spelling)  # there positions and names are as BERT's
    source = nomic_source(source) if kind.family == NOMIC else source
    fields = ModelFields(source)
    hidden, heads = fields.need_known("hidden_size"), fields.need_known("num_attention_heads")
    if hidden % heads:
        raise fields.refusal("num_attention_heads", f"hidden_size {hidden} is no multiple of it")
    check_projected(fields, heads, hidden // heads)
    refuse_others(fields)
    if kind.family == NOMIC:
        encoder = read_nomic_tables(fields)
    elif gguf:
        encoder = read_tables(fields, BERT, "")
    else:
        encoder = read_tables(fields, kind.family, kind.prefix)
    classifier = read_classifier(source) if kind.classifies else None
    layers, inner = fields.need_known("num_hidden_layers"), fields.need_known("intermediate_size")
    return ModelFacts(
        architecture=name,
        model_type=fields.get_known("model_type") or kind.family,
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=inner,
        vocabulary=encoder.words * encoder.types,
        context=encoder.positions - encoder.first_position,
        dtype=read_dtype(fields),
        tied=True,
        eos_ids=(),
        sliding_window=None,
        layer_windows=(None,) * layers,
        parameters=count_parameters(encoder, hidden, inner, layers),
        notices=source.notices,
        pooled=PooledFacts(
            head=kind.family if kind.classifies else "", classifier=classifier, encoder=encoder
        ),
    )


def refuse_others(fields: ConfigFields) -> None:
    """What an encoder's configuration may ask for that is not done."""
    if fields.get("is_decoder", Flag(), False):
        raise fields.unsupported("is_decoder", "only encoders of this architecture are supported")
    fields.get("position_embedding_type", OneOf({"absolute": ""}), "")


def read_tables(fields: ModelFields, family: str, prefix: str) -> EncoderFacts:
    """RoBERTa counts positions from behind that of its padding token."""
    words = fields.need_known("vocab_size")
    padding = fields.get("pad_token_id", Integer(0, words - 1), 1) if family == ROBERTA else -1
    positions = fields.get("max_position_embeddings", TABLE["max_position_embeddings"], 512)
    if positions <= padding + 1:
        raise fields.refusal("max_position_embeddings", f"position {padding} is for padding")
    return EncoderFacts(
        prefix=prefix,
        words=words,
        positions=positions,
        first_position=padding + 1,
        types=fields.get("type_vocab_size", Integer(1, 16), 2),
        norm_eps=fields.get("layer_norm_eps", Number(0, 0.1), 1e-12),
        activation=fields.get("hidden_act", OneOf(ENCODER_ACTIVATIONS), "gelu"),
        pooler=family == BERT,
    )


def read_nomic_tables(fields: ModelFields) -> EncoderFacts:
    refuse_other_nomic(fields)
    return EncoderFacts(
        prefix="",
        words=fields.need_known("vocab_size"),
        positions=read_length(fields),
        first_position=0,
        types=fields.get("type_vocab_size", Integer(1, 16), 2),
        norm_eps=fields.get("layer_norm_eps", Number(0, 0.1), 1e-12),
        activation=fields.get("hidden_act", OneOf(ENCODER_ACTIVATIONS), "silu"),
        pooler=False,
        theta=read_theta(fields),
        plain=False,
    )


def count_parameters(encoder: EncoderFacts, hidden: int, inner: int, layers: int) -> int:
    tables = encoder.words + encoder.types + (encoder.positions if encoder.theta is None else 0)
    if encoder.plain:
        layer = 4 * hidden * (hidden + 1) + 2 * hidden * inner + inner + hidden + 4 * hidden
    else:
        layer = 4 * hidden * hidden + 3 * hidden * inner + 4 * hidden
    return hidden * (tables + 2) + layers * layer
