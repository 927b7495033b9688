"""Llama 4 (text): layers that turn heads and see a chunk beside layers without positions that see
everything, and mixtures of experts whose tokens are weighed before them (Meta 2025)."""

from __future__ import annotations

from torch import Tensor

from vivace.checkpoint.row_order import ReorderedRows, halves_first
from vivace.checkpoint.weights import Weights
from vivace.layers.attention import Attention, HeadNorm
from vivace.layers.linear import Embedding, RMSNorm
from vivace.layers.module import Module
from vivace.layers.rotary import PositionScales, RotaryTable
from vivace.models.causal_lm import ModelStep, attention_shape, feed_forward, rotary_table
from vivace.models.decoder import DecoderForCausalLM, DecoderModel
from vivace.models.facts import DecoderFacts, ModelFacts
from vivace.platforms.attention import AttendingStep, AttentionLayer


class RotatedAttention(Attention):
    """Turns neighbors (0, 1), (2, 3) ... of queries and keys, and norms them behind that."""

    def __init__(
        self,
        shape: AttentionLayer,
        hidden: int,
        rotary: RotaryTable,
        norm: HeadNorm | None,
        *,
        bias: bool,
    ) -> None:
        super().__init__(shape, hidden, rotary, qkv_bias=bias, output_bias=bias)
        self.qk_norm = norm

    def load(self, weights: Weights) -> None:
        super().load(self._turn_halves(weights))

    def update(self, weights: Weights) -> None:
        super().update(self._turn_halves(weights))

    def _turn_halves(self, weights: Weights) -> Weights:
        """As `ops.rotary` turns them."""
        head = self.shape.head_dim
        turned = self.qkv_proj.shape.parts[:2]
        orders = {part.name: halves_first(part.size, head, head) for part in turned}
        return ReorderedRows(weights, orders)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, step: AttendingStep) -> Tensor:
        if self.qk_norm is None:
            return super().attend(q, k, v, step)
        q, k = self._ops.rotary(q, k, step.positions, self._table.cos_sin)
        return step.attention.attend(self.shape, self.qk_norm(q), self.qk_norm(k), v, step)


class PositionlessAttention(Attention):
    """Knows no positions, but for a factor on queries that grows with theirs."""

    def __init__(
        self,
        shape: AttentionLayer,
        hidden: int,
        rotary: RotaryTable,
        scales: PositionScales | None,
        *,
        bias: bool,
    ) -> None:
        super().__init__(shape, hidden, rotary, qkv_bias=bias, output_bias=bias)
        self._scales = scales

    def attend(self, q: Tensor, k: Tensor, v: Tensor, step: AttendingStep) -> Tensor:
        if self._scales is not None:
            q = self._ops.scale_positions(q, step.positions, self._scales.factors)
        return step.attention.attend(self.shape, q, k, v, step)


class Llama4DecoderLayer(Module):
    def __init__(
        self,
        facts: ModelFacts,
        decoder: DecoderFacts,
        index: int,
        rotary: RotaryTable,
        scales: PositionScales | None,
    ) -> None:
        hidden, eps, bias = facts.hidden_size, decoder.norm_eps, decoder.attention_bias
        shape = attention_shape(facts, decoder, index)
        self.input_layernorm = RMSNorm(hidden, eps)
        assert decoder.llama4 is not None
        if decoder.llama4.rotated[index]:
            norm = HeadNorm(facts.head_dim, eps) if decoder.qk_norm else None
            self.self_attn = RotatedAttention(shape, hidden, rotary, norm, bias=bias)
        else:
            self.self_attn = PositionlessAttention(shape, hidden, rotary, scales, bias=bias)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.feed_forward = feed_forward(facts, decoder, index)

    def __call__(
        self, x: Tensor, residual: Tensor | None, step: ModelStep
    ) -> tuple[Tensor, Tensor]:
        """x[T, hidden] is what `residual` has not yet been given -> the same for the next layer"""
        x, residual = self.input_layernorm.add(x, residual)
        x = self.self_attn(x, step)
        x, residual = self.post_attention_layernorm.add(x, residual)
        return self.feed_forward(x, step), residual


class Llama4ForCausalLM(DecoderForCausalLM):
    """`positions`: the served context in tokens."""

    def __init__(self, facts: ModelFacts, decoder: DecoderFacts, positions: int) -> None:
        assert decoder.llama4 is not None
        tuning, hidden = decoder.llama4.temperature, facts.hidden_size
        rotary = rotary_table(decoder.rope, positions)
        scales = PositionScales(positions, tuning.floor, tuning.scale) if tuning else None
        model = DecoderModel(
            Embedding(facts.vocabulary, hidden),
            [
                Llama4DecoderLayer(facts, decoder, index, rotary, scales)
                for index in range(facts.layers)
            ],
            RMSNorm(hidden, decoder.norm_eps),
            [rotary, *([scales] if scales else [])],
        )
        super().__init__(model, tied=facts.tied)
