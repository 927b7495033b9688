"""The layer that checkpoints have to predict a further token (multi-token prediction; DeepSeek-V3,
2024): DeepSeek V3's and GLM-4.5's behind the last one, Qwen3-Next's beside the model."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from vivace.layers.linear import Part, RMSNorm
from vivace.layers.module import Module
from vivace.models.causal_lm import ModelStep, rotary_table
from vivace.models.deepseek import DeepseekDecoderLayer, latent_attention
from vivace.models.facts import DecoderFacts, ModelFacts
from vivace.models.gemma import GemmaRMSNorm
from vivace.models.glm4_moe import grouped_attention
from vivace.models.recurrent.qwen3_next import Qwen3NextDecoderLayer, gated_attention
from vivace.worker.drafters.joined_linear import JoinedLinear


class SharedHead(Module):
    """The matrix behind the norm is the model's own."""

    def __init__(self, hidden: int, eps: float) -> None:
        self.norm = RMSNorm(hidden, eps)


class NextnLayer(Module):
    """A layer of the model, and what joins embedding and state in front of it."""

    def __init__(self, facts: ModelFacts, decoder: DecoderFacts, positions: int) -> None:
        hidden, eps, last = facts.hidden_size, decoder.norm_eps, facts.layers - 1
        attention = latent_attention if decoder.latent is not None else grouped_attention
        rotary = rotary_table(decoder.rope, positions)
        self.rotary = rotary
        self.enorm = RMSNorm(hidden, eps)
        self.hnorm = RMSNorm(hidden, eps)
        self.eh_proj = JoinedLinear(hidden, 2, [Part("eh_proj", hidden)])
        self._block = DeepseekDecoderLayer(
            facts, decoder, last, attention(facts, decoder, last, rotary)
        )
        self.shared_head = SharedHead(hidden, eps)

    def children(self) -> Iterator[tuple[str, Module]]:
        """The layer's parts stand beside the others."""
        yield from super().children()
        yield from self._block.children()

    def __call__(self, embedded: Tensor, state: Tensor, step: ModelStep) -> Tensor:
        joined = self.eh_proj((self.enorm(embedded), self.hnorm(state)), step)
        x, residual = self._block(joined, None, step)
        assert residual is not None
        return self.shared_head.norm.add(x, residual)[0]


class NextnBody(Module):
    """What the layer leaves of a token is what logits are made of, and the next state. `place`:
    its number among the layers of its files."""

    def __init__(
        self, facts: ModelFacts, decoder: DecoderFacts, positions: int, place: int
    ) -> None:
        self._layer = NextnLayer(facts, decoder, positions)
        self._place = f"model.layers.{place}"

    def children(self) -> Iterator[tuple[str, Module]]:
        yield self._place, self._layer

    def __call__(self, embedded: Tensor, state: Tensor, step: ModelStep) -> tuple[Tensor, Tensor]:
        hidden = self._layer(embedded, state, step)
        return hidden, hidden


class MtpLayers(Module):
    """A layer of Qwen3-Next's that attends, with its own norms in front and behind."""

    def __init__(self, facts: ModelFacts, decoder: DecoderFacts, positions: int) -> None:
        hidden, eps = facts.hidden_size, decoder.norm_eps
        rotary = rotary_table(decoder.rope, positions)
        self.rotary = rotary
        self.pre_fc_norm_embedding = GemmaRMSNorm(hidden, eps)
        self.pre_fc_norm_hidden = GemmaRMSNorm(hidden, eps)
        self.fc = JoinedLinear(hidden, 2, [Part("fc", hidden)])
        attention = gated_attention(facts, decoder, 0, rotary)
        self.layers = [Qwen3NextDecoderLayer(facts, decoder, 0, attention)]
        self.norm = GemmaRMSNorm(hidden, eps)

    def __call__(self, embedded: Tensor, state: Tensor, step: ModelStep) -> Tensor:
        inputs = self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(state)
        (layer,) = self.layers
        x, residual = layer(self.fc(inputs, step), None, step)
        return self.norm.add(x, residual)[0]


class MtpBody(Module):
    """As `NextnBody`."""

    def __init__(self, facts: ModelFacts, decoder: DecoderFacts, positions: int) -> None:
        self.mtp = MtpLayers(facts, decoder, positions)

    def __call__(self, embedded: Tensor, state: Tensor, step: ModelStep) -> tuple[Tensor, Tensor]:
        hidden = self.mtp(embedded, state, step)
        return hidden, hidden
