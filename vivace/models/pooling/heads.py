"""Heads that judge texts: hidden state of a token -> one number for each label."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from vivace.checkpoint.weights import Weights
from vivace.layers.module import Bindings, Module
from vivace.models.facts import ModelFacts
from vivace.models.pooling.kinds import BERT, LINEAR, MLP, ROBERTA


class Projection(Module):
    """x[..., inputs] -> [..., outputs], in float32 and whole on every rank."""

    weight: Tensor
    bias: Tensor | None = None

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        self.shape = (outputs, inputs)
        self.has_bias = bias

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._device = env.device
        self.elsewhere = env.layout.stage.target is not None

    def load(self, weights: Weights) -> None:
        self.weight = self._take(weights, "weight", self.shape)
        if self.has_bias:
            self.bias = self._take(weights, "bias", self.shape[:1])

    def update(self, weights: Weights) -> None:
        self.weight.copy_(self._take(weights, "weight", self.shape))
        if self.bias is not None:
            self.bias.copy_(self._take(weights, "bias", self.shape[:1]))

    def _take(self, weights: Weights, suffix: str, shape: tuple[int, ...]) -> Tensor:
        return weights.take(f"{self.name}.{suffix}", shape).to(self._device, torch.float32)

    def claims(self) -> Iterator[str]:
        yield f"{self.name}.weight"
        if self.has_bias:
            yield f"{self.name}.bias"

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


class LabelHead(Module):
    """Layers one behind the other, by their names in the checkpoint, and what lies between them."""

    def __init__(self, layers: dict[str, Projection], between: str) -> None:
        self._layers = layers
        self._between = getattr(torch, between)

    def children(self) -> Iterator[tuple[str, Module]]:
        yield from self._layers.items()

    def __call__(self, x: Tensor) -> Tensor:
        """x[..., hidden] float32 -> [..., labels] float32"""
        first, *others = self._layers.values()
        x = first(x)
        for layer in others:
            x = layer(self._between(x))
        return x


def build_head(facts: ModelFacts) -> LabelHead:
    """The head of a model that has one."""
    pooled, hidden = facts.pooled, facts.hidden_size
    assert pooled is not None and pooled.classifier is not None
    labels = len(pooled.classifier.labels)
    prefix = pooled.encoder.prefix if pooled.encoder is not None else ""
    layers = {
        LINEAR: {"score": Projection(hidden, labels, bias=False)},
        MLP: {"score.0": Projection(hidden, hidden), "score.2": Projection(hidden, labels)},
        BERT: {
            f"{prefix}.pooler.dense": Projection(hidden, hidden),
            "classifier": Projection(hidden, labels),
        },
        ROBERTA: {
            "classifier.dense": Projection(hidden, hidden),
            "classifier.out_proj": Projection(hidden, labels),
        },
    }
    return LabelHead(layers[pooled.head], "relu" if pooled.head == MLP else "tanh")
