"""Models that answer with numbers, from their facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from vivace.checkpoint.open import TIED
from vivace.checkpoint.source import ModelSource
from vivace.layers.module import Module
from vivace.models.causal_lm import CausalLM, ModelStep
from vivace.models.facts import ModelFacts
from vivace.models.pooling.heads import LabelHead, build_head
from vivace.platforms.cache import CacheLayer


class PooledModel(Module):
    """A model whose hidden states are pooled, and the head that makes numbers of them, if any.
    Their tensors have names of their own, so neither adds to these."""

    def __init__(self, body: Any, head: LabelHead | None, step_token: int | None) -> None:
        """`body`: a CausalLM, or an encoder, as far as it is called here; `step_token`: behind
        which the head judges, None: it judges texts"""
        self._body = body
        self._head = head
        self.step_token = step_token

    def children(self) -> Iterator[tuple[str, Module]]:
        yield "", self._body
        if self._head is not None:
            yield "", self._head

    @property
    def attention_layers(self) -> Sequence[CacheLayer]:
        return self._body.attention_layers

    def forward(self, step: ModelStep) -> Tensor:
        return self._body.forward(step)

    def lm_head(self, hidden: Tensor) -> Tensor:
        return self._body.lm_head(hidden)

    def classify(self, states: Tensor) -> Tensor:
        """states[..., hidden] float32 -> [..., labels] float32; without a head what came"""
        return states if self._head is None else self._head(states)


def build_pooled(facts: ModelFacts, build_decoder: Callable[[ModelFacts], CausalLM]) -> CausalLM:
    """`build_decoder`: makes a model of the facts of one that generates."""
    pooled = facts.pooled
    assert pooled is not None
    if pooled.encoder is None:
        body: Any = build_decoder(replace(facts, pooled=None))
    else:
        from vivace.models.pooling.encoder import BidirectionalEncoder

        body = BidirectionalEncoder(facts, pooled.encoder)
    return PooledModel(body, build_head(facts) if pooled.head else None, pooled.step_token)


def without_head(source: ModelSource, facts: ModelFacts) -> tuple[ModelSource, ModelFacts]:
    """The same with the embedding as output layer, for those who ask for no logits: what the files
    have of one, or lack, does not matter."""
    if facts.decoder is None:
        return source, facts
    overridden = (*source.overridden, TIED)
    return replace(source, overridden=overridden), replace(facts, tied=True)
