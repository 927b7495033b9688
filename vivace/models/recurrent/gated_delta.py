"""Linear attention by the gated delta rule (Yang et al. 2024, arXiv 2412.06464), as Qwen3-Next has
it: projections, and a norm that is gated; the backend does the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from vivace.checkpoint.weights import Weights
from vivace.layers.layout import split
from vivace.layers.linear import Linear, Part, Shard
from vivace.layers.module import Bindings, Module
from vivace.platforms.attention import (
    AttendingStep,
    RecurrentInputs,
    RecurrentLayer,
    RecurrentWeights,
)
from vivace.platforms.ops.table import Ops


class RecurrentVectors(Module):
    """What a layer has beside its projections, for this rank's heads; at addresses that stay."""

    values: RecurrentWeights
    norm: Tensor
    """[value_dim]"""

    def __init__(self, shape: RecurrentLayer) -> None:
        self._shape = shape

    def bind(self, name: str, env: Bindings) -> None:
        """`name`: the layer's"""
        super().bind(name, env)
        shape, group = self._shape, env.layout.group("attention")
        keys = split(name, shape.key_heads * shape.key_dim, shape.key_dim, group)
        values = shape.value_heads * shape.value_dim
        self._heads = split(name, shape.value_heads, shape.group, group)
        self._channels = [
            keys,
            move(keys, shape.key_heads * shape.key_dim),
            move(
                split(name, values, shape.group * shape.value_dim, group),
                2 * shape.key_heads * shape.key_dim,
            ),
        ]
        heads = len(range(shape.value_heads)[self._heads])
        channels = sum(len(range(shape.channels)[part]) for part in self._channels)
        self.values = RecurrentWeights(
            conv=torch.zeros(shape.kernel, channels, device=env.device),
            decay=torch.zeros(heads, device=env.device),
            dt_bias=torch.zeros(heads, device=env.device),
        )
        self.norm = torch.zeros(shape.value_dim, dtype=env.dtype, device=env.device)

    def load(self, weights: Weights) -> None:
        shape, own, whole = self._shape, self.values, (self._shape.channels, 1, self._shape.kernel)
        taken = [weights.take(f"{self.name}.conv1d.weight", whole, part) for part in self._channels]
        own.conv.copy_(torch.cat(taken).squeeze(1).T)
        heads = (shape.value_heads,)
        own.decay.copy_(weights.take(f"{self.name}.A_log", heads, self._heads).float().exp())
        own.dt_bias.copy_(weights.take(f"{self.name}.dt_bias", heads, self._heads))
        self.norm.copy_(weights.take(f"{self.name}.norm.weight", (shape.value_dim,)))

    update = load

    def claims(self) -> Iterator[str]:
        for part in ("conv1d.weight", "A_log", "dt_bias", "norm.weight"):
            yield f"{self.name}.{part}"


class GatedDeltaNet(Module):
    """One layer. Ranks divide key heads, and the value heads that share them."""

    _ops: Ops

    def __init__(self, shape: RecurrentLayer, hidden: int, eps: float) -> None:
        self.shape = shape
        """this rank's heads, once it is bound"""
        values = shape.group * shape.value_dim
        of_key_head = 2 * shape.key_dim + 2 * values
        self.in_proj_qkvz = Linear(
            hidden,
            [Part("in_proj_qkvz", shape.key_heads * of_key_head, of_key_head)],
            shard=Shard.OUTPUTS,
            group="attention",
        )
        self.in_proj_ba = Linear(
            hidden,
            [Part("in_proj_ba", 2 * shape.value_heads, 2 * shape.group)],
            shard=Shard.OUTPUTS,
            group="attention",
        )
        self.out_proj = Linear(
            shape.value_heads * shape.value_dim,
            [Part("out_proj", hidden)],
            shard=Shard.INPUTS,
            group="attention",
            input_unit=values,
        )
        self._vectors = RecurrentVectors(shape)
        self._eps = eps
        self._sizes = [shape.key_dim, shape.key_dim, values, values]

    def children(self) -> Iterator[tuple[str, Module]]:
        """The vectors stand beside the projections."""
        yield from super().children()
        yield "", self._vectors

    def bind(self, name: str, env: Bindings) -> None:
        self.name = name
        for attribute, child in self.children():
            child.bind(f"{name}.{attribute}" if attribute else name, env)
        self._ops = env.ops
        heads = self.in_proj_ba.shape.parts[0].local_size // 2
        key_heads = heads // self.shape.group
        self.shape = replace(self.shape, key_heads=key_heads, value_heads=heads)

    def __call__(self, x: Tensor, step: AttendingStep) -> Tensor:
        """x[T, hidden] -> [T, hidden]; the states behind the spans are written on the way."""
        heads = self.shape.key_heads
        q, k, v, gate = self.in_proj_qkvz(x, step).unflatten(-1, (heads, -1)).split(self._sizes, -1)
        b, a = self.in_proj_ba(x, step).unflatten(-1, (heads, -1)).split(self.shape.group, -1)
        inputs = RecurrentInputs(q=q, k=k, v=v, a=a, b=b)
        said = step.attention.recur(self.shape, inputs, self._vectors.values, step)
        normed = self._ops.gated_rms_norm(said, self._vectors.norm, gate, self._eps)
        return self.out_proj(normed, step)


def move(rows: slice, by: int) -> slice:
    """The same rows behind `by` others."""
    return slice(rows.start + by, rows.stop + by)
