"""Linear layers, declared by the checkpoint's parts and kept as one fused product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vivace.layers.module import Bindings, Module, Shard, Weights, sibling
from vivace.quantization.method import LinearMethod


@dataclass(frozen=True)
class Part:
    """One tensor of the checkpoint: its name beside this layer, and its rows.

    `unit` rows belong together (a head) and must stay on one device.
    """

    name: str
    size: int
    unit: int = 1


class Linear(Module):
    """x[T, inputs] -> [T, sum of parts]: q, k and v (or gate and up) are one product."""

    method: LinearMethod

    def __init__(
        self, inputs: int, parts: Sequence[Part], *, bias: bool = False, shard: Shard = Shard.COLUMN
    ) -> None:
        self.inputs = inputs
        self.parts = tuple(parts)
        self.bias = bias
        self.shard = shard

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self.method = env.linear_method(name)
        self._read = env.read

    def load(self, weights: Weights) -> None:
        rows = [
            self._read(weights, f"{sibling(self.name, part.name)}.weight", (part.size, self.inputs))
            for part in self.parts
        ]
        self.method.load(rows, joined(self._biases(weights)) if self.bias else None)

    def _biases(self, weights: Weights) -> list[Tensor]:
        return [
            weights.take(f"{sibling(self.name, part.name)}.bias", (part.size,))
            for part in self.parts
        ]

    def __call__(self, x: Tensor) -> Tensor:
        return self.method.apply(x)


def joined(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
