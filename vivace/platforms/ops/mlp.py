"""The gated feed-forward block from the ops it consists of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from vivace.platforms.ops.linear import Operands

if TYPE_CHECKING:
    from vivace.platforms.ops.table import Ops

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")


def gated_mlp(
    ops: Ops,
) -> Callable[[Tensor, Operands, Operands, str], Tensor]:
    """down(act(gate(x)) * up(x)) by `ops`: the slow twin of a fused one."""
    activations: dict[str, Callable[[Tensor], Tensor]] = {
        "silu": ops.silu_mul,
        "gelu": lambda x: ops.gelu_mul(x, tanh=False),
        "gelu_tanh": lambda x: ops.gelu_mul(x, tanh=True),
    }

    def composed(x: Tensor, gate_up: Operands, down: Operands, activation: str) -> Tensor:
        inner = activations[activation](ops.linear(x, gate_up.weight, gate_up.bias))
        return ops.linear(inner, down.weight, down.bias)

    return composed
