"""Linear layers, declared by the checkpoint's parts and kept as one product; the gated MLP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vivace.layers.module import Bindings, Module, Weights, sibling
from vivace.platforms.ops.table import gated_mlp
from vivace.quantization.method import LinearMethod


@dataclass(frozen=True)
class Part:
    """One tensor of the checkpoint: its name beside this layer, and its rows."""

    name: str
    size: int


class Linear(Module):
    """x[T, inputs] -> [T, sum of parts]: q, k and v (or gate and up) are one product."""

    method: LinearMethod

    def __init__(self, inputs: int, parts: Sequence[Part], *, bias: bool = False) -> None:
        self.inputs = inputs
        self.parts = tuple(parts)
        self.bias = bias

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self.method = env.linear_method(name)
        self._linear = env.ops.linear
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
        operands = self.method.operands
        return self._linear(x, operands.weight, operands.bias)


class GatedMLP(Module):
    """down(act(gate(x)) * up(x)); `activation`: one of `platforms.ops.table.ACTIVATIONS`."""

    def __init__(self, hidden: int, inner: int, activation: str, *, bias: bool = False) -> None:
        self.activation = activation
        self.gate_up_proj = Linear(
            hidden, [Part("gate_proj", inner), Part("up_proj", inner)], bias=bias
        )
        self.down_proj = Linear(inner, [Part("down_proj", hidden)], bias=bias)

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._run = env.ops.gated_mlp or gated_mlp(env.ops)

    def __call__(self, x: Tensor) -> Tensor:
        """x[T, hidden] -> [T, hidden]"""
        up, down = self.gate_up_proj.method.operands, self.down_proj.method.operands
        return self._run(x, up, down, self.activation)


def joined(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
