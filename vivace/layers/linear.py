"""Layers that keep weights of the checkpoint: linear layers, declared by their parts and kept as
one product, the gated MLP, token embeddings, the head that may share their weight, and norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from vivace.checkpoint.weights import Weights
from vivace.layers.layout import split, split_or_repeat, split_unevenly
from vivace.layers.module import Bindings, Module, sibling
from vivace.layers.sums import SumTree
from vivace.platforms.attention import AttendingStep
from vivace.platforms.groups import Group, SingleRank
from vivace.platforms.ops.stored import Fp8Groups, Int8Rows
from vivace.platforms.ops.table import Ops, PackedWeight, gated_activation
from vivace.quantization.method import (
    ALL,
    LayerWeights,
    LinearMethod,
    LinearShape,
    LocalPart,
    claim_tensors,
    is_fusible,
)
from vivace.quantization.packed import PackedMethod, SharedMethod
from vivace.quantization.plain import read_floats


@dataclass(frozen=True)
class Part:
    """One tensor of the checkpoint: its name beside this layer, and its rows.

    `unit` rows stay together (a head); `repeated`: where there are fewer units than ranks, several
    ranks have the same.
    """

    name: str
    size: int
    unit: int = 1
    repeated: bool = False


class Shard(Enum):
    """What a group's ranks divide among them: a layer's outputs, or its inputs, and then the
    results of all are added up."""

    OUTPUTS = "outputs"
    INPUTS = "inputs"


class Linear(Module):
    """x[T, inputs] -> [T, sum of parts]: q, k and v (or gate and up) are one product.

    Where ranks divide it, this one's share of both. `group`: the field of `ParallelLayout`.
    """

    method: LinearMethod
    shape: LinearShape
    tree: SumTree | None = None
    """the order in which what ranks have is added, where it is a fixed one"""

    def __init__(
        self,
        inputs: int,
        parts: Sequence[Part],
        *,
        shard: Shard,
        group: str,
        bias: bool = False,
        input_unit: int = 1,
        floats: bool = False,
    ) -> None:
        """`floats`: whatever the others are quantized to"""
        self.inputs = inputs
        self.parts = tuple(parts)
        self.bias = bias
        self.shard = shard
        self.group = group
        self.input_unit = input_unit
        self.floats = floats

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self.shape = self._share(env)
        parts = [part.name for part in self.shape.parts]
        self.method = (
            PackedMethod(env.packer, read_floats)
            if self.floats
            else env.quantization.linear_method(name, parts)
        )

    def _share(self, env: Bindings) -> LinearShape:
        layout, group = env.layout, env.layout.group(self.group)
        inputs = self.shard is Shard.INPUTS
        if inputs:
            self.tree = layout.sum_tree(self.name, self.inputs, self.input_unit, group)
        self._sum: Callable[[Tensor], Tensor] | None = (
            layout.sums(self.group, env.ops, self.tree).sum if inputs and group.size > 1 else None
        )
        return LinearShape(
            parts=tuple(
                LocalPart(
                    sibling(self.name, part.name),
                    part.size,
                    ALL if inputs else self._rows(part, group),
                )
                for part in self.parts
            ),
            inputs=self.inputs,
            columns=split(self.name, self.inputs, self.input_unit, group) if inputs else ALL,
            bias=self.bias,
            adds_bias=not inputs or group.rank == 0,
            segments=None if self.tree is None else self.tree.segments,
        )

    def _rows(self, part: Part, group: Group) -> slice:
        divide = split_or_repeat if part.repeated else split
        return divide(sibling(self.name, part.name), part.size, part.unit, group)

    def load(self, weights: Weights) -> None:
        self.method.load(LayerWeights(weights, self.shape))

    def update(self, weights: Weights) -> None:
        self.method.update(LayerWeights(weights, self.shape))

    def claims(self) -> Iterator[str]:
        return claim_tensors(self.shape, self.method.suffixes())

    def __call__(self, x: Tensor, step: AttendingStep) -> Tensor:
        return self.complete(self.method.apply(x, step))

    def complete(self, y: Tensor) -> Tensor:
        """What this rank's share of the inputs gives -> the whole"""
        return y if self._sum is None else self._sum(y)


class GatedMLP(Module):
    """down(act(gate(x)) * up(x)); `activation`: one of `platforms.ops.table.ACTIVATIONS`."""

    def __init__(
        self,
        hidden: int,
        inner: int,
        activation: str,
        *,
        bias: bool = False,
        group: str = "dense",
    ) -> None:
        self.activation = activation
        self.gate_up_proj = Linear(
            hidden,
            [Part("gate_proj", inner), Part("up_proj", inner)],
            bias=bias,
            shard=Shard.OUTPUTS,
            group=group,
        )
        self.down_proj = Linear(
            inner, [Part("down_proj", hidden)], bias=bias, shard=Shard.INPUTS, group=group
        )

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        down = self.down_proj
        self._tokens = env.layout.exchange(down.group, env.ops, down.tree)
        methods = self.gate_up_proj.method, down.method
        fused = fuse_mlp(env.ops, *methods, self.activation) if down.tree is None else None
        self._run = fused or compose_mlp(env.ops, *methods, self.activation)

    def __call__(self, x: Tensor, step: AttendingStep) -> Tensor:
        """x[T, hidden] -> [T, hidden]"""
        return self.complete(self.share(self._tokens.gather(x, step), step), step)

    def complete(self, y: Tensor, step: AttendingStep) -> Tensor:
        """What all ranks have of it, added up"""
        return self._tokens.complete(y, step)

    def share(self, x: Tensor, step: AttendingStep) -> Tensor:
        """What this rank has of it: all ranks' are to be added up."""
        return self._run(x, step)


GatedProduct = Callable[[Tensor, AttendingStep], Tensor]


def fuse_mlp(
    ops: Ops, gate_up: LinearMethod, down: LinearMethod, activation: str
) -> GatedProduct | None:
    """Both products in one op; None where the device has none, or a method does more than the
    product with its operands."""
    gated = ops.gated_mlp
    if gated is None or not is_fusible(gate_up) or not is_fusible(down):
        return None
    return lambda x, step: gated(x, gate_up.operands, down.operands, activation)


def compose_mlp(
    ops: Ops, gate_up: LinearMethod, down: LinearMethod, activation: str
) -> GatedProduct:
    activate = gated_activation(ops, activation)
    return lambda x, step: down.apply(activate(gate_up.apply(x, step)), step)


class Embedding(Module):
    """ids[T] -> [T, hidden], times `scale` (Gemma scales by sqrt(hidden)).

    Where ranks divide the vocabulary, each adds the rows of its own ids.
    """

    weight: PackedWeight
    shape: LinearShape
    _ops: Ops

    def __init__(self, vocabulary: int, hidden: int, *, scale: float | None = None) -> None:
        self.vocabulary = vocabulary
        self.hidden = hidden
        self._scale = scale
        self._group: Group = SingleRank()

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._ops = env.ops
        self._place = env.device, env.packer.dtype
        self._take_matrix = env.quantization.take_matrix
        self._group = env.layout.vocabulary
        self.sizes = split_unevenly(self.vocabulary, self._group)
        self._first = sum(self.sizes[: self._group.rank])
        rows = slice(self._first, self._first + self.sizes[self._group.rank])
        self.shape = LinearShape((LocalPart(name, self.vocabulary, rows),), self.hidden)
        if self._scale is not None:
            # The reference rounds the scale to the model's dtype before it multiplies.
            self._scale = float(torch.tensor(self._scale, dtype=env.packer.dtype))

    def load(self, weights: Weights) -> None:
        self.weight = self._pack(weights)

    def update(self, weights: Weights) -> None:
        self._ops.update_weight(self.weight, self._pack(weights))

    def _pack(self, weights: Weights) -> PackedWeight:
        read = self._take_matrix(LayerWeights(weights, self.shape), self.shape.parts[0])
        if isinstance(read, Int8Rows | Fp8Groups):
            read = read.dequantize()
        return self._ops.pack_embedding(read.to(*self._place) if isinstance(read, Tensor) else read)

    def claims(self) -> Iterator[str]:
        return claim_tensors(self.shape, EMBEDDING_SUFFIXES)

    def __call__(self, ids: Tensor) -> Tensor:
        if self._group.size == 1:
            embedded = self._ops.embedding(ids, self.weight)
        else:
            share = self._ops.embedding(ids, self.weight, first=self._first, whole=self.vocabulary)
            embedded = self._group.sum(share)
        return embedded if self._scale is None else self._ops.scale(embedded, self._scale)


EMBEDDING_SUFFIXES = ("weight", "weight_scale")


class LogitsHead(Module):
    """hidden[n, hidden] -> logits[n, vocabulary] in float32, soft-capped where the family does."""

    method: LinearMethod
    shape: LinearShape
    _ops: Ops

    def __init__(self, embedding: Embedding, *, tied: bool, soft_cap: float | None = None) -> None:
        self._embedding = embedding
        self.tied = tied
        self.soft_cap = soft_cap

    def bind(self, name: str, env: Bindings) -> None:
        """After the embedding."""
        super().bind(name, env)
        self._ops = env.ops
        self._group = env.layout.vocabulary
        (part,) = self._embedding.shape.parts
        self.shape = LinearShape((LocalPart(name, part.size, part.rows),), self._embedding.hidden)
        self.method = (
            SharedMethod(env.packer, lambda: self._embedding.weight)
            if self.tied
            else env.quantization.linear_method(name, [name])
        )

    def load(self, weights: Weights) -> None:
        """After the embedding."""
        self.method.load(LayerWeights(weights, self.shape))

    def update(self, weights: Weights) -> None:
        """After the embedding."""
        self.method.update(LayerWeights(weights, self.shape))

    def claims(self) -> Iterator[str]:
        """Its own copy too where it is the embedding: files may have one."""
        return claim_tensors(self.shape, (*self.method.suffixes(), *EMBEDDING_SUFFIXES))

    def __call__(self, hidden: Tensor) -> Tensor:
        logits = self.method.apply(hidden, None).float()
        if self._group.size > 1:
            logits = self._group.gather(logits, self._embedding.sizes)
        return logits if self.soft_cap is None else self._ops.soft_cap(logits, self.soft_cap)


class RMSNorm(Module):
    """Root mean square normalization; `offset` is added to the learned scale (Gemma: 1)."""

    weight: Tensor
    bias: Tensor | None = None
    """of checkpoints that moved a part of the activations into it"""
    keeps_residual: bool = False
    """somebody else reads what it was"""
    _ops: Ops

    def __init__(self, size: int, eps: float, *, offset: float = 0.0) -> None:
        self.size = size
        self.eps = eps
        self.offset = offset

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._ops = env.ops
        self._place = env.device, env.dtype
        self._may_have_bias = env.quantization.norm_biases

    def load(self, weights: Weights) -> None:
        self.weight = self._take(weights, "weight")
        if self._may_have_bias and weights.has(f"{self.name}.bias"):
            self.bias = self._take(weights, "bias")

    def update(self, weights: Weights) -> None:
        self.weight.copy_(self._take(weights, "weight"))
        if self.bias is not None:
            self.bias.copy_(self._take(weights, "bias"))

    def _take(self, weights: Weights, suffix: str) -> Tensor:
        return weights.take(f"{self.name}.{suffix}", (self.size,)).to(*self._place)

    def claims(self) -> Iterator[str]:
        yield f"{self.name}.weight"
        if self._may_have_bias:
            yield f"{self.name}.bias"

    def __call__(self, x: Tensor) -> Tensor:
        """x[..., size] -> normed, like x."""
        return self._shift(self._ops.rms_norm(x, self.weight, self.eps, offset=self.offset))

    def _shift(self, normed: Tensor) -> Tensor:
        return normed if self.bias is None else self._ops.add_bias(normed, self.bias)

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """(norm(residual + x), residual + x); the residual is updated in place, or, where it is to
        be kept, x. None: it is x."""
        if residual is None:
            return self(x), x
        if self.keeps_residual:
            x, residual = residual, x
        normed, residual = self._ops.add_rms_norm(
            x, residual, self.weight, self.eps, offset=self.offset
        )
        return self._shift(normed), residual
