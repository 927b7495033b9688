"""Models that answer with numbers: what these mean, and what they are made of, by the keys of
config.json. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vivace.checkpoint.fields import CORRECT, ConfigFields, Integer, OneOf, Text
from vivace.checkpoint.source import ModelSource

SIGMOID, IDENTITY = "sigmoid", "identity"
MOST_LABELS = 1 << 16
ACTIVATIONS = {
    f"{module}{name}": meant
    for module in ("torch.nn.modules.linear.", "torch.nn.modules.activation.", "torch.nn.", "")
    for name, meant in (("Identity", IDENTITY), ("Sigmoid", SIGMOID))
}
"""classes that sentence-transformers writes -> what becomes of a cross-encoder's number"""
PROBLEMS = {
    "regression": False,
    "single_label_classification": False,
    "multi_label_classification": True,
}
"""transformers' `problem_type` -> whether several labels may be right at once"""
USUAL_LABELS = 2
"""in transformers, where no key says how many"""


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """`labels`: one for each number; `independent`: each is a probability of its own, not one of
    several that add up to 1; `activation`: SIGMOID or IDENTITY, of the one number of a pair."""

    labels: tuple[str, ...]
    independent: bool
    activation: str


@dataclass(frozen=True, kw_only=True)
class EncoderFacts:
    """Tables of an encoder, in rows. A token of the second text of a pair has an id that is
    `words` larger, so it is known where that text begins; `first_position`: of the first token."""

    prefix: str
    words: int
    positions: int
    first_position: int
    types: int
    norm_eps: float
    activation: str
    pooler: bool
    """its files have a layer that a classifier uses"""
    theta: float | None = None
    """of positions by which queries and keys turn; None: there is a table of them"""
    plain: bool = True
    """layers have biases, and MLPs no gates"""

    @property
    def pair_step(self) -> int:
        """What is added to the ids of the second text of a pair."""
        return self.words if self.types > 1 else 0


@dataclass(frozen=True, kw_only=True)
class PooledFacts:
    """`head`: LINEAR or MLP of a decoder, that of an encoder's family; "": vectors are the
    answer. `step_token`: ends a step of reasoning, where the head judges each."""

    head: str = ""
    classifier: Classifier | None = None
    encoder: EncoderFacts | None = None
    step_token: int | None = None


def read_classifier(source: ModelSource, count: int | None = None) -> Classifier:
    """`count`: of numbers, where the class of the model says it. Raises SourceError naming the
    key."""
    fields = ConfigFields(source.config, source.place, CORRECT)
    labels = read_labels(fields, count)
    several = fields.get("problem_type", OneOf(PROBLEMS), False)
    usual = SIGMOID if len(labels) == 1 else IDENTITY
    inner = fields.inner("sentence_transformers")
    key = "sbert_ce_default_activation_function"
    activation = fields.get(key, OneOf(ACTIVATIONS), usual)
    if inner is not None:
        activation = inner.get("activation_fn", OneOf(ACTIVATIONS), activation)
    return Classifier(labels=labels, independent=several or len(labels) == 1, activation=activation)


def read_labels(fields: ConfigFields, count: int | None) -> tuple[str, ...]:
    named: Mapping[str, Any] = fields.get("id2label", Labels(), {})
    if count is None:
        count = fields.get("num_labels", Integer(1, MOST_LABELS), len(named) or USUAL_LABELS)
    if len(named) != count:
        return tuple(f"LABEL_{index}" for index in range(count))
    return tuple(named[str(index)] for index in range(count))


class Labels:
    """`id2label`: {"0": name, "1": name ...}."""

    expected = f'an object {{"0": name, "1": name ...}} of at most {MOST_LABELS} names'

    def read(self, value: Any) -> dict[str, str]:
        if not isinstance(value, dict) or not 0 < len(value) <= MOST_LABELS:
            raise ValueError
        if set(value) != {str(index) for index in range(len(value))}:
            raise ValueError
        return {key: Text().read(name) for key, name in value.items()}
