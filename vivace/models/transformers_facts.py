"""Question and answer between who wants to know what transformers' code does with a model and
who finds out (`transformers_trace`). Torch-free."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import msgspec

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.source import ModelSource
from vivace.models.facts import ModelFacts, ModelFields, Traced, architecture_of, traced_facts
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
