"""The gated feed-forward block."""

from __future__ import annotations

from torch import Tensor

from vivace.layers.linear import Linear, Part
from vivace.layers.module import Bindings, Module, Shard
from vivace.platforms.ops.mlp import gated_mlp


class GatedMLP(Module):
    """down(act(gate(x)) * up(x)); `activation`: one of `platforms.ops.mlp.ACTIVATIONS`."""

    def __init__(self, hidden: int, inner: int, activation: str, *, bias: bool = False) -> None:
        self.activation = activation
        self.gate_up_proj = Linear(
            hidden, [Part("gate_proj", inner), Part("up_proj", inner)], bias=bias
        )
        self.down_proj = Linear(inner, [Part("down_proj", hidden)], bias=bias, shard=Shard.ROW)

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._run = env.ops.gated_mlp or gated_mlp(env.ops)

    def __call__(self, x: Tensor) -> Tensor:
        """x[T, hidden] -> [T, hidden]"""
        up, down = self.gate_up_proj.method.operands, self.down_proj.method.operands
        return self._run(x, up, down, self.activation)
