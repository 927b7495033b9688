"""The gated feed-forward block."""

from __future__ import annotations

from torch import Tensor

from vivace.layers.linear import Linear, Part
from vivace.layers.module import Bindings, Module, Shard
from vivace.platforms.ops.table import Ops


class GatedMLP(Module):
    """down(act(gate(x)) * up(x)); `activation` is a configuration's name for it."""

    _ops: Ops

    def __init__(self, hidden: int, inner: int, activation: str, *, bias: bool = False) -> None:
        if activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise ValueError(f"activation {activation!r} is not supported; known: {known}")
        self.activation = activation
        self.gate_up_proj = Linear(
            hidden, [Part("gate_proj", inner), Part("up_proj", inner)], bias=bias
        )
        self.down_proj = Linear(inner, [Part("down_proj", hidden)], bias=bias, shard=Shard.ROW)

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._act = ACTIVATIONS[self.activation](env.ops)

    def __call__(self, x: Tensor) -> Tensor:
        """x[T, hidden] -> [T, hidden]"""
        return self.down_proj(self._act(self.gate_up_proj(x)))


ACTIVATIONS = {
    "silu": lambda ops: ops.silu_mul,
    "swish": lambda ops: ops.silu_mul,
    "gelu": lambda ops: lambda x: ops.gelu_mul(x, tanh=False),
    "gelu_new": lambda ops: lambda x: ops.gelu_mul(x, tanh=True),
    "gelu_pytorch_tanh": lambda ops: lambda x: ops.gelu_mul(x, tanh=True),
}
