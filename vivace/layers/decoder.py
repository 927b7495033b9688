"""Decoder layers: how attention and MLP hang on the residual stream."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from vivace.layers.attention import Attention
from vivace.layers.mlp import GatedMLP
from vivace.layers.module import Module
from vivace.layers.norm import RMSNorm
from vivace.layers.step import ModelStep


class DecoderLayer(Protocol):
    """`x` is what the layer before has not yet added to `residual` (None at the first layer)."""

    self_attn: Attention

    def __call__(
        self, x: Tensor, residual: Tensor | None, step: ModelStep
    ) -> tuple[Tensor, Tensor]:
        """x[T, hidden], residual[T, hidden] -> the same pair for the next layer"""
        ...


class PreNormLayer(Module):
    """Norm before attention and before the MLP (Llama, Qwen, Mistral)."""

    def __init__(
        self, input_norm: RMSNorm, attention: Attention, mlp_norm: RMSNorm, mlp: GatedMLP
    ) -> None:
        self.input_layernorm = input_norm
        self.self_attn = attention
        self.post_attention_layernorm = mlp_norm
        self.mlp = mlp

    def __call__(
        self, x: Tensor, residual: Tensor | None, step: ModelStep
    ) -> tuple[Tensor, Tensor]:
        normed, residual = entered(self.input_layernorm, x, residual)
        attended = self.self_attn(normed, step)
        normed, residual = self.post_attention_layernorm.add(attended, residual)
        return self.mlp(normed), residual


class SandwichLayer(Module):
    """Norms before and after attention and MLP (Gemma 2 and 3)."""

    def __init__(self, attention: Attention, mlp: GatedMLP, norms: list[RMSNorm]) -> None:
        before, after, mlp_before, mlp_after = norms
        self.input_layernorm = before
        self.self_attn = attention
        self.post_attention_layernorm = after
        self.pre_feedforward_layernorm = mlp_before
        self.mlp = mlp
        self.post_feedforward_layernorm = mlp_after

    def __call__(
        self, x: Tensor, residual: Tensor | None, step: ModelStep
    ) -> tuple[Tensor, Tensor]:
        normed, residual = entered(self.input_layernorm, x, residual)
        attended = self.post_attention_layernorm(self.self_attn(normed, step))
        normed, residual = self.pre_feedforward_layernorm.add(attended, residual)
        return self.post_feedforward_layernorm(self.mlp(normed)), residual


def entered(norm: RMSNorm, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
    """(normed, residual) at a layer's entrance; at the first layer the stream is x itself."""
    return (norm(x), x) if residual is None else norm.add(x, residual)
