"""What decoders have around their layers: embedding, last norm and head, and the stages of a
pipeline, of which each has some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from vivace.layers.layout import PipelineStage
from vivace.layers.linear import Embedding, LogitsHead, RMSNorm
from vivace.layers.module import Bindings, Module
from vivace.layers.rotary import RotaryTable
from vivace.models.causal_lm import ModelStep, rotary_table
from vivace.models.facts import DecoderFacts, ModelFacts
from vivace.platforms.cache import CacheLayer

BuildLayer = Callable[[ModelFacts, DecoderFacts, int, RotaryTable], Any]
"""The layer with this index: (x[T, hidden], residual or None, step) -> the same for the next layer;
x is what the residual has not yet been given"""


class DecoderModel(Module):
    """`tables`: of positions, which layers share. Of the layers a stage computes its own; what goes
    from one to the next is the residual, [T, hidden]."""

    def __init__(
        self,
        embed_tokens: Embedding,
        layers: Sequence[Any],
        norm: RMSNorm,
        tables: Sequence[Module],
    ) -> None:
        self.tables = list(tables)
        self.embed_tokens = embed_tokens
        self.layers = list(layers)
        self.norm = norm

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        stage = self._stage = env.layout.stage
        self._dtype, self._add = env.dtype, env.ops.add_gated
        self._held = [self.layers[i] for i in stage.layers or range(len(self.layers))]
        self._tapped: frozenset[int] = frozenset()
        self.taps: list[Tensor] = []
        """the residual in front of each tapped layer, [T, hidden], of the last step"""
        for layer in self.layers:
            layer.elsewhere = layer not in self._held
        self.embed_tokens.elsewhere = stage.source is not None
        self.norm.elsewhere = stage.target is not None

    @property
    def held_layers(self) -> list[Any]:
        """Those of this stage; after `bind`."""
        return self._held

    def tap(self, layers: Sequence[int]) -> None:
        """Keep what these layers get, or with their count what the last one leaves. Only of a whole
        model."""
        self._tapped = frozenset(layers)
        for layer in map(self.layers.__getitem__, self._tapped - {len(self.layers)}):
            layer.post_attention_layernorm.keeps_residual = True

    def __call__(self, step: ModelStep) -> Tensor:
        """-> hidden[T, hidden] behind the last norm; in a stage before the last what it hands on"""
        x, residual = self._begin(step, self._stage), None
        taps = list[Tensor]()
        for index, layer in enumerate(self._held):
            if index in self._tapped:  # the layer adds x to the residual, and then to another one
                taps.append(x if residual is None else residual)
            x, residual = layer(x, residual, step)
        assert residual is not None  # every stage has a layer
        hidden, residual = self._end(x, residual, self._stage)
        if len(self.layers) in self._tapped:
            taps.append(residual)
        self.taps = taps
        return hidden

    def _begin(self, step: ModelStep, stage: PipelineStage) -> Tensor:
        if stage.source is None:
            return self.embed_tokens(step.input_ids)
        tokens = step.input_ids.shape[0]
        return stage.source.receive(tokens, self.embed_tokens.hidden, self._dtype)

    def _end(self, x: Tensor, residual: Tensor, stage: PipelineStage) -> tuple[Tensor, Tensor]:
        """(what is handed on, the sum of both)"""
        if stage.target is None:
            return self.norm.add(x, residual)
        x = self._add(residual, x, None)
        stage.target.send(x)
        return x, x


class DecoderForCausalLM(Module):
    def __init__(self, model: DecoderModel, *, tied: bool, soft_cap: float | None = None) -> None:
        self.model = model
        self.lm_head = LogitsHead(model.embed_tokens, tied=tied, soft_cap=soft_cap)

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        last = env.layout.stage.target is None
        self.lm_head.elsewhere = not last
        if last and self.lm_head.tied:
            self.model.embed_tokens.elsewhere = False

    @property
    def attention_layers(self) -> Sequence[CacheLayer]:
        """This rank's heads of its layers; after `bind`."""
        return [layer.self_attn.shape for layer in self.model.held_layers]

    @property
    def taps(self) -> Sequence[Tensor]:
        return self.model.taps

    def forward(self, step: ModelStep) -> Tensor:
        return self.model(step)


class PlainDecoderForCausalLM(DecoderForCausalLM):
    """Layers of one kind that share one rotary table. `positions`: the served context in tokens."""

    def __init__(
        self, facts: ModelFacts, decoder: DecoderFacts, positions: int, build: BuildLayer
    ) -> None:
        rotary, hidden = rotary_table(decoder.rope, positions), facts.hidden_size
        model = DecoderModel(
            Embedding(facts.vocabulary, hidden),
            [build(facts, decoder, index, rotary) for index in range(facts.layers)],
            RMSNorm(hidden, decoder.norm_eps),
            [rotary],
        )
        super().__init__(model, tied=facts.tied)
