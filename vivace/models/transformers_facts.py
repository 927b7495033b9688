"""What is asked about transformers' code for a model, what a trace of it says
(`transformers_trace` does it, in a process of its own), and the facts that follow. Torch-free."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import msgspec

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.source import ModelSource
from vivace.models.class_name import read_class_name, unread_parts
from vivace.models.config_fields import read_eos_token_ids
from vivace.models.facts import (
    ModelFacts,
    ModelFields,
    TracedModel,
    checkpoint_quantization,
    read_dtype,
)
from vivace.models.rope import read_stretch
from vivace.models.twins import twin_dtypes
from vivace.quantization.description import Int8Checkpoint

PACKAGE = "transformers"


class TraceRequest(msgspec.Struct, frozen=True):
    """`config`: as in config.json."""

    architecture: str
    config: dict[str, Any]


class TraceResult(msgspec.Struct, frozen=True):
    """Either: `refused` is the reason why Vivace cannot run it."""

    traced: TracedModel | None = None
    refused: str = ""


def trace_request(source: ModelSource) -> TraceRequest:
    checkpoint = checkpoint_quantization(source)
    if not isinstance(checkpoint, Int8Checkpoint | None):
        raise SourceError(
            f"{source.path}: {checkpoint.method} weights, which --model-impl transformers does not "
            "read; leave it out where Vivace has the architecture itself"
        )
    return TraceRequest(read_class_name(source), source.config)


def facts_from(source: ModelSource, request: TraceRequest, result: TraceResult) -> ModelFacts:
    if result.traced is None:
        raise SourceError(
            f"{source.path}: {request.architecture} is not run by --model-impl transformers "
            f"(transformers {version(PACKAGE)}): {result.refused}. docs/models.md lists what is"
        )
    return traced_facts(source, result.traced)


def traced_facts(source: ModelSource, traced: TracedModel) -> ModelFacts:
    """The facts of a model that transformers' code runs, as it was traced."""
    config = ModelFields(source)
    windows = tuple(one.window for one in traced.attention)
    ends, notices = read_eos_token_ids(source, config, traced.vocabulary)
    model_type = config.need_known("model_type")
    return ModelFacts(
        architecture=read_class_name(source),
        model_type=model_type,
        hidden_size=traced.hidden_size,
        layers=len(traced.attention),
        heads=max(one.heads for one in traced.attention),
        kv_heads=max(one.kv_heads for one in traced.attention),
        head_dim=max(one.head_dim for one in traced.attention),
        intermediate_size=0,
        vocabulary=traced.vocabulary,
        context=traced.context,
        dtype=read_dtype(config),
        tied=traced.tied,
        eos_ids=ends,
        sliding_window=next((w for w in windows if w), None),
        layer_windows=windows,
        parameters=traced.parameters,
        kv_elements=sum(one.kv_elements for one in traced.attention),
        full_kv_elements=sum(one.kv_elements for one in traced.attention if one.window is None),
        attention=traced.attention,
        config=source.config,
        # transformers' dynamic scaling grows for all sequences at once (`longest_exact`).
        stretch=read_stretch(config, traced.context, model_type, ("linear",)),
        notices=(
            *source.notices,
            *unread_parts(source),
            *notices,
            *twin_dtypes(config),
            *traced.limits,
        ),
    )
