"""Multi-head latent attention (MLA; DeepSeek-V2, 2024), in its absorbed form.

A token keeps one latent and one rotated key for all heads. What makes a head's keys of latents is
multiplied into its queries, and what makes its values of them is applied to the weighted latents,
for prompts and for decoding alike, so that a token has the same bits however its prompt was cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from vivace.checkpoint.row_order import ReorderedRows, halves_first
from vivace.checkpoint.weights import Weights
from vivace.layers.layout import split
from vivace.layers.linear import Linear, Part, RMSNorm, Shard
from vivace.layers.module import Bindings, Module, cast
from vivace.layers.rotary import RotaryTable
from vivace.platforms.attention import AttendingStep, LatentLayer
from vivace.platforms.ops.table import Ops, PackedWeight
from vivace.quantization.method import LayerWeights, LinearShape, LocalPart, claim_tensors

EPSILON = 1e-6
"""of the norms of latents, whatever the model's `rms_norm_eps` (as in DeepSeek's own code)"""


class LatentProjections(Module):
    """`kv_b_proj`, which makes each head's keys (first) and values of latents, in its two parts."""

    keys: PackedWeight
    """[latent, nope] of each head"""
    values: PackedWeight
    """[value, latent] of each head"""

    def __init__(self, shape: LatentLayer, nope_dim: int, value_dim: int) -> None:
        self.heads = shape.heads
        self.latent_dim = shape.latent_dim
        self.sizes = [nope_dim, value_dim]

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._ops, self._place = env.ops, (env.device, env.packer.dtype)
        self._take_matrix = env.quantization.take_matrix
        self._suffixes = env.quantization.linear_method(name, [name]).suffixes()
        size = self.heads * sum(self.sizes)
        rows = split(name, size, sum(self.sizes), env.layout.attention)
        self.shape = LinearShape((LocalPart(name, size, rows),), self.latent_dim)

    def load(self, weights: Weights) -> None:
        self.keys, self.values = self._pack(weights)

    def update(self, weights: Weights) -> None:
        for kept, new in zip((self.keys, self.values), self._pack(weights), strict=True):
            self._ops.update_weight(kept, new)

    def _pack(self, weights: Weights) -> tuple[PackedWeight, PackedWeight]:
        taken = self._take_matrix(LayerWeights(weights, self.shape), self.shape.parts[0])
        whole = (taken if isinstance(taken, Tensor) else taken.dequantize()).to(*self._place)
        keys, values = whole.unflatten(0, (-1, sum(self.sizes))).split(self.sizes, 1)
        return (
            self._ops.pack_heads([key.T.contiguous() for key in keys]),
            self._ops.pack_heads([value.contiguous() for value in values]),
        )

    def claims(self) -> Iterator[str]:
        yield from claim_tensors(self.shape, self._suffixes)


class MultiHeadLatentAttention(Module):
    """One layer. Ranks divide heads; each has the latents of all tokens."""

    _ops: Ops

    def __init__(
        self,
        shape: LatentLayer,
        hidden: int,
        rotary: RotaryTable,
        *,
        q_rank: int,
        nope_dim: int,
        value_dim: int,
        bias: bool,
        interleaved: bool,
    ) -> None:
        """`q_rank`: of what queries are made of, 0: of x; `bias`: of the layers that read or write
        hidden states; `interleaved`: the checkpoint turns neighbors, not halves"""
        self.shape = shape
        """this rank's heads, once it is bound"""
        latent, head = shape.latent_dim + shape.rope_dim, nope_dim + shape.rope_dim
        queries = shape.heads * head
        down = [Part("kv_a_proj_with_mqa", latent)]
        self.q_a_layernorm: RMSNorm | None = None
        if q_rank:
            down.append(Part("q_a_proj", q_rank))
            self.q_a_layernorm = RMSNorm(q_rank, EPSILON)
        self.a_proj = Linear(hidden, down, shard=Shard.OUTPUTS, group="replicated", bias=bias)
        self.q_proj = Linear(
            q_rank or hidden,
            [Part("q_b_proj" if q_rank else "q_proj", queries, head)],
            shard=Shard.OUTPUTS,
            group="attention",
        )
        self.kv_a_layernorm = RMSNorm(shape.latent_dim, EPSILON)
        self.kv_b_proj = LatentProjections(shape, nope_dim, value_dim)
        self.o_proj = Linear(
            shape.heads * value_dim,
            [Part("o_proj", hidden)],
            shard=Shard.INPUTS,
            group="attention",
            bias=bias,
            input_unit=value_dim,
        )
        self._sizes = [shape.latent_dim, shape.rope_dim, q_rank]
        self._head_sizes = [nope_dim, shape.rope_dim]
        self._interleaved = interleaved
        self._table = rotary

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        self._ops = env.ops
        (part,) = self.q_proj.shape.parts
        self.shape = replace(self.shape, heads=part.local_size // sum(self._head_sizes))
        self._attended = self.shape.heads * self.kv_b_proj.sizes[1]

    def load(self, weights: Weights) -> None:
        super().load(self._turn_halves(weights))

    def update(self, weights: Weights) -> None:
        super().update(self._turn_halves(weights))

    def _turn_halves(self, weights: Weights) -> Weights:
        """As `ops.rotary` turns them."""
        if not self._interleaved:
            return weights
        latent, queries = self.a_proj.shape.parts[0], self.q_proj.shape.parts[0]
        rope = self.shape.rope_dim
        return ReorderedRows(
            weights,
            {
                latent.name: halves_first(latent.size, latent.size, rope),
                queries.name: halves_first(queries.size, sum(self._head_sizes), rope),
            },
        )

    def __call__(self, x: Tensor, step: AttendingStep) -> Tensor:
        """x[T, hidden] -> [T, hidden]; latents of the T tokens are stored on the way."""
        ops, projections = self._ops, self.kv_b_proj
        latent, rope, down = self.a_proj(x, step).split(self._sizes, -1)
        latent = self.kv_a_layernorm(latent)
        q = self.q_proj(x if self.q_a_layernorm is None else self.q_a_layernorm(down), step)
        q, q_rope = q.unflatten(-1, (self.shape.heads, -1)).split(self._head_sizes, -1)
        q = ops.heads_linear(q, projections.keys)
        attended = ops.rotary_attend_latent(
            self.shape, q, q_rope, latent, rope, self._table.cos_sin, step
        )
        values = ops.heads_linear(cast(attended, x.dtype), projections.values)
        return self.o_proj(values.view(len(x), self._attended), step)
