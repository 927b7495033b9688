"""What models are asked that judge texts, and what their numbers mean."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from vivace.checkpoint.classifier import SIGMOID, Classifier
from vivace.frontend.errors import BadRequest
from vivace.frontend.served_model import ServedModel
from vivace.requests.embeddings import NOTHING_DRAWN
from vivace.requests.prompts import PromptInput, new_id, own_rid
from vivace.requests.scores import probabilities

NO_CLASSES = (
    "the served model has no classes; serve one with a head for them, such as "
    "BertForSequenceClassification (docs/pooling.md lists which)"
)


def need_classifier(served: ServedModel) -> Classifier:
    if served.classifier is None:
        raise BadRequest("", NO_CLASSES)
    return served.classifier


def label_probabilities(classifier: Classifier, numbers: Sequence[float]) -> list[float]:
    """As transformers' pipeline: by a softmax, or of each label on its own."""
    if classifier.independent:
        return [sigmoid(number) for number in numbers]
    return probabilities(numbers, apply_softmax=True)


def sigmoid(number: float) -> float:
    return 0.5 + math.tanh(number / 2) / 2


def scores_pairs(served: ServedModel) -> bool:
    """Whether the model makes one number of a text, or of a pair: how good it is."""
    return served.classifier is not None and len(served.classifier.labels) == 1


def pair_inputs(
    served: ServedModel, prompts: Sequence[list[int]], rid: str | list[str] | None
) -> Iterator[PromptInput]:
    """Pairs of a query and a document as token ids."""
    fallback = new_id("rerank")
    for index, tokens in enumerate(prompts):
        yield PromptInput(
            tokens=tokens,
            sampling=NOTHING_DRAWN,
            prompt_field=f"documents[{index}]",
            rid=own_rid(rid, index, len(prompts)) or f"{fallback}-{index}",
            task=served.task,
        )


def pair_score(served: ServedModel, numbers: Sequence[float]) -> float:
    """How well a document answers, from what the head makes of the pair."""
    (number,) = numbers
    return sigmoid(number) if need_classifier(served).activation == SIGMOID else number
