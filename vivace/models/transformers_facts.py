"""Question and answer between who wants to know what transformers' code does with a model and
who finds out (`transformers_trace`). Torch-free."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import msgspec

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.source import ModelSource
from vivace.models.facts import (
    ModelFacts,
    ModelFields,
    Traced,
    architecture_of,
    dtype_of,
    ends_of,
)
from vivace.models.quantized import refuse_quantized

PACKAGE = "transformers"


class Question(msgspec.Struct, frozen=True):
    architecture: str
    config: dict[str, Any]


class Answer(msgspec.Struct, frozen=True):
    """Either."""

    traced: Traced | None = None
    refused: str = ""


def question_of(source: ModelSource) -> Question:
    refuse_quantized(ModelFields(source))
    return Question(architecture_of(source), source.config)


def facts_from(source: ModelSource, question: Question, answer: Answer) -> ModelFacts:
    if answer.traced is None:
        raise SourceError(
            f"{source.path}: {question.architecture} is not run by --model-impl transformers "
            f"(transformers {version(PACKAGE)}): {answer.refused}. docs/models.md lists what is"
        )
    return traced_facts(source, answer.traced)


def traced_facts(source: ModelSource, traced: Traced) -> ModelFacts:
    """The facts of a model that transformers' code runs, as it was traced."""
    config = ModelFields(source)
    windows = tuple(one.window for one in traced.attention)
    ends, notices = ends_of(source, config, traced.vocabulary)
    return ModelFacts(
        architecture=architecture_of(source),
        model_type=config.need_known("model_type"),
        hidden_size=traced.hidden_size,
        layers=len(traced.attention),
        heads=max(one.heads for one in traced.attention),
        kv_heads=max(one.kv_heads for one in traced.attention),
        head_dim=max(one.head_dim for one in traced.attention),
        intermediate_size=0,
        vocabulary=traced.vocabulary,
        context=traced.context,
        dtype=dtype_of(config),
        tied=traced.tied,
        eos_ids=ends,
        sliding_window=next((w for w in windows if w), None),
        layer_windows=windows,
        parameters=traced.parameters,
        attention=traced.attention,
        config=source.config,
        notices=(*source.notices, *notices, *traced.limits),
    )
